"""Run VoxCeleb (gender of the speaker) on Qwen2.5-Omni. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("vox", model="qwen2.5-omni")
