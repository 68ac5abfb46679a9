"""Run DESED (domestic sound events) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("desed", model="aero-1")
