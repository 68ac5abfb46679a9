"""The model families that the suite runs on: how to build a tiny random checkpoint of each, and its documented usage.

A family is one entry here and one file `tiny_<family>.py` with `checkpoint(folder)`, `documented(folder, prompt)` and
`audio_tokens(samples)`; the file is imported at its first use, since transformers takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.models.registry import get_model

if TYPE_CHECKING:
    import torch

    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Prompt


@dataclass(frozen=True)
class Family:
    """A family under test.

    Attributes
    ----------
    key
        A model of the registry that this family runs.
    module
        The file that builds its tiny checkpoint.
    """

    key: str
    module: str

    def checkpoint(self, folder: Path) -> Path:
        """Save a tiny random checkpoint in the hub's layout and return the folder."""
        return import_module(self.module).checkpoint(folder)

    def documented(self, folder: Path, prompt: Prompt) -> tuple[Mapping[str, torch.Tensor], Any]:
        """Return the inputs that the family's processor makes of a prompt, and the model as its documentation loads it,
        without any of the engine's code.
        """
        return import_module(self.module).documented(folder, prompt)

    def audio_tokens(self, samples: int) -> int:
        """Return the number of audio tokens for this many samples at 16 kHz, by the family's formula."""
        return import_module(self.module).audio_tokens(samples)

    def load(self, folder: Path, attn_implementation: str = "sdpa") -> AudioLM:
        """Load through the path a user takes."""
        family = get_model(self.key).load_family()
        return family.load(folder, device="cpu", dtype="float32", attn_implementation=attn_implementation)


def assert_equal_tensors(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor] | None) -> None:
    """Assert that two sets of named tensors are the same bit for bit."""
    assert theirs is not None
    assert {name: tensor.tolist() for name, tensor in ours.items()} == {
        name: tensor.tolist() for name, tensor in theirs.items()
    }


FAMILIES = {
    key: Family(key, module)
    for key, module in (
        ("qwen2.5-omni-7b", "tiny_qwen2_5_omni"),
        ("phi4mm", "tiny_phi4mm"),
        ("voxtral", "tiny_voxtral"),
        ("aero-1", "tiny_aero"),
        ("qwen2-audio", "tiny_qwen2_audio"),
        ("qwen3-omni", "tiny_qwen3_omni"),
        ("audio-flamingo-3", "tiny_audio_flamingo_3"),
        ("gemma3n", "tiny_gemma3n"),
    )
}
