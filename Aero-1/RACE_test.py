"""Run RACE (questions on passages read aloud) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("race", model="aero-1")
