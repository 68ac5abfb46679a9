"""What a decoder's config says of its layers: which have a window, and which use another's keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def window_of(config: Any, layer: int) -> int | None:
    """Return how many positions back a layer sees, itself included; None where a prompt cannot outgrow that.

    A window as long as the model has positions hides nothing: Phi-4-multimodal's is twice that.
    """
    window: int | None = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    reach = getattr(config, "max_position_embeddings", None)
    slides = types is None or types[layer] == "sliding_attention"
    return window if window and slides and not (reach and window >= reach) else None


def has_windows(config: Any) -> bool:
    """Tell whether any layer attends through a window that a prompt can outgrow."""
    return any(window_of(config, layer) for layer in range(config.num_hidden_layers))


def attention_windows(config: Any) -> tuple[int, ...]:
    """Return how many tokens back each decoder layer sees, 0 for all; empty where all see all."""
    return tuple(window_of(config, i) or 0 for i in range(config.num_hidden_layers)) if has_windows(config) else ()


def source_of(config: Any, layer: int) -> int:
    """Return the layer whose keys and values a layer attends to: its own, as a rule.

    Gemma 3n's last layers have none; each takes those of the last layer of its kind before them.
    """
    own: int = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0)
    if layer < own:
        return layer
    return max(index for index in range(own) if config.layer_types[index] == config.layer_types[layer])


def cached(config: Any, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return how many entries each cache holds when the layers were given so many tokens in prefill.

    Layers that use another's keys and values have no cache; one with a window keeps what the next token will see.
    """
    windows = [window_of(config, layer) for layer in range(len(lengths))]
    return tuple(
        min(length, window - 1) if window else length
        for layer, (length, window) in enumerate(zip(lengths, windows, strict=True))
        if source_of(config, layer) == layer
    )
