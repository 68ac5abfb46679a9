"""Run JASCO (reasoning on sound and speech) on Phi-4-multimodal. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("jasco", model="phi4mm")
