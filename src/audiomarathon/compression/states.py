"""Drop or merge the encoder's states before an encoder-decoder's cross-attention attends to them.

Each window of a sample keeps its share of the sample's budget. The states of a window's padding are dropped at a
uniform stride by the same ratio, so that audio and padding keep their shares of the attention. A hook on the decoder
replaces the states in prefill; in decode their keys and values are cached. If windows of a batch keep different numbers
of states, shorter rows are filled up at the end, and every layer's cross-attention gets a mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from audiomarathon.compression.method import at_stride, kept_count
from audiomarathon.models.merge import Merge

if TYPE_CHECKING:
    from torch import nn

    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs

#: Function that chooses which encoder states a window keeps. Arguments: the positions 0, 1, … of its states without
#: those of padding, the number to keep, a seed, and the states (N, D) or None.
Choose = Callable[[torch.Tensor, int, int, torch.Tensor | None], torch.Tensor | Merge]


def budgets_of(states: Sequence[int], ratio: float) -> list[int]:
    """Return how many encoder states each window of a sample keeps, if the fraction `ratio` is removed.

    `states` has each window's number of states. Together, the windows keep as many states as a single window with all
    of these states would, but each window that has states keeps at least one.
    """
    kept = [kept_count(end, ratio) for end in (0, *itertools.accumulate(states))]
    return [
        max(later - before, min(1, count))
        for (before, later), count in zip(itertools.pairwise(kept), states, strict=True)
    ]


def exists(chosen: torch.Tensor | Merge, count: int, keep: int) -> bool:
    """Tell whether all indices in `chosen` are in range: `chosen` keeps `keep` of `count` states, or merges them.

    The check waits for the GPU.
    """
    pairs = [(chosen.kept, count), (chosen.group, keep)] if isinstance(chosen, Merge) else [(chosen, count)]
    return all(bool(((part >= 0) & (part < limit)).all()) for part, limit in pairs)


class StateDrop:
    """The encoder states that each window of a batch keeps, with hooks that give the decoder only these states.

    Parameters
    ----------
    choose
        Method's choice, called once for each window: it gets the positions of the window's states (without those of
        padding), the number to keep, a seed, and the states (None unless `looks`); it returns indices or a merge.
    looks
        Whether `choose` needs the states. If not, it is called before prefill.

    Attributes
    ----------
    widths
        Number of states that each window keeps, including states of its padding.
    """

    def __init__(self, lm: AudioLM, inputs: Inputs, ratio: float, choose: Choose, *, looks: bool) -> None:
        self.lm, self.inputs, self.choose = lm, inputs, choose
        self.total: int = lm.window_states  # type: ignore[attr-defined]
        self.budgets = [budgets_of(counts, ratio) for counts in inputs.states]
        self.rows = [
            (count, budget, seed + window)
            for counts, budgets, seed in zip(inputs.states, self.budgets, inputs.seeds, strict=True)
            for window, (count, budget) in enumerate(zip(counts, budgets, strict=True))
        ]
        padding = [self.total - count for count, _budget, _seed in self.rows]
        self.padding = [self.total - padding + at_stride(padding, kept_count(padding, ratio)) for padding in padding]
        self.widths = [
            budget + len(kept) for (_count, budget, _seed), kept in zip(self.rows, self.padding, strict=True)
        ]
        self.chosen: list[torch.Tensor | Merge] = [] if looks else [self._choose(row, None) for row in self.rows]

    def _choose(self, row: tuple[int, int, int], states: torch.Tensor | None) -> torch.Tensor | Merge:
        count, budget, seed = row
        shown = torch.arange(count, device=self.lm.device)
        chosen = self.choose(shown, budget, seed, None if states is None else states[:count]).to(self.lm.device)
        return chosen if isinstance(chosen, Merge) else chosen.sort().values

    def decide(self, states: torch.Tensor) -> None:
        """Choose which states each window keeps, and store the choices in `chosen`.

        `states` are the encoder's states, shape (windows, S, D): S states of size D in each window.
        """
        self.chosen = [self._choose(row, window_states) for row, window_states in zip(self.rows, states, strict=True)]

    def kept(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states that each window keeps: first those of audio, kept or merged, then those of padding.

        The shape is (windows, widest, D), D being the size of a state; windows that keep fewer are filled up with
        zeros.
        """
        rows = []
        for (count, _budget, _seed), chosen, padding, window_states in zip(
            self.rows, self.chosen, self.padding, states, strict=True
        ):
            sound = window_states[:count]
            picked = chosen.of(sound) if isinstance(chosen, Merge) else sound[chosen.clamp(0, count - 1)]
            rows.append(torch.cat([picked, window_states[padding.to(window_states.device)]]))
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def attach(self, stack: ExitStack, decide: Callable[[torch.Tensor], None]) -> None:
        """Hook the decoder so that it attends only to the kept states, until the given `stack` closes.

        `decide` gets the encoder's full states, shape (windows, S, D), once, when prefill starts.
        """
        decoder, widest = self.lm.decoder, max(self.widths)
        mask: torch.Tensor | None = None
        if min(self.widths) < widest:
            hidden = torch.arange(widest) >= torch.tensor(self.widths)[:, None]
            lowest = torch.finfo(self.lm.model.dtype).min
            mask = torch.zeros(hidden.shape, dtype=self.lm.model.dtype).masked_fill(hidden, lowest)[:, None, None]
            mask = mask.to(self.lm.device)

        def replace(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            handle.remove()
            decide(kwargs["encoder_hidden_states"])
            return args, {**kwargs, "encoder_hidden_states": self.kept(kwargs["encoder_hidden_states"])}

        def hide(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return args, {**kwargs, "encoder_attention_mask": mask}

        handle = stack.enter_context(decoder.register_forward_pre_hook(replace, with_kwargs=True))
        for layer in self.lm.decoder_layers if mask is not None else ():
            stack.enter_context(layer.register_forward_pre_hook(hide, with_kwargs=True))

    def inside(self) -> bool:
        """Tell whether all indices that the method chose are in range.

        Called after the `generate` call, since it waits for the GPU.
        """
        rows = zip(self.chosen, self.rows, strict=True)
        return all(exists(choice, count, budget) for choice, (count, budget, _seed) in rows)

    def kept_positions(self) -> tuple[torch.Tensor, ...]:
        """Return, on the CPU, each sample's kept positions in its virtual prompt.

        The virtual prompt holds the states of each window of the sample, then the decoder's forced tokens.
        """
        positions, kept = [], zip(self.chosen, self.padding, strict=True)
        prompt = self.inputs.audio_mask.shape[1]
        for states, length in zip(self.inputs.states, self.inputs.prompt_tokens, strict=True):
            stays = torch.ones(prompt, dtype=torch.bool)
            for window in range(len(states)):
                (choice, padding), begin = next(kept), prompt - length + window * self.total
                stays[begin : begin + self.total] = False
                stays[begin + (choice.kept if isinstance(choice, Merge) else choice).cpu()] = True
                stays[begin + padding] = True
            stays[: prompt - length] = False
            positions.append(stays.nonzero().flatten())
        return tuple(positions)

    def merges(self) -> tuple[Merge | None, ...] | None:
        """Return for each sample how the states of all its windows were merged; None if states were dropped instead."""
        chosen, merges = iter(self.chosen), []
        for states in self.inputs.states:
            choices = [next(chosen) for _ in states]
            parts = [choice for choice in choices if isinstance(choice, Merge)]
            if len(parts) < len(choices):
                return None
            merges.append(Merge.joined(parts))
        return tuple(merges)
