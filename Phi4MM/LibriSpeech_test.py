"""Run LibriSpeech (transcription) on Phi-4-multimodal. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("librispeech", model="phi4mm")
