"""Run TAU (acoustic scenes) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("tau", model="aero-1")
