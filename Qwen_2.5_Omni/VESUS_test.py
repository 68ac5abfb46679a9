"""Run VESUS (emotions) on Qwen2.5-Omni. Settings come from env vars (docs/reference.md)."""

from audiomarathon import run_task

run_task("vesus", model="qwen2.5-omni")
