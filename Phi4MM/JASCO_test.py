"""JASCO, joint reasoning about sound and speech, on Phi-4-multimodal. Settings are env vars (README, "Settings")."""

from audiomarathon import run_task

run_task("jasco", model="phi4mm")
