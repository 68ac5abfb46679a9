"""Run VoxCeleb (age group of the speaker) on Voxtral. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("vox_age", model="voxtral")
