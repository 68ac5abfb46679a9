"""Run JASCO (reasoning on sound and speech) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("jasco", model="aero-1")
