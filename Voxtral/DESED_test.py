"""Run DESED (domestic sound events) on Voxtral. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("desed", model="voxtral")
