"""Run SLUE (questions on named entities) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("slue", model="aero-1")
