"""Run LibriSpeech (transcription) on Voxtral. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("librispeech", model="voxtral")
