"""The model families that the suite runs on: how to build a tiny random checkpoint of each, and its documented usage.

A family is one entry here and one file `tiny_<family>.py` with `checkpoint(folder)` and `documented(folder, prompt)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_aero
import tiny_audio_flamingo_3
import tiny_gemma3n
import tiny_phi4mm
import tiny_qwen2_5_omni
import tiny_qwen2_audio
import tiny_qwen3_omni
import tiny_voxtral
import torch

from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model


@dataclass(frozen=True)
class Family:
    """A family under test.

    Attributes
    ----------
    key
        A model of the registry that this family runs.
    checkpoint
        Saves a tiny random checkpoint in the hub's layout and returns the folder.
    documented
        Returns the inputs that the family's own processor makes of a prompt, and the model as its documentation loads
        it: none of the engine's code.
    audio_tokens
        The family's formula: audio tokens of a clip of so many samples at 16 kHz.
    """

    key: str
    checkpoint: Callable[[Path], Path]
    documented: Callable[[Path, Prompt], tuple[Mapping[str, torch.Tensor], Any]]
    audio_tokens: Callable[[int], int]

    def load(self, folder: Path, attn_implementation: str = "sdpa") -> AudioLM:
        """Load through the path a user takes."""
        family = get_model(self.key).load_family()
        return family.load(folder, device="cpu", dtype="float32", attn_implementation=attn_implementation)


FAMILIES = {
    family.key: family
    for family in (
        Family(
            "qwen2.5-omni-7b",
            tiny_qwen2_5_omni.checkpoint,
            tiny_qwen2_5_omni.documented,
            tiny_qwen2_5_omni.audio_tokens,
        ),
        Family("phi4mm", tiny_phi4mm.checkpoint, tiny_phi4mm.documented, tiny_phi4mm.audio_tokens),
        Family("voxtral", tiny_voxtral.checkpoint, tiny_voxtral.documented, tiny_voxtral.audio_tokens),
        Family("aero-1", tiny_aero.checkpoint, tiny_aero.documented, tiny_aero.audio_tokens),
        Family("qwen2-audio", tiny_qwen2_audio.checkpoint, tiny_qwen2_audio.documented, tiny_qwen2_audio.audio_tokens),
        Family("qwen3-omni", tiny_qwen3_omni.checkpoint, tiny_qwen3_omni.documented, tiny_qwen3_omni.audio_tokens),
        Family(
            "audio-flamingo-3",
            tiny_audio_flamingo_3.checkpoint,
            tiny_audio_flamingo_3.documented,
            tiny_audio_flamingo_3.audio_tokens,
        ),
        Family("gemma3n", tiny_gemma3n.checkpoint, tiny_gemma3n.documented, tiny_gemma3n.audio_tokens),
    )
}
