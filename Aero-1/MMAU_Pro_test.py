"""Run MMAU-Pro (audio understanding) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("lalm/mmau_pro", model="aero-1")
