"""Run Clotho (audio captioning) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("lalm/clotho", model="aero-1")
