"""Drop or merge states between the layers of an audio tower, so that its later layers and the LLM compute less.

Each window keeps its share of its own audio tokens, and `pooling` states for each of them, so that whole audio tokens
reach the LLM. Numbers follow from counts alone, so the prompt has fewer audio tokens before the tower runs. The states
of a window's padding are thinned at a uniform stride by the same ratio: all windows stay equally wide, and sound and
padding keep their shares. Hooks on the tower's layers select states, and the masks or windows of their attention.
"""

from __future__ import annotations

import bisect
import inspect
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from audiomarathon.compression.dropping import call_of
from audiomarathon.compression.method import at_stride, kept_count
from audiomarathon.compression.states import Choose
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.merge import Merge

if TYPE_CHECKING:
    from torch import nn

    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs

#: The fraction of all dropped states that are gone from a layer on: pairs of (layer, fraction), the last of them 1.
Steps = Sequence[tuple[int, float]]


@dataclass
class _Step:
    """What each window keeps from layer `layer` on: its first `before[w]` states become `after[w]`, then `rest[w]`.

    `before`, `after` count states of audio tokens. `rest` has the indices of other states (padding) among the window's
    present states. `chosen` is filled by the method. `total` is the number of all states before the step.
    """

    layer: int
    before: list[int]
    after: list[int]
    rest: list[torch.Tensor]
    begins: list[int]
    total: int
    chosen: list[torch.Tensor | Merge]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of states that each window has after the step; windows without a state are left out."""
        sizes = (kept + len(rest) for kept, rest in zip(self.after, self.rest, strict=True))
        return tuple(size for size in sizes if size)

    def selection(self) -> torch.Tensor | Merge:
        """Return what is kept of all windows' states, flattened: indices, or a merge whose last group is to be cut."""
        rows = list(zip(self.chosen, self.rest, self.before, self.begins, strict=True))
        picked = [one.kept if isinstance(one, Merge) else one for one in self.chosen]
        kept = torch.cat(
            [
                torch.cat([begin + own.clamp(0, max(0, count - 1)), begin + rest.to(own.device)])
                for own, (_one, rest, count, begin) in zip(picked, rows, strict=True)
            ]
        )
        if not any(isinstance(one, Merge) for one in self.chosen):
            return kept
        group = torch.full((self.total,), len(kept), device=kept.device)  # the last group takes what is dropped
        group[kept] = torch.arange(len(kept), device=kept.device)
        weight = torch.ones(self.total, device=kept.device)
        made = 0
        for one, rest, count, begin in rows:
            if isinstance(one, Merge):
                group[begin : begin + count] = made + one.group.long().clamp(0, max(0, len(one.kept) - 1))
                weight[begin : begin + count] = one.weight.float()
            made += (len(one.kept) if isinstance(one, Merge) else len(one)) + len(rest)
        return Merge(torch.cat([kept, kept[:1]]), group, weight)


class TowerDrop:
    """What each window of a batch keeps of its states, with the hooks on the tower, and the shorter prompt.

    Parameters
    ----------
    choose
        Called for each window and step that drop something.
    steps
        Where in the tower states are dropped.
    looks
        Whether `choose` needs the states. If not, it is called before prefill.

    Attributes
    ----------
    budgets
        Number of audio tokens that each sample keeps.
    width
        Number of states of each padded window after the last step; 0 if windows follow each other without padding.
    """

    def __init__(self, lm: AudioLM, inputs: Inputs, ratio: float, choose: Choose, *, steps: Steps, looks: bool) -> None:
        self.lm, self.inputs, self.choose, self.looks = lm, inputs, choose, looks
        self.states = states = lm.tower_states(inputs)
        self.kept = [kept_count(tokens, ratio) for _count, tokens in states.windows]
        self.width = states.pooling * kept_count(states.width // states.pooling, ratio)
        self.owner, self.seeds = self._owners()
        self.budgets = [0] * len(inputs.seeds)
        for sample, tokens in zip(self.owner, self.kept, strict=True):
            self.budgets[sample] += tokens
        self.steps = self._steps(steps)
        if not looks:
            for step in self.steps:
                self._decide(step, None)

    def _owners(self) -> tuple[list[int], list[int]]:
        """Return the sample to which each window belongs, and each window's seed."""
        ends, begun = list(itertools.accumulate(self.inputs.audio_tokens)), 0
        owner, seeds = list[int](), list[int]()
        for _count, tokens in self.states.windows:
            sample = bisect.bisect_right(ends, begun) if tokens else owner[-1]
            seeds.append(self.inputs.seeds[sample] + owner.count(sample))
            owner.append(sample)
            begun += tokens
        return owner, seeds

    def _steps(self, steps: Steps) -> list[_Step]:
        pooling, width = self.states.pooling, self.states.width
        before = [pooling * tokens for _count, tokens in self.states.windows]
        whole = [width or count for count, _tokens in self.states.windows]
        last = [pooling * tokens for tokens in self.kept]
        rest = [size - count for size, count in zip(whole, before, strict=True)]
        final = [self.width - count if width else 0 for count in last]
        first, found = before, list[_Step]()
        for layer, share in steps:
            begins = [0, *itertools.accumulate(a + b for a, b in zip(before, rest, strict=True))]
            wide = width - round(share * (width - self.width))
            after = [one - round(share * (one - least)) for one, least in zip(first, last, strict=True)]
            left = final
            if width:  # a padded window keeps `wide` states: its padding makes up for rounding
                left = [
                    min(max(wide - count, least), most) for count, least, most in zip(after, final, rest, strict=True)
                ]
                after = [wide - count for count in left]
            thinned = [count + at_stride(most, keep) for count, most, keep in zip(before, rest, left, strict=True)]
            found.append(_Step(layer, before, after, thinned, begins[:-1], begins[-1], []))
            before, rest = after, left
        return found

    def _decide(self, step: _Step, states: torch.Tensor | None) -> None:
        """Choose what each window keeps; `states` are all windows' present states, flattened: shape (N, D)."""
        step.chosen = []
        for count, keep, begin, seed in zip(step.before, step.after, step.begins, self.seeds, strict=True):
            own = None if states is None else states[begin : begin + count]
            chosen = self.choose(count, keep, seed, own).to(self.lm.device)
            step.chosen.append(chosen if isinstance(chosen, Merge) else chosen.sort().values)

    def shortened(self) -> Inputs:
        """Return the batch with a prompt that has as many audio tokens as the tower will return."""
        inputs, tensors = self.inputs, dict(self.inputs.tensors)
        if inputs.states:
            return inputs
        rows = []
        for sample, (mask, there) in enumerate(zip(inputs.audio_mask, inputs.attention_mask.bool(), strict=True)):
            stays = there & ~mask
            for spots, keep in self._spots(sample, mask):
                stays[spots[:keep]] = True
            rows.append(stays.nonzero().flatten())
        longest = max(map(len, rows))
        pad = self.lm.tokenizer.pad_token_id
        ids = tensors["input_ids"].new_full((len(rows), longest), pad)
        there = torch.zeros_like(ids)
        audio = torch.zeros_like(ids, dtype=torch.bool)
        for row, stays in enumerate(rows):
            begin = longest - len(stays)
            ids[row, begin:], there[row, begin:] = tensors["input_ids"][row, stays], 1
            audio[row, begin:] = inputs.audio_mask[row, stays]
        tensors |= {"input_ids": ids, "attention_mask": there}
        windows = inputs.windows
        if windows is not None:
            fresh = {"pool_indices": self.states.pooling * torch.arange(sum(self.kept), device=ids.device)}
            known = {name: fresh.get(name, value) for name, value in windows.arguments.items()}
            windows = replace(windows, arguments=known, later=tuple(step.lengths for step in self.steps))
        return replace(inputs, tensors=tensors, audio_mask=audio, windows=windows)

    def _spots(self, sample: int, mask: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        """Return the prompt positions of each of a sample's windows, and how many audio tokens the window keeps."""
        counts = [
            (tokens, keep)
            for (_states, tokens), keep, owner in zip(self.states.windows, self.kept, self.owner, strict=True)
            if owner == sample
        ]
        parts = torch.split(mask.nonzero().flatten(), [tokens for tokens, _keep in counts])
        return [(part, keep) for part, (_tokens, keep) in zip(parts, counts, strict=True)]

    def attach(self, stack: ExitStack, scoring: Callable[[], Any], *, keys: bool) -> None:
        """Hook the tower's layers until the stack closes.

        Parameters
        ----------
        scoring
            Returns a context manager for the time in which the method chooses.
        keys
            Whether the method sees the states' keys in the layer that they enter, and not the states.
        """
        tower: Any = self.lm.audio_encoder
        lengths = getattr(tower, "_get_feat_extract_output_lengths", None)
        if self.states.width and lengths is not None:
            left = torch.tensor(self.kept, device=self.lm.device)
            stack.enter_context(patched_attribute(tower, lengths.__name__, lambda frames: (lengths(frames)[0], left)))
        stack.enter_context(patched_attribute(self.lm, "shares_tower", False))
        steps = {step.layer: step for step in self.steps}
        kept: list[torch.Tensor] = []
        made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def hooked(layer: nn.Module, index: int) -> Any:
            signature = inspect.signature(layer.forward)
            now = next(step for step in reversed(self.steps) if step.layer <= index)

            def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                handle.remove()  # decode does not run the tower
                call = call_of(signature, args, kwargs)
                if index in steps:
                    hidden = call["hidden_states"]
                    if self.looks:
                        with scoring():
                            self._decide(now, self._shown(layer, hidden, keys=keys).flatten(0, -2))
                    selected = now.selection()
                    call["hidden_states"] = self._reduced(hidden, selected)
                    own = selected.kept[:-1] if isinstance(selected, Merge) else selected
                    kept[:] = [kept[0][own] if kept else own]
                    made.clear()
                if "cu_seqlens" in call:
                    ends = [0, *itertools.accumulate(now.lengths)]
                    call["cu_seqlens"] = torch.tensor(ends, dtype=torch.int32, device=call["cu_seqlens"].device)
                    call["max_seqlen"] = max(now.lengths)
                elif (mask := call.get("attention_mask")) is not None:
                    if id(mask) not in made:  # all layers get the same mask
                        made[id(mask)] = mask, self._thinned(mask, kept[0])
                    call["attention_mask"] = made[id(mask)][1]
                return (), call

            handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
            return handle

        for index, layer in enumerate(self.lm.tower_layers):
            if index >= self.steps[0].layer:
                stack.enter_context(hooked(layer, index))

    @staticmethod
    def _shown(layer: Any, hidden: torch.Tensor, *, keys: bool) -> torch.Tensor:
        shown: torch.Tensor = layer.self_attn.k_proj(layer.self_attn_layer_norm(hidden)) if keys else hidden
        return shown

    def _reduced(self, hidden: torch.Tensor, selected: torch.Tensor | Merge) -> torch.Tensor:
        """Return the kept states: (windows, S', D) of padded windows (windows, S, D), or (N', D) of states (N, D)."""
        flat = hidden.flatten(0, -2)
        rows = selected.of(flat)[:-1] if isinstance(selected, Merge) else flat[selected.to(flat.device)]
        return rows.view(len(hidden), -1, rows.shape[-1]) if hidden.dim() == 3 else rows

    def _thinned(self, mask: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Select the kept states of padded windows in a mask: (windows, S), or (windows, 1, S or 1, S)."""
        own = kept.to(mask.device).view(len(self.states.windows), -1) % self.states.width
        if mask.dim() == 2:
            return mask.gather(1, own)
        mask = mask.expand(len(own), -1, -1, -1)
        keys = mask.gather(-1, own[:, None, None].expand(*mask.shape[:-1], -1))
        if keys.shape[-2] == 1:
            return keys
        return keys.gather(-2, own[:, None, :, None].expand(*keys.shape[:2], -1, keys.shape[-1]))

    def inside(self) -> bool:
        """Tell whether every chosen index exists. Called after the `generate` call, since it waits for the GPU."""
        places = [
            (part, limit)
            for step in self.steps
            for count, keep, one in zip(step.before, step.after, step.chosen, strict=True)
            for part, limit in ([(one.kept, count), (one.group, keep)] if isinstance(one, Merge) else [(one, count)])
        ]
        return all(bool(((part >= 0) & (part < limit)).all()) for part, limit in places if len(part))

    def _origins(self) -> list[torch.Tensor]:
        """Return, for each window, the index of each kept state (of merged states, the first) before the first step."""
        found = [torch.arange(count) for count in self.steps[0].before]
        for step in self.steps:
            picked = [(one.kept if isinstance(one, Merge) else one).cpu() for one in step.chosen]
            found = [origin[pick] for origin, pick in zip(found, picked, strict=True)]
        return found

    def kept_positions(self) -> tuple[torch.Tensor, ...]:
        """Return each sample's kept positions in its whole prompt, on the CPU.

        A kept audio token takes the position of the audio token to which the first of its states belonged.
        """
        origins, pooling, found = self._origins(), self.states.pooling, list[torch.Tensor]()
        for sample, mask in enumerate(self.inputs.audio_mask.cpu()):
            stays = self.inputs.attention_mask[sample].bool().cpu() & ~mask
            windows = [window for window, owner in enumerate(self.owner) if owner == sample]
            length = int(self.inputs.attention_mask[sample].sum())
            for nth, (window, (spots, _keep)) in enumerate(zip(windows, self._spots(sample, mask), strict=True)):
                stays[spots[origins[window][::pooling] // pooling]] = True
                if self.inputs.states:  # the virtual prompt holds the states of padding too
                    begin = len(mask) - length + nth * self.states.width
                    stays[begin + len(spots) : begin + self.states.width] = False
                    stays[begin + self._padding(window)] = True
            found.append(stays.nonzero().flatten())
        return tuple(found)

    def _padding(self, window: int) -> torch.Tensor:
        """Return the indices of the states of a window's padding that are left after the last step."""
        (count, _tokens), found = self.states.windows[window], torch.arange(self.states.width)
        found = found[count:]
        for step in self.steps:
            found = found[step.rest[window] - step.before[window]]
        return found

    def merges(self) -> tuple[Merge | None, ...] | None:
        """Return each sample's merge of audio tokens; None if nothing is merged, or if a token is several states."""
        if self.states.pooling > 1 or not all(isinstance(one, Merge) for step in self.steps for one in step.chosen):
            return None
        found = []
        for sample in range(len(self.budgets)):
            kept, group, weight, begun, made = [], [], [], 0, 0
            for window, owner in enumerate(self.owner):
                if owner != sample:
                    continue
                own = self._merged(window)
                kept.append(own.kept + begun)
                group.append(own.group + made)
                weight.append(own.weight)
                begun, made = begun + len(own.group), made + len(own.kept)
            found.append(Merge(torch.cat(kept), torch.cat(group), torch.cat(weight)) if kept else None)
        return tuple(found)

    def _merged(self, window: int) -> Merge:
        """Return the merge of a window over all steps."""
        whole: Merge | None = None
        for step in self.steps:
            one = step.chosen[window]
            assert isinstance(one, Merge)
            later = one if whole is None else None
            if whole is not None:
                later = Merge(whole.kept[one.kept], one.group[whole.group], whole.weight * one.weight[whole.group])
            whole = later
        assert whole is not None
        return whole
