"""Read facts about decoder layers: which have a sliding window, and which use another layer's keys and values.

Further functions read a layer's arguments and hidden states.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def window_of(config: Any, layer: int) -> int | None:
    """Return the length of a layer's sliding attention window in positions, the current one included; None without one.

    A window at least as long as the longest prompt hides nothing, so it counts as no window (as in Phi-4-multimodal).
    """
    window: int | None = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    reach = getattr(config, "max_position_embeddings", None)
    slides = types is None or types[layer] == "sliding_attention"
    return window if window and slides and not (reach and window >= reach) else None


def has_windows(config: Any) -> bool:
    """Tell whether any layer has a sliding window that is shorter than the longest prompt."""
    return any(window_of(config, layer) for layer in range(config.num_hidden_layers))


def attention_windows(config: Any) -> tuple[int, ...]:
    """Return each decoder layer's sliding attention window in tokens; 0 for a layer that has none.

    Return an empty tuple if no layer has a window.
    """
    return tuple(window_of(config, i) or 0 for i in range(config.num_hidden_layers)) if has_windows(config) else ()


def source_of(config: Any, layer: int) -> int:
    """Return the index of the layer whose keys and values `layer` uses, usually `layer` itself.

    Gemma 3n's last layers have no keys and values. Each uses those of the last earlier layer of the same kind (sliding
    or full attention).
    """
    unshared: int = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0)
    if layer < unshared:
        return layer
    return max(index for index in range(unshared) if config.layer_types[index] == config.layer_types[layer])


def cached(config: Any, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the number of KV-cache entries of each layer after a prefill in which layer i had `lengths[i]` tokens.

    A layer that uses another layer's keys and values has no cache. A layer with a sliding window caches only the
    entries that the next token attends to.
    """
    windows = [window_of(config, layer) for layer in range(len(lengths))]
    return tuple(
        min(length, window - 1) if window else length
        for layer, (length, window) in enumerate(zip(lengths, windows, strict=True))
        if source_of(config, layer) == layer
    )


def call_of(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call as {name: value}, including those that were passed by position."""
    call = dict(signature.bind(*args, **kwargs).arguments)
    call.update(call.pop("kwargs", {}))
    return call


def states_of(config: Any, entering: torch.Tensor | None, row: int, at: torch.Tensor | None = None) -> torch.Tensor:
    """Return the hidden states of one sample (a batch's row) that enter a layer, shape (S tokens, size D).

    `at` selects positions; None returns all.
    """
    assert entering is not None
    if entering.dim() == 4:  # Gemma 3n (AltUp) has several versions of the hidden states; its layers attend to one
        entering = entering[config.altup_active_idx]
    return entering[row] if at is None else entering[row, at.to(entering.device)]
