"""The oracle of token dropping: keep every token, but hide the dropped ones from all attention in layers >= K.

Written without a line of the engine's: same tokens and same logits must come out (METHODS.md, section 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def hidden_instead_of_dropped(layers: nn.ModuleList, first: int, kept: torch.Tensor, prompt: int) -> Iterator[None]:
    """Mask, in layers from `first` on, every prompt position that is not in `kept`; batch of one, no padding."""
    dropped = torch.ones(prompt, dtype=torch.bool)
    dropped[kept] = False

    def mask_for(queries: torch.Tensor, total: int, like: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        keys = torch.arange(total)
        visible = keys[None] <= queries[:, None]
        visible &= ~torch.cat([dropped, torch.zeros(total - prompt, dtype=torch.bool)])[None] | (
            keys[None] == queries[:, None]
        )
        if like is None or like.dtype == torch.bool:
            return visible[None, None]
        return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]

    def hook(index: int) -> Any:
        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            length = hidden.shape[1]
            past = 0 if length > 1 else kwargs["past_key_values"].get_seq_length(index)
            kwargs["attention_mask"] = mask_for(
                torch.arange(past, past + length), past + length, kwargs.get("attention_mask"), hidden.dtype
            )
            return args, kwargs

        return before

    handles = [layers[i].register_forward_pre_hook(hook(i), with_kwargs=True) for i in range(first, len(layers))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
