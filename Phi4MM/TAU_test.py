"""Run TAU (acoustic scenes) on Phi-4-multimodal. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("tau", model="phi4mm")
