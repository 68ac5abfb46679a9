"""Drop or merge states between the layers of an audio tower, so that its later layers and the LLM compute less.

Each window keeps a share of its audio tokens, and `pooling` states for each kept token, so that whole audio tokens
reach the LLM. How many are kept depends only on how many there are, not on their content, so the prompt can be
shortened before the tower runs. The states of a window's padding are dropped at a uniform stride by the same ratio: all
windows stay equally wide, and audio and padding keep their shares. Hooks on the tower's layers select states, and the
masks or windows of their attention.
"""

from __future__ import annotations

import bisect
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from audiomarathon.compression.method import at_stride, kept_count
from audiomarathon.compression.states import Choose, exists
from audiomarathon.models.layers import call_of
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.merge import Merge

if TYPE_CHECKING:
    from torch import nn

    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Inputs

#: Pairs (layer, fraction): from this layer on, this fraction of all states to drop is gone. The last fraction is 1.
Steps = Sequence[tuple[int, float]]


@dataclass
class _Step:
    """One of the drops of states inside the audio tower, at layer `layer`, for all windows.

    Window w enters with `before[w]` states of audio tokens, then states of padding. Of the former, `after[w]` remain,
    which the method chooses (`chosen`); of the latter, those with the indices `rest[w]` in the window. `begins[w]` is
    the index of the window's first state among the `total` states that enter.
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
        """Return the states that all windows keep, joined into one sequence: as indices, or as a rule to merge them.

        A merge has one more group at its end, for all dropped states, which the caller cuts off.
        """
        kept, merged, made = list[torch.Tensor](), [], 0
        for choice, rest, count, begin in zip(self.chosen, self.rest, self.before, self.begins, strict=True):
            indices = choice.kept if isinstance(choice, Merge) else choice
            kept.append(begin + torch.cat([indices.clamp(0, max(0, count - 1)), rest.to(indices.device)]))
            if isinstance(choice, Merge):
                merged.append((slice(begin, begin + count), made, choice))
            made += len(kept[-1])
        flat = torch.cat(kept)
        if not merged:
            return flat
        group, weight = torch.full((self.total,), made, device=flat.device), torch.ones(self.total, device=flat.device)
        group[flat] = torch.arange(made, device=flat.device)  # the last group takes all dropped states
        for spots, first, merge in merged:
            group[spots] = first + merge.group.long().clamp(0, max(0, len(merge.kept) - 1))
            weight[spots] = merge.weight.float()
        return Merge(torch.cat([flat, flat[:1]]), group, weight)


class TowerDrop:
    """The tower states that each window of a batch keeps, with the hooks on the tower, and the shortened prompt.

    Parameters
    ----------
    choose
        Method's choice, called for each window in each step: it gets the positions of the window's states of audio
        tokens, the number to keep, a seed, and the states (None unless `looks`); it returns indices or a merge.
    steps
        Layers of the tower at which states are dropped.
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
        """Return two lists with an item for each window: the index of the sample that it belongs to, and its seed."""
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
        first, planned = before, list[_Step]()
        for layer, share in steps:
            begins = [0, *itertools.accumulate(a + b for a, b in zip(before, rest, strict=True))]
            after = [start - round(share * (start - least)) for start, least in zip(first, last, strict=True)]
            left = final
            if width:  # a padded window keeps `wide` states: the number of padding states evens out rounding
                wide, rows = width - round(share * (width - self.width)), zip(after, final, rest, strict=True)
                left = [min(max(wide - count, least), most) for count, least, most in rows]
                after = [wide - count for count in left]
            thinned = [
                (count + at_stride(most, keep)).to(self.lm.device)
                for count, most, keep in zip(before, rest, left, strict=True)
            ]
            planned.append(_Step(layer, before, after, thinned, begins[:-1], begins[-1], []))
            before, rest = after, left
        return planned

    def _decide(self, step: _Step, states: torch.Tensor | None) -> None:
        """Choose which states each window keeps in one step, and store the choices in `step.chosen`.

        `states` has the present states of all windows, shape (N, D).
        """
        step.chosen = []
        for count, keep, begin, seed in zip(step.before, step.after, step.begins, self.seeds, strict=True):
            window_states = None if states is None else states[begin : begin + count]
            chosen = self.choose(torch.arange(count, device=self.lm.device), keep, seed, window_states).to(
                self.lm.device
            )
            step.chosen.append(chosen if isinstance(chosen, Merge) else chosen.sort().values)

    def shortened(self) -> Inputs:
        """Return the batch with prompts that have only as many audio tokens as the tower will return."""
        inputs, tensors = self.inputs, dict(self.inputs.tensors)
        if inputs.states:
            return inputs
        ids, audio = list[torch.Tensor](), list[torch.Tensor]()
        for sample, (mask, there) in enumerate(zip(inputs.audio_mask, inputs.attention_mask.bool(), strict=True)):
            stays = there & ~mask
            for spots, keep in self._spots(sample, mask):
                stays[spots[:keep]] = True
            ids.append(tensors["input_ids"][sample, stays])
            audio.append(mask[stays])
        padded = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left")
        tensors["input_ids"] = padded(ids, padding_value=self.lm.tokenizer.pad_token_id)
        tensors["attention_mask"] = padded([torch.ones_like(row) for row in ids])
        windows = inputs.windows
        if windows is not None:
            fresh = {"pool_indices": self.states.pooling * torch.arange(sum(self.kept), device=self.lm.device)}
            known = {name: fresh.get(name, value) for name, value in windows.arguments.items()}
            windows = replace(windows, arguments=known, later=tuple(step.lengths for step in self.steps))
        return replace(inputs, tensors=tensors, audio_mask=padded(audio), windows=windows)

    def _spots(self, sample: int, mask: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        """Return (prompt positions of its audio tokens, how many of them to keep) for each window of a sample."""
        counts = [
            (tokens, keep)
            for (_states, tokens), keep, owner in zip(self.states.windows, self.kept, self.owner, strict=True)
            if owner == sample
        ]
        parts = torch.split(mask.nonzero().flatten(), [tokens for tokens, _keep in counts])
        return [(part, keep) for part, (_tokens, keep) in zip(parts, counts, strict=True)]

    def attach(self, stack: ExitStack, scoring: Callable[[], Any], *, keys: bool) -> None:
        """Hook the tower's layers until the given `stack` closes; the hooks drop or merge states.

        Parameters
        ----------
        scoring
            Function that returns a context manager, in which the method chooses, so that its time can be measured.
        keys
            Whether the method sees the keys of the states in the layer that they enter, instead of the states.
        """
        tower: Any = self.lm.audio_encoder
        lengths = getattr(tower, "_get_feat_extract_output_lengths", None)
        if self.states.width and lengths is not None:
            left = torch.tensor(self.kept, device=self.lm.device)
            stack.enter_context(patched_attribute(tower, lengths.__name__, lambda frames: (lengths(frames)[0], left)))
        steps = {step.layer: step for step in self.steps}
        kept: list[torch.Tensor] = []
        made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        windows = {step.layer: [0, *itertools.accumulate(step.lengths)] for step in self.steps}
        bounds = {
            layer: torch.tensor(edges, dtype=torch.int32, device=self.lm.device) for layer, edges in windows.items()
        }

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
                    indices = selected.kept[:-1] if isinstance(selected, Merge) else selected
                    kept[:] = [kept[0][indices] if kept else indices]
                    made.clear()
                if "cu_seqlens" in call:
                    call["cu_seqlens"] = bounds[now.layer].to(call["cu_seqlens"].device)
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
        """Return the states that remain after a drop: of padded windows, (windows, S, D) becomes (windows, S', D).

        If windows follow each other without padding, (N, D) becomes (N', D).
        """
        flat = hidden.flatten(0, -2)
        rows = selected.of(flat)[:-1] if isinstance(selected, Merge) else flat[selected.to(flat.device)]
        return rows.view(len(hidden), -1, rows.shape[-1]) if hidden.dim() == 3 else rows

    def _thinned(self, mask: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Return an attention mask of padded windows, reduced to the kept states.

        `mask` has the shape (windows, S) or (windows, 1, S or 1, S); `kept` holds the indices of the kept states.
        """
        places = kept.to(mask.device).view(len(self.states.windows), -1) % self.states.width
        if mask.dim() == 2:
            return mask.gather(1, places)
        mask = mask.expand(len(places), -1, -1, -1)
        keys = mask.gather(-1, places[:, None, None].expand(*mask.shape[:-1], -1))
        if keys.shape[-2] == 1:
            return keys
        return keys.gather(-2, places[:, None, :, None].expand(*keys.shape[:2], -1, keys.shape[-1]))

    def inside(self) -> bool:
        """Tell whether all indices that the method chose are in range.

        Called after the `generate` call, since it waits for the GPU.
        """
        return all(
            exists(*window) for step in self.steps for window in zip(step.chosen, step.before, step.after, strict=True)
        )

    def _left(self, window: int) -> torch.Tensor:
        """Return, on the CPU, the indices of a window's states that remain after the last step.

        A merged group counts as its kept state. States of audio tokens come first, then those of padding.
        """
        first = self.steps[0]
        left = torch.arange(self.states.width or first.before[window])
        for step in self.steps:
            choice = step.chosen[window]
            kept = choice.kept if isinstance(choice, Merge) else choice
            left = left[torch.cat([kept, step.rest[window].to(kept.device)]).cpu()]
        return left

    def kept_positions(self) -> tuple[torch.Tensor, ...]:
        """Return each sample's kept positions in its whole prompt, on the CPU.

        A kept audio token takes the position of the audio token to which the first of its states belonged.
        """
        pooling, positions = self.states.pooling, list[torch.Tensor]()
        for sample, (mask, there) in enumerate(
            zip(self.inputs.audio_mask.cpu(), self.inputs.attention_mask.bool().cpu(), strict=True)
        ):
            stays, begin = there & ~mask, len(mask) - int(there.sum())
            windows = [window for window, owner in enumerate(self.owner) if owner == sample]
            for window, (spots, keep) in zip(windows, self._spots(sample, mask), strict=True):
                left = self._left(window)
                if self.inputs.states:  # the virtual prompt holds all states of a window
                    stays[begin : begin + self.states.width] = False
                    stays[begin + left] = True
                    begin += self.states.width
                else:
                    stays[spots[left[: pooling * keep : pooling] // pooling]] = True
            positions.append(stays.nonzero().flatten())
        return tuple(positions)

    def merges(self) -> tuple[Merge | None, ...] | None:
        """Return how each sample's states were merged (None for a sample without windows).

        Return None if any step dropped states instead, or if the model pools several states into one audio token.
        """
        every = [choice for step in self.steps for choice in step.chosen]
        if self.states.pooling > 1 or not all(isinstance(choice, Merge) for choice in every):
            return None
        by_window = zip(*(step.chosen for step in self.steps), strict=True)
        whole = [functools.reduce(Merge.then, steps) for steps in by_window]
        merges = []
        for sample in range(len(self.budgets)):
            window_merges = [merge for merge, owner in zip(whole, self.owner, strict=True) if owner == sample]
            merges.append(Merge.joined(window_merges) if window_merges else None)
        return tuple(merges)
