"""Run VoxCeleb (gender of the speaker) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("vox", model="aero-1")
