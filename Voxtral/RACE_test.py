"""Run RACE (questions on passages read aloud) on Voxtral. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("race", model="voxtral")
