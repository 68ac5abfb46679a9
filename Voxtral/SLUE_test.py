"""Run SLUE (questions on named entities) on Voxtral. Settings come from env vars (README, "Settings")."""

from audiomarathon import run_task

run_task("slue", model="voxtral")
