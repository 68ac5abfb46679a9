"""Run VESUS (emotions) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("vesus", model="aero-1")
