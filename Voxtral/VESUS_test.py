"""Run VESUS (emotions) on Voxtral. Settings come from env vars (README, "Settings")."""

from audiomarathon import run_task

run_task("vesus", model="voxtral")
