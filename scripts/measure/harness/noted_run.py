"""Run one command of this project or of lmms-eval, and log every `generate` call: time, prompt, reply.

    python noted_run.py audiomarathon CALLS CHECKPOINT run tau …
    python noted_run.py lmms-eval CALLS CHECKPOINT --model qwen2_5_omni …

Runs in lmms-eval's environment too, so it imports nothing of this project at the top. Wall times are those of
`time.monotonic`, which processes of one Linux machine share.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def now() -> dict[str, float]:
    """Return the readings of two clocks: seconds since the machine started, and CPU seconds of this process."""
    return {"wall": time.monotonic(), "cpu": time.process_time()}


def note_calls(calls: list[dict[str, Any]]) -> None:
    """Patch transformers' `generate`, so that each call appends its time, prompt and reply to `calls`."""
    from transformers import GenerationMixin

    generate = GenerationMixin.generate

    def noted(self: Any, **given: Any) -> Any:
        begin = now()
        output = generate(self, **given)
        end = now()
        prompt = given["input_ids"][0].tolist()
        rows = output if not hasattr(output, "sequences") else output.sequences
        calls.append({
            "begin": begin, "end": end, "prompt": prompt, "reply": rows[0, len(prompt) :].tolist(),
            "frames": int(given["feature_attention_mask"].sum()), "dtype": str(self.dtype),
            "attention": self.config.get_text_config()._attn_implementation,
        })  # fmt: skip
        return output

    GenerationMixin.generate = noted


def audiomarathon(_: str) -> None:
    """Run this project's command line."""
    from audiomarathon.cli.app import main

    main()


def lmms_eval(checkpoint: str) -> None:
    """Run lmms-eval's command line with its model `qwen2_5_omni`, patched to work without CUDA and the hub.

    Changes: the processor is the checkpoint's (the hub's 7B is hard-coded); the model is the thinker alone, in float32
    on the CPU (devices are hard-coded, and transformers 5's whole Qwen2.5-Omni refuses `return_audio`, and refuses to
    run without the talker, which lmms-eval removes).
    """
    import torch

    # The index's build of torchvision is for CUDA; without its compiled part it fails to register operators.
    register_fake, torch.library.register_fake = torch.library.register_fake, lambda *_, **__: lambda function: function
    import torchvision  # noqa: F401

    torch.library.register_fake = register_fake
    import lmms_eval.models.simple.qwen2_5_omni as adapter
    from lmms_eval.cli.dispatch import main
    from transformers import (
        AutoTokenizer,
        Qwen2_5OmniProcessor,
        Qwen2_5OmniThinkerForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        WhisperFeatureExtractor,
    )

    class Thinker(Qwen2_5OmniThinkerForConditionalGeneration):
        @classmethod
        def from_pretrained(cls, path: str, *, attn_implementation: str, **_: Any) -> Any:
            return super().from_pretrained(path, dtype=torch.float32, attn_implementation=attn_implementation)

        def disable_talker(self) -> None:
            """Do nothing: there is no GPU."""

        def generate(self, *, return_audio: bool, thinker_do_sample: bool, **given: Any) -> Any:  # noqa: ARG002
            return super().generate(**given)

    def processor(_: str) -> Qwen2_5OmniProcessor:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        return Qwen2_5OmniProcessor(
            image_processor=Qwen2VLImageProcessor(),
            video_processor=Qwen2VLVideoProcessor(),
            feature_extractor=WhisperFeatureExtractor.from_pretrained(checkpoint),
            tokenizer=tokenizer,
            chat_template=tokenizer.chat_template,
        )

    adapter.Qwen2_5OmniForConditionalGeneration = Thinker
    adapter.Qwen2_5OmniProcessor = SimpleNamespace(from_pretrained=processor)
    main()


def main() -> None:
    """Run the command with patched `generate`, and write the log of calls."""
    side, file, checkpoint, *command = sys.argv[1:]
    calls: list[dict[str, Any]] = []
    note_calls(calls)
    sys.argv = [side, *command]
    try:
        {"audiomarathon": audiomarathon, "lmms-eval": lmms_eval}[side](checkpoint)
    finally:
        Path(file).write_text(json.dumps(calls))


if __name__ == "__main__":
    main()
