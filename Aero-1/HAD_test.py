"""Run HAD (real and half-truth speech) on Aero-1. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("had", model="aero-1")
