"""Run MMAU-Pro (audio understanding) on Phi-4-multimodal. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("lalm/mmau_pro", model="phi4mm")
