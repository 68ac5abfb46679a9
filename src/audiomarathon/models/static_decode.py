"""Decode greedily by a static step: the same kernels on fixed tensors each time, which a GPU replays as a CUDA graph.

A decode step of transformers spends most of its time in Python and in launching kernels, however small the KV cache is.
Here the prompt's cache entries are copied once into fixed buffers, with room for new entries in blocks of :data:`BLOCK`
tokens. Positions, lengths and masks are tensors, so a step needs no Python. On one GPU, the step is captured as a graph
once per block and then replayed; on a CPU, the step's code runs directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from audiomarathon.errors import warn
from audiomarathon.models.kernels import products
from audiomarathon.models.layers import source_of, window_of
from audiomarathon.models.loading import patched_attribute
from audiomarathon.settings import EAGER, GRAPH

if TYPE_CHECKING:
    from audiomarathon.models.prompt import Inputs
    from audiomarathon.models.trace import Trace

#: Number of new tokens for which a captured step has room; after them, it is captured again with more room.
BLOCK = 128
#: Smallest token limit at which a capture can save time; replies with a lower limit are decoded eagerly.
FEWEST = 4
_FEW_EPSILONS = 8  # the captured step runs the same kernels, whose workspaces may differ
_ATTEND: dict[str, Any] = ALL_ATTENTION_FUNCTIONS._local_mapping  # these entries win over the library's functions


def one_device(lm: Any) -> bool:
    """Tell whether one CPU or one CUDA GPU holds the whole model."""
    devices = {parameter.device for parameter in lm.model.parameters()}
    return len(devices) == 1 and devices.pop().type in ("cpu", "cuda")


def hooked(decoder: nn.Module) -> str:
    """Return the name of a module of the decoder that has hooks; "" if none has. A CUDA graph would leave hooks out."""
    for name, module in decoder.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return name or "the decoder"
    return ""


class PositionProbe:
    """Stores the position of the last prompt token in `last`, shape (…, B or 1, 1), when the rotary embedding is called
    in prefill.
    """

    def __init__(self) -> None:
        self.last = torch.empty(0)

    def watching(self, rotary: nn.Module) -> RemovableHandle:
        """Hook a rotary embedding to read the positions of its next call; return the hook's handle.

        The hook runs after those that were added before.
        """

        def read(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
            self.last = given[..., -1:].clone()
            handle.remove()

        handle = rotary.register_forward_pre_hook(read, with_kwargs=True)
        return handle


@dataclass
class _Mask:
    """Which KV-cache entries a decode step does not attend to; layers with equal masks share one object.

    `hidden` is True at these entries, shape (B samples or 1, Hkv heads or 1, 1, entries), in the order of
    :class:`_Layer`. `window` is the length of a sliding window in positions; 0 without a window. With a window,
    `places` (B, 1, 1, S) has each prompt entry's original position, counted back from −1 at the prompt's end; dropped
    tokens count too. Fillers lie further back than any window.
    """

    hidden: torch.Tensor
    window: int = 0
    places: torch.Tensor | None = None


@dataclass
class _Layer:
    """A layer's keys and values in fixed buffers: first the entries of new tokens, then fillers, then the prompt's
    entries.

    Keys and values have the shape (B, Hkv, entries, d): samples, key heads, entries, numbers of a head. The fillers
    (unused entries) make the number of entries a multiple of :data:`BLOCK`, since matrix products of other sizes use
    kernels that are several times slower.
    """

    keys: torch.Tensor
    values: torch.Tensor
    mask: _Mask


class _PassedOn:
    """Placeholder for the KV cache in a decode step of fixed shapes: it stores nothing.

    The attention function itself writes the new keys and values.
    """

    is_compileable = False

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
        return keys, values

    def get_seq_length(self, *_args: Any) -> int:
        return 0


class _Step:
    """One decode step: read the newest token, store its KV-cache entries in every layer, choose the next token.

    All tensors that outlive a step are fixed, so that a graph may replay it. `at` counts steps; `token` (B, 1) is the
    newest token, and `done` (B,) tells which replies have ended. `tokens` and `highest` (room, B) hold each step's
    token and highest logit, which is NaN if any logit is NaN.
    """

    def __init__(
        self,
        lm: Any,
        layers: Sequence[_Layer],
        last: torch.Tensor,
        first: torch.Tensor,
        ends: Sequence[int],
    ) -> None:
        self.lm, self.last, self.layers, device = lm, last, layers, first.device
        self.masks = list({id(layer.mask): layer.mask for layer in layers}.values())
        self._sources = [source_of(lm.decoder.config, index) for index in range(len(lm.decoder_layers))]
        self._rotate = lm.decoder.rotary_emb.forward  # called directly, so that hooks do not run
        self.token, self.at = first[:, None].clone(), torch.zeros(1, dtype=torch.long, device=device)
        self.ends = torch.tensor(ends, dtype=torch.long, device=device)
        self.done = self._ended(first)
        self.all_done = self.done.all()
        self.pad = torch.tensor(lm.tokenizer.pad_token_id or 0, device=device)
        self.room = 0
        self.tokens, self.highest = first.new_zeros(0, len(first)), torch.zeros(0, len(first), device=device)
        self.logits = torch.zeros(0)
        # The decoder passes a mask of four dimensions unchanged to its layers, and they ignore it.
        self._given: dict[str, Any] = {
            "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
            "position_ids": last.expand(*last.shape[:-2], len(first), 1),
            "past_key_values": _PassedOn(),
            "use_cache": True,
        }

    def grow(self) -> None:
        """Make room for :data:`BLOCK` more tokens in the buffers, and in the table of rotary cosines and sines."""
        for mask in self.masks:
            mask.hidden = _wider(mask.hidden, 3, self.room, fill=True)
        for layer in self.layers:  # layer by layer, so that a layer's old buffer is freed before the next
            layer.keys = _wider(layer.keys, 2, self.room, fill=0)
            layer.values = _wider(layer.values, 2, self.room, fill=0)
        self.tokens = torch.cat([self.tokens, self.tokens.new_zeros(BLOCK, len(self.token))])
        self.highest = torch.cat([self.highest, self.highest.new_zeros(BLOCK, len(self.token))])
        self.room += BLOCK
        self.places = torch.arange(self.room, device=self.at.device)
        like = torch.empty(0, dtype=self.lm.model.dtype, device=self.at.device)
        positions = self._given["position_ids"] + 1 + self.places
        self.tables: dict[Any, tuple[torch.Tensor, ...]] = {
            kind: self._rotate(like, positions, *kind) for kind in self.lm.rotary_kinds
        }

    def __call__(self) -> None:
        """Decode one token for each sample, and store it with its highest logit."""
        unseen = {0: self.places > self.at}
        for mask in self.masks:
            if mask.window not in unseen:
                unseen[mask.window] = unseen[0] | (self.places <= self.at - mask.window)
            mask.hidden[..., : self.room] = unseen[mask.window]
            if mask.places is not None:
                width = mask.places.shape[-1]
                torch.le(mask.places, self.at - mask.window, out=mask.hidden[..., -width:])
        logits = self.lm.step(self.token, self._given)[:, -1].float()
        token = torch.where(self.done, self.pad, logits.argmax(-1))
        self.done.logical_or_(self._ended(token))
        self.all_done.copy_(self.done.all())
        self.tokens.index_copy_(0, self.at, token[None])
        self.highest.index_copy_(0, self.at, logits.amax(-1)[None])
        if not len(self.logits):
            self.logits = torch.empty_like(logits)
        self.logits.copy_(logits)
        self.token.copy_(token[:, None])
        self.at.add_(1)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the `with` block, make the decoder's layers attend by :meth:`attend`, and rotate by the prepared
        table.
        """
        name = self.lm.attn_implementation
        before = _ATTEND.get(name)
        with ExitStack() as stack:
            stack.callback(lambda: _ATTEND.pop(name, None) if before is None else _ATTEND.update({name: before}))
            stack.enter_context(patched_attribute(self.lm.decoder.rotary_emb, "forward", self._rotation))
            stack.enter_context(self.lm.stepping())
            _ATTEND[name] = self.attend
            yield

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_rest: Any,
        scaling: float | None = None,
        **_kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Store a layer's KV-cache entries of the newest token; then attend to all visible entries, and return the
        output.

        `query` has shape (B, H, 1, d), `key` and `value` (B, Hkv, 1, d); the result (B, 1, H, d). A layer that uses an
        earlier layer's keys and values has no entries of its own. Values are summed within each block, then over blocks
        in float32, so that a GPU works on all blocks at once.
        """
        index: int = module.layer_idx  # type: ignore[assignment]
        layer = self.layers[source := self._sources[index]]
        if source == index:
            layer.keys.index_copy_(2, self.at, key)
            layer.values.index_copy_(2, self.at, value)
        batch, heads, _one, size = query.shape
        rows = query.reshape(batch, key.shape[1], -1, size)  # queries that share a key head
        scores = products(rows, layer.keys, size**-0.5 if scaling is None else scaling)
        weights = scores.masked_fill_(layer.mask.hidden, -torch.inf).softmax(-1)
        blocks = weights.view(*weights.shape[:-1], -1, BLOCK).transpose(2, 3)  # (B, Hkv, blocks, H / Hkv, BLOCK)
        blocks = blocks.to(value.dtype, memory_format=torch.contiguous_format)
        summed = products(blocks, layer.values.view(batch, key.shape[1], -1, BLOCK, size).mT).sum(2)
        return summed.to(query.dtype).reshape(batch, 1, heads, size), None

    def _rotation(self, _like: Any, position_ids: Any, *kind: Any) -> tuple[torch.Tensor, ...]:  # noqa: ARG002
        return tuple(part.index_select(-2, self.at) for part in self.tables[kind])

    def _ended(self, token: torch.Tensor) -> torch.Tensor:
        return (token[:, None] == self.ends).any(-1)

    def state(self) -> list[torch.Tensor]:
        """Return copies of the tensors that a step changes and a later step reads: token, count, ended replies."""
        return [part.clone() for part in (self.token, self.at, self.done)]

    def restore(self, state: Sequence[torch.Tensor]) -> None:
        """Set the step's tensors back to the values that :meth:`state` returned."""
        for part, before in zip((self.token, self.at, self.done), state, strict=True):
            part.copy_(before)


def _wider(part: torch.Tensor, dim: int, room: int, *, fill: int) -> torch.Tensor:
    """Return a tensor widened by :data:`BLOCK` tokens after its first `room` entries, and padded to a multiple of
    blocks.
    """
    new, prompt = part.narrow(dim, 0, room), part.narrow(dim, room, part.shape[dim] - room)
    more = BLOCK - part.shape[dim] % -BLOCK
    between = part.new_full([more if at == dim else count for at, count in enumerate(part.shape)], fill)
    return torch.cat([new, between, prompt], dim)


def _layers(lm: Any, inputs: Inputs, trace: Trace, cache: Any) -> list[_Layer]:
    """Move the KV cache's entries into fixed buffers after prefill; return a :class:`_Layer` for each layer that has a
    cache.

    Each :class:`_Layer` also tells which entries are hidden from decode steps. Fillers and padding are on the left. If
    a layer's heads hold different numbers of entries, the cache has padded them (`by_head`). A layer with a sliding
    window caches only the entries that the first step attends to.
    """
    entries = (
        trace.entries or trace.row_lengths or [(count,) * len(lm.decoder_layers) for count in inputs.prompt_tokens]
    )
    layers = []
    masks: dict[tuple[int, ...], _Mask] = {}  # layers with equal masks share one mask
    config = lm.decoder.config
    for index, stored in enumerate(cache.layers):
        if source_of(config, index) != index:
            continue  # the last layers, which have no entries of their own
        counts, window = [row[index] for row in entries], window_of(config, index) or 0
        if hasattr(stored, "by_head"):
            keys, values, real = stored.by_head()
            mask = _Mask(~real[:, :, None])
        else:
            keys, values, width = stored.keys, stored.values, stored.keys.shape[2]
            if (fact := (window, width, *counts)) not in masks:
                begins = torch.tensor([width - count for count in counts], device=keys.device)[:, None, None, None]
                filler = torch.arange(width, device=keys.device) < begins
                places = places_in_prompt(inputs, trace, index, filler) if window else None
                masks[fact] = _Mask(filler, window, places)
            mask = masks[fact]
        layers.append(_Layer(keys, values, mask))
        cache.layers[index] = None  # frees the cache's memory once the entries are in a buffer
    return layers


def places_in_prompt(inputs: Inputs, trace: Trace, index: int, filler: torch.Tensor) -> torch.Tensor:
    """Return the prompt positions of a layer's last KV-cache entries, shape (B, 1, 1, entries).

    Positions are counted back from −1 at the prompt's end. `filler` (B, 1, 1, entries) marks padding, and fillers of
    samples that keep fewer entries than others; these get positions further back than any window.
    """
    width, prompt = filler.shape[-1], inputs.audio_mask.shape[1]
    places = torch.arange(-width, 0, device=filler.device).expand(filler.shape)
    if trace.positions is not None:
        rows = [(trace.positions(index, row)[-width:] - prompt).to(filler.device) for row in range(len(filler))]
        places = torch.stack([nn.functional.pad(row, (width - len(row), 0)) for row in rows])[:, None, None]
    return places.masked_fill(filler, torch.iinfo(torch.long).min)


@dataclass
class Decoded:
    """The tokens that static steps generated after the first token, with their logits and times.

    Attributes
    ----------
    tokens, highest
        Token and highest logit of each step, shape (steps, B). A sample that has ended gets padding.
    logits
        Each step's logits (B, vocabulary); empty unless `keep_logits` was set.
    end
        The clock's mark when the last of these tokens existed.
    setup
        Pairs of the clock's marks: just before and just after the step was prepared (captured).
    captured
        False if a CUDA graph gave wrong results or could not be captured.
    """

    tokens: torch.Tensor
    highest: torch.Tensor
    logits: list[torch.Tensor]
    end: Any
    setup: list[tuple[Any, Any]] = field(default_factory=list)
    captured: bool = True


def decode(
    lm: Any,
    inputs: Inputs,
    trace: Trace,
    cache: Any,
    last: torch.Tensor,
    first: torch.Tensor,
    *,
    steps: int,
    ends: Sequence[int],
    keep_logits: bool,
) -> Decoded:
    """Generate up to `steps` tokens after each sample's first token by static steps; return them with logits and times.

    `first` (B,) has the first tokens, and `last` the prompts' last positions. The method's hooks on decode steps are
    removed. Whether all replies have ended is checked one step late, so that the GPU never waits for Python; the
    additional step counts neither as token nor as time.
    """
    for handle in trace.decode_hooks:
        handle.remove()
    begin = lm.clock.mark()
    step = _Step(lm, _layers(lm, inputs, trace, cache), last, first, ends)
    done = Decoded(step.tokens, step.highest, [], begin)
    watch, taken, wanted = _EndWatch(first.device), 0, steps if not ends or not bool(step.all_done) else 0
    with step.in_place():
        run: Any = step
        while taken < wanted:
            if taken == step.room:
                if taken and ends and watch.read():
                    break
                run, held = _ready(lm, step, lm.decode == GRAPH)
                done.captured &= held
                done.setup.append((begin if not taken else done.end, lm.clock.mark()))
            run()
            mark = lm.clock.mark()
            if ends and taken % BLOCK and watch.read():
                break
            if ends:
                watch.note(step.all_done)
            if keep_logits:
                done.logits.append(step.logits.clone())
            taken, done.end = taken + 1, mark
    done.tokens, done.highest = step.tokens[:taken], step.highest[:taken]
    return done


class _EndWatch:
    """Reads a flag from the GPU, such as whether all replies have ended.

    The flag is read one step late, so that Python does not wait for the step that runs now.
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu, self.turn = device.type == "cuda", 0
        self.flags = [torch.zeros((), dtype=torch.bool, pin_memory=self.on_gpu) for _ in range(2)]
        self.device = device
        self.events = [torch.cuda.Event() for _ in range(2)] if self.on_gpu else []  # type: ignore[no-untyped-call]

    def note(self, flag: torch.Tensor) -> None:
        """Start copying `flag` (a tensor on the device) to the CPU, with its value after all steps launched so far."""
        self.turn ^= 1
        self.flags[self.turn].copy_(flag, non_blocking=True)
        if self.on_gpu:
            self.events[self.turn].record(torch.cuda.current_stream(self.device))

    def read(self) -> bool:
        """Return the value that :meth:`note` copied last."""
        if self.on_gpu:
            self.events[self.turn].synchronize()
        return bool(self.flags[self.turn])


def _ready(lm: Any, step: _Step, capture: bool) -> tuple[Any, bool]:
    """Prepare a step with more room; return (the function that runs it, False if a CUDA graph failed, else True).

    On a GPU the function replays a graph. The graph's first result is compared with that of the step itself; if it
    differs, or the capture fails, decode continues without graphs, with a warning.
    """
    step.grow()
    if not _capturable(step) or not lm.clock.captures:
        return step, True
    if not capture:
        return step, False
    before = step.state()
    try:
        graph, expected = _capture(lm, step)
        step.restore(before)
        graph.replay()
        logits = step.logits.clone()
        limit = _FEW_EPSILONS * torch.finfo(lm.model.dtype).eps * float(expected.abs().max())
        apart = float((logits - expected).nan_to_num().abs().max())
        why = f"its logits differ by {apart:.2g} from the step itself; allowed: {limit:.2g}" if apart > limit else ""
        if not torch.equal(logits.isnan(), expected.isnan()):
            why = "its logits hold NaN where those of the step itself do not"
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        why = f"it cannot be captured: {str(error).strip().splitlines()[0][:200]}"
    step.restore(before)
    if not why:
        return graph.replay, True
    lm.decode = EAGER
    warn(f"a decode step does not work as a graph here ({why}); from now on decode is eager, as with DECODE=eager")
    return step, False


def _capturable(step: _Step) -> bool:
    return step.at.device.type == "cuda"


def _capture(lm: Any, step: _Step) -> tuple[Any, torch.Tensor]:
    """Run a step once, then capture it as a CUDA graph; return (the graph, the logits of the first run).

    `torch.cuda.graph` is not used, since it would also empty the allocator's cache, so that the next prefill would have
    to fill it again. The first run loads kernels and workspaces, which is not allowed in a capture. Both runs use the
    same stream, since every stream keeps a workspace. The model keeps the last graph, since a memory pool is freed with
    its last graph. Other threads may use the GPU meanwhile, for example to prepare the next sample.
    """
    current = torch.cuda.current_stream(step.at.device)
    stream, last = lm.last_graph or (torch.cuda.Stream(step.at.device), None)  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(current)
    with torch.cuda.device(step.at.device), torch.cuda.stream(stream):
        step()
        expected = step.logits.clone()
        graph.capture_begin(pool=last.pool() if last else None, capture_error_mode="thread_local")
        try:
            step()
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    current.wait_stream(stream)
    lm.last_graph = stream, graph
    return graph, expected
