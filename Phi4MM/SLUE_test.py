"""Run SLUE (questions on named entities) on Phi-4-multimodal. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("slue", model="phi4mm")
