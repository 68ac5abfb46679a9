"""Run an audio tower that attends within windows with one attention call per layer, and without reading from the GPU.

For sdpa and eager attention, transformers' towers of Qwen2.5-Omni and Qwen3-Omni call attention once per window and
layer, and read the windows' lengths from the GPU three times per layer. If the name of the attention function contains
"flash", they call it once per layer, with all windows. So we register such a function while the tower runs. This
function attends to each run of windows of equal length in one call, without padding, since padding changes float32
bits.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from audiomarathon.models.loading import patched_attribute

_NAME = "flash_in_windows"


@dataclass(frozen=True)
class Windows:
    """The windows within which an audio tower attends, for a batch's clips.

    Attributes
    ----------
    places
        Shape (chunks, 1, frames), for the chunks on which the tower's convolutions run: the number of each frame among
        the frames of the batch's features, counted from 1 over all clips; 0 stands for padding.
    lengths
        Number of the tower's frames in each window, in order.
    arguments
        Arguments of the tower that it would otherwise compute with reads from the GPU.
    later
        The windows' lengths after states were dropped between two layers: one tuple of lengths for each drop.
    """

    places: torch.Tensor
    lengths: tuple[int, ...]
    arguments: Mapping[str, Any]
    later: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, places: torch.Tensor, cu_seqlens: torch.Tensor, device: torch.device, **more: torch.Tensor) -> Windows:
        """Build the windows from tensors on the CPU, with copies on `device`.

        `cu_seqlens` holds the windows' boundaries, shape (windows + 1,).
        """
        lengths = tuple(cu_seqlens.diff().tolist())
        arguments = {name: tensor.to(device) for name, tensor in {"cu_seqlens": cu_seqlens, **more}.items()}
        return cls(places.to(device), lengths, {**arguments, "max_seqlen": max(lengths)})

    def padded(self, features: torch.Tensor) -> torch.Tensor:
        """Cut features (clips, mel bins, frames) into padded chunks (chunks, mel bins, frames) without a GPU sync."""
        rows = nn.functional.pad(features.transpose(1, 2).flatten(0, 1), (0, 0, 1, 0))
        return rows[self.places[:, 0]].transpose(1, 2)


def modelling_file(module: nn.Module) -> Any:
    """Return the Python module of transformers in which a model's class is defined."""
    return sys.modules[type(module).__module__]


@contextmanager
def in_windows(model: Any, tower: nn.Module, windows: Windows | None) -> Iterator[None]:
    """Inside the `with` block, make `model.get_audio_features` run the tower on the given windows, one attention call a
    layer.

    If `windows` is None, change nothing.
    """
    if windows is None:
        yield
        return

    def features(input_features: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
        with _attending(tower.config, (windows.lengths, *windows.later)):
            return tower(padded_feature=windows.padded(input_features), **windows.arguments)

    with patched_attribute(model, "get_audio_features", features):
        yield


@contextmanager
def _attending(config: Any, either: tuple[tuple[int, ...], ...]) -> Iterator[None]:
    """Make the tower attend in one call per layer inside the `with` block, as it already does with flash attention.

    `either` has the windows' lengths, in frames, before and after each drop of states: a layer uses the list whose sum
    is its number of frames.
    """
    before = config._attn_implementation
    if "flash" in before:
        yield
        return
    by_frames = {sum(lengths): lengths for lengths in either}

    def attend(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_rest: Any, **options: Any
    ) -> tuple[torch.Tensor, None]:
        inner = ALL_ATTENTION_FUNCTIONS.get(before) or modelling_file(module).eager_attention_forward
        kept = {name: options[name] for name in ("attention_mask", "scaling", "dropout", "is_causal")}
        return grouped(inner, module, (query, key, value), by_frames[query.shape[2]], kept), None

    ALL_ATTENTION_FUNCTIONS[_NAME] = attend
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS[_NAME]


def grouped(
    inner: Any, module: nn.Module, states: tuple[torch.Tensor, ...], lengths: tuple[int, ...], options: dict[str, Any]
) -> torch.Tensor:
    """Attend within windows: one call of `inner` for each run of windows of equal length.

    Parameters
    ----------
    states
        Queries, keys and values, each of shape (1, H, frames, d).

    Returns
    -------
    torch.Tensor
        Shape (1, frames, H, d).
    """
    runs = [(length, len(list(run))) for length, run in itertools.groupby(lengths)]
    sizes = [length * count for length, count in runs]
    parts = zip(*(torch.split(part, sizes, dim=2) for part in states), strict=True)
    done = []
    for (length, count), part in zip(runs, parts, strict=True):
        rows = (tensor[0].unflatten(1, (count, length)).transpose(0, 1) for tensor in part)  # (count, H, length, d)
        done.append(inner(module, *rows, **options)[0].flatten(0, 1))
    return torch.cat(done)[None]
