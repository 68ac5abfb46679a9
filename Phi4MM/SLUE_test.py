"""Run SLUE (questions on named entities) on Phi-4-multimodal. Settings come from env vars (README, "Settings")."""

from audiomarathon import run_task

run_task("slue", model="phi4mm")
