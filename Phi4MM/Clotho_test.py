"""Run Clotho (audio captioning) on Phi-4-multimodal. Settings come from env vars (README, "Settings")."""

from audiomarathon import run_task

run_task("lalm/clotho", model="phi4mm")
