"""Run Clotho (audio captioning) on Voxtral. Settings come from env vars (README, "Settings")."""

from audiomarathon import run_task

run_task("lalm/clotho", model="voxtral")
