"""Run Clotho (audio captioning) on Voxtral. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("lalm/clotho", model="voxtral")
