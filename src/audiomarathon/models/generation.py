"""What comes out of a model: replies, and what one `generate` call took."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from audiomarathon.models.merge import Merge
from audiomarathon.models.timing import Stages


@dataclass(frozen=True)
class Reply:
    """One sample's generated text.

    Attributes
    ----------
    text
        Decoded, special tokens left out.
    finish
        `"stop"` when the model ended its reply, `"length"` when the token limit cut it.
    new_tokens
        Generated tokens, the end token included.
    transcript
        What the family's own decoding of transcripts leaves of the text; None for all of it.
    """

    text: str
    finish: str
    new_tokens: int
    token_ids: tuple[int, ...]
    transcript: str | None = None


@dataclass(frozen=True)
class Generation:
    """What one `generate` call over a batch gave, and what it took.

    Attributes
    ----------
    stages
        Measured times of encoder, LLM prefill and decode, seconds.
    kept_audio_tokens
        Audio tokens a sample that the method left; None where it does not say.
    kv_lengths
        Cache length of each decoder layer after prefill (padding included when B > 1).
    expected_lengths
        What the method says these lengths are; None where it does not say.
    kv_bytes
        Bytes of all keys and values after prefill.
    peak_memory_bytes
        Peak of the GPUs' allocated memory during the call; None on a CPU.
    encoder_peak_memory_bytes
        The same until the audio tower was done; what a call whose tower was answered from memory did not use.
    scoring
        Seconds of the LLM prefill that the method spent on choosing.
    kept_positions
        For each sample the prompt positions that token pruning left; None when nothing was dropped.
    merges
        For each sample how its audio tokens were merged; None when none was.
    kept_entries
        For each layer which entries of its cache a press kept, boolean, shape (Hkv, entries); empty without a press,
        None unless asked for.
    """

    replies: tuple[Reply, ...]
    stages: Stages
    kept_audio_tokens: tuple[int | None, ...]
    kv_lengths: tuple[int, ...]
    kv_bytes: int
    peak_memory_bytes: int | None
    scoring: float = 0.0
    kept_positions: tuple[torch.Tensor, ...] | None = None
    merges: tuple[Merge | None, ...] | None = None
    logits: torch.Tensor | None = None
    kept_entries: tuple[torch.Tensor, ...] | None = None
    encoder_peak_memory_bytes: int | None = None
    expected_lengths: tuple[int, ...] | None = None
