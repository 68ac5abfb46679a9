"""A model family: Qwen2.5-Omni asked without a chat template."""
