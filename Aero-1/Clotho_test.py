"""Run Clotho (audio captioning) on Aero-1. Settings come from env vars (README, "Settings")."""

from audiomarathon import run_task

run_task("lalm/clotho", model="aero-1")
