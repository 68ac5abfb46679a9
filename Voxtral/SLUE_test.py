"""Run SLUE (questions on named entities) on Voxtral. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("slue", model="voxtral")
