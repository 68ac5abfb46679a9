"""Measure how similar neighbouring audio tokens are: the more similar, the less is lost by dropping some at random."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.layers import states_of
from audiomarathon.models.prompt import Inputs
from audiomarathon.models.trace import Trace

_BLOCK = 1024  # number of tokens that are copied at a time


@contextmanager
def redundancy_measured(lm: AudioLM, inputs: Inputs, trace: Trace) -> Iterator[None]:
    """Measure how similar neighbouring audio tokens are where they enter the LLM, in a prefill inside the `with` block.

    At the end of the `with` block, `trace.redundancy` is set to each sample's mean similarity.
    """
    audio = [row.nonzero().flatten() for row in inputs.audio_mask]
    similarities: list[torch.Tensor] = []

    def measure(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        handle.remove()
        entering = args[0] if args else kwargs["hidden_states"]
        with trace.looking(lm.clock):
            similarities.extend(
                alike(states_of(lm.decoder.config, entering, row), spots) for row, spots in enumerate(audio)
            )

    with lm.decoder_layers[0].register_forward_pre_hook(measure, with_kwargs=True) as handle:
        yield
    values = torch.stack([similarity.to(lm.device) for similarity in similarities]).tolist() if similarities else []
    trace.redundancy = tuple(None if math.isnan(value) else max(0.0, value) for value in values) or None


def alike(states: torch.Tensor, spots: torch.Tensor) -> torch.Tensor:
    """Return the mean cosine similarity of neighbouring states; `states` has S states of size D, shape (S, D).

    Neighbours are states at consecutive positions; `spots` has the states' positions, ascending. NaN without
    neighbours. Tokens are processed in blocks, so that long audio needs no more memory.
    """
    beside = spots.diff() == 1
    total = states.new_zeros((), dtype=torch.float32)
    for start in range(0, len(beside), _BLOCK):
        block = states[spots[start : start + _BLOCK + 1].to(states.device)].float()
        total += (
            cosine_similarity(block[:-1], block[1:], dim=-1) * beside[start : start + _BLOCK].to(block.device)
        ).sum()
    return total / beside.sum().to(total.device)
