"""Run GTZAN (music genres) on Phi-4-multimodal. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("gtzan", model="phi4mm")
