"""Types for the output of one `generate` call: the replies, and what they cost."""

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
        The reply as text, without special tokens.
    finish
        `"stop"` if the model ended its reply, `"length"` if the token limit cut it.
    new_tokens
        Number of generated tokens, including the end token.
    transcript
        The transcript that the family's code extracts from the text; None if the whole text is the transcript.
    """

    text: str
    finish: str
    new_tokens: int
    token_ids: tuple[int, ...]
    transcript: str | None = None


@dataclass(frozen=True)
class Generation:
    """Result and costs of one `generate` call over a batch.

    Attributes
    ----------
    stages
        Measured seconds of encoder, LLM prefill and decode.
    kept_audio_tokens
        Number of audio tokens that the method kept, for each sample; None if the method does not report it.
    kv_lengths
        Number of KV-cache positions of each decoder layer after prefill (padding included when B > 1).
    expected_lengths
        The `kv_lengths` that the method predicts; None if it predicts none.
    kv_bytes
        Bytes of all keys and values after prefill.
    peak_memory_bytes
        Peak of the GPUs' allocated memory during the call; None on a CPU.
    encoder_peak_memory_bytes
        Peak of the GPUs' allocated memory until the audio tower was done; None on a CPU. If the call reused the tower's
        output, this is not the tower's peak.
    scoring
        Seconds of LLM prefill in which the method chose what to keep.
    kept_positions
        For each sample, the prompt positions that a token pruner kept; None if nothing was dropped.
    kept_steps
        For a pruner that drops in several steps: each step's first layer, and the positions of each sample that remain
        from this layer on. None for other methods.
    merges
        How the audio tokens of each sample were merged; None if the method merges none.
    kept_entries
        For each layer, which KV-cache entries a press kept: boolean, shape (Hkv, entries), Hkv being the number of key
        heads, or (B, Hkv, entries) in a batch of B samples. Empty without a press; None if `keep_entries` was not set.
    redundancy
        For base: the mean cosine similarity of neighbouring audio tokens that enter the LLM, for each sample. Else
        None.
    kept_shares
        For each sample, the share of (layer, head) pairs that keep each prompt position, shape (S,); None unless an
        external press was applied whose kept entries are known.
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
    kept_steps: tuple[tuple[int, tuple[torch.Tensor, ...]], ...] | None = None
    redundancy: tuple[float | None, ...] | None = None
    kept_shares: tuple[torch.Tensor, ...] | None = None
    encoder_peak_memory_bytes: int | None = None
    expected_lengths: tuple[int, ...] | None = None
