"""Checks of methods: ratio 0 equals base, dropping tokens equals masking them, and pressing equals hiding entries."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from audiomarathon.certify.bench import STEPS, Bench, Replied, applicable, match, placed, pruner, replies_of
from audiomarathon.certify.check_result import Finding
from audiomarathon.certify.oracles import Hidden, HiddenEntries, HiddenInSteps, merged
from audiomarathon.compression.composed import Composed
from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.press import KVPress
from audiomarathon.compression.presses.ada_snapkv import AdaSnapKV
from audiomarathon.compression.presses.snapkv import SnapKV
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.layers import call_of
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.merge import Merge
from audiomarathon.models.prompt import Inputs
from audiomarathon.models.static_decode import BLOCK
from audiomarathon.models.trace import Trace
from audiomarathon.settings import EAGER, GRAPH

RATIO = 0.7


def ratio_zero(bench: Bench, methods: tuple[Method, ...]) -> Finding:
    """Check that every method at ratio 0 gives logits bit-identical to base's, in prefill and decode."""
    able, why_not = applicable(bench.lm, [placed(bench.lm, method) for method in methods])
    pruners = [method for method in able if isinstance(method, TokenPruner)]
    elsewhere = [dataclasses.replace(method, at=place) for method in pruners for place in ("input", "tower")]
    able += applicable(bench.lm, [method for method in elsewhere if method not in able])[0]
    base = bench.base.logits
    moved = [method.key for method in able if not torch.equal(bench.reply(bench.inputs, method).logits, base)]
    if moved:
        return Finding.fail(f"not bit-identical: {', '.join(moved)}")
    skipped = f"; not applicable: {', '.join(why_not)}" if why_not else ""
    return Finding.ok(f"{len(able)} methods and places bit-identical over {STEPS} tokens{skipped}")


def graph_equals_eager(bench: Bench) -> Finding:
    """Check that decode as a CUDA graph gives the logits of transformers' loop.

    The check runs for base, and for one method of each kind: pruner, press, both joined. On a GPU, base's reply is
    longer than a block (the tokens for which a graph is captured), so that the step is captured twice.
    """
    lm = bench.lm
    if lm.why_eager:
        return Finding.not_applicable(f"decode of this model stays eager: {lm.why_eager}")
    at_layer, press = pruner(lm, RATIO), SnapKV(RATIO)
    joined = Composed(first=at_layer, second=press)
    others = [at_layer, dataclasses.replace(at_layer, at="input"), press, AdaSnapKV(RATIO), joined]
    able, _why_not = applicable(lm, others)
    matches = []
    for method in (Base(), *able):
        steps = BLOCK + STEPS if lm.device.type == "cuda" and isinstance(method, Base) else STEPS
        done = []
        for how in (GRAPH, EAGER):
            with patched_attribute(lm, "decode", how):
                done.append(bench.generate(bench.inputs, method, steps))
        if done[0].stages.decode_setup is None:
            return Finding.fail(f"decode of {method.label} did not run as a graph")
        matches.append(bench.match(*(replies_of(generation)[0] for generation in done)))
    furthest = max(matches, key=lambda comparison: comparison.distance)
    good = all(comparison.within(bench.tolerance) for comparison in matches)
    return Finding.of(good, f"base and {len(able)} methods: {furthest.figure(bench.tolerance)}")


def chunks_equal_whole(bench: Bench) -> Finding:
    """Check that prefill in three chunks gives the same reply as prefill of the whole prompt.

    The check runs for base, and for one method of each kind: pruner, press, both joined.
    """
    lm = bench.lm
    if lm.whole_because:
        return Finding.not_applicable(f"prefill of this model takes whole prompts: {lm.whole_because}")
    at_layer, press = pruner(lm, RATIO), SnapKV(RATIO)
    joined, ranking = Composed(first=at_layer, second=press), FastV(RATIO, layer=at_layer.layer)
    able, _why_not = applicable(lm, [ranking, at_layer, press, joined])
    able = [method for method in able if method.prefills_in_chunks]
    matches = []
    for method in (Base(), *able):
        whole = bench.reply(bench.inputs, method)
        with patched_attribute(lm, "prefill_chunk", bench.inputs.prompt_tokens[0] // 3 + 1):
            matches.append(bench.match(bench.reply(bench.inputs, method), whole))
    furthest = max(matches, key=lambda comparison: comparison.distance)
    good = all(comparison.within(bench.tolerance) for comparison in matches)
    return Finding.of(good, f"base and {len(able)} methods: {furthest.figure(bench.tolerance)}")


def dropping(bench: Bench, method: TokenPruner) -> Finding:
    """Check that dropping tokens at layer K gives the same reply as hiding them from attention from layer K on."""
    usual = placed(bench.lm, dataclasses.replace(method, ratio=RATIO))
    elsewhere = (dataclasses.replace(usual, layer=layer) for layer in range(len(bench.lm.decoder_layers)))
    method = next((variant for variant in (usual, *elsewhere) if not applicable(bench.lm, [variant])[1]), usual)
    if why_not := applicable(bench.lm, [method])[1]:
        return Finding.not_applicable(why_not[method.key])
    entered: list[tuple[torch.Tensor, ...]] = []
    generation = bench.generate(bench.inputs, _Watched(inner=method, layer=method.layer, entered=entered))
    bench.reply(bench.inputs, _Watched(inner=Base(), layer=method.layer, entered=entered), steps=1)
    assert generation.kept_positions is not None
    (kept,) = generation.kept_positions
    pruned, whole = entered
    # For an encoder-decoder: the states of all windows, padding included, begin the virtual prompt.
    windows, length = whole[0].shape[:2]
    states = windows * length if bench.lm.cross else 0
    if wrong := wrong_positions(bench.inputs, kept, states):
        return Finding.fail(wrong)
    (merge,) = generation.merges or (None,)
    if states:
        kept = kept[kept < states]
        counts = torch.bincount(kept // length, minlength=windows)  # a window that keeps fewer states has fillers
        pruned = (torch.cat([row[:count] for row, count in zip(pruned[0], counts, strict=True)])[None], *pruned[1:])
        whole = (whole[0].flatten(0, 1)[None], *whole[1:])
    rows = [part.index_select(-2, kept.to(part.device)) for part in whole]
    if merge is not None:
        audio = bench.inputs.audio_mask[0].nonzero().flatten()
        places = torch.isin(kept, audio.cpu()).nonzero().flatten()
        rows[0] = rows[0].index_copy(-2, places.to(rows[0].device), merged(whole[0], audio, merge))
    same = torch.equal(pruned[0], rows[0]) if merge is None else _same_sums(pruned[0], rows[0], merge)
    if not same or not all(torch.equal(part, row) for part, row in zip(pruned[1:], rows[1:], strict=True)):
        return Finding.fail(
            f"the hidden states that enter layer {method.layer} are not those of the tokens reported as kept"
        )
    (reply,) = replies_of(generation)
    hidden = bench.reply(bench.inputs, Hidden(kept=kept, first=method.layer, merge=merge))
    finding = compared(bench, reply, hidden)
    where = "" if method == usual else f"at layer {method.layer}, because the method refuses layer {usual.layer}: "
    return Finding(finding.verdict, f"{where}{finding.figure}")


def dropping_in_steps(bench: Bench) -> Finding:
    """Check that dropping tokens in two steps gives the same reply as hiding them in two steps.

    The method ranks by attention if such a method applies to the model.
    """
    layers, half = len(bench.lm.decoder_layers), kept_count(bench.inputs.audio_tokens[0], RATIO / 2)
    tried = [
        kind(RATIO, schedule=((first, RATIO / 2), (second, RATIO)))
        for kind in (FastV, Frame)
        for first in range(layers)
        for second in range(first + 1, layers)
    ]
    method = next((candidate for candidate in tried if not applicable(bench.lm, [candidate])[1]), None)
    if method is None:
        return Finding.not_applicable("no two layers of this model can drop tokens")
    generation = bench.generate(bench.inputs, method)
    steps = [(first, kept) for first, (kept,) in generation.kept_steps or ()]
    text = bench.inputs.prompt_tokens[0] - bench.inputs.audio_tokens[0]
    if (wrong := wrong_positions(bench.inputs, steps[-1][1])) or len(steps[0][1]) != text + half:
        return Finding.fail(
            wrong or f"{len(steps[0][1]) - text} audio tokens were left after step one, planned: {half}"
        )
    (reply,) = replies_of(generation)
    finding = compared(bench, reply, bench.reply(bench.inputs, HiddenInSteps(steps=steps)))
    return Finding(finding.verdict, f"{method.label}: {finding.figure}")


def _same_sums(sums: torch.Tensor, expected: torch.Tensor, merge: Merge) -> bool:
    """Tell whether the merged states `sums` equal the `expected` ones, up to rounding; both have the shape (…, k, D).

    Rows are compared by the L2 norm. A row is a sum in float32, rounded once to the model's precision; sums of more
    tokens round more.
    """
    largest = float(merge.group.bincount().max())
    limit = 2 * torch.finfo(sums.dtype).eps + 2 * torch.finfo(torch.float32).eps * largest**0.5
    apart = (sums.float() - expected.float()).norm(dim=-1)
    return bool((apart <= limit * expected.float().norm(dim=-1)).all())


def compared(bench: Bench, reply: Replied, oracle: Replied) -> Finding:
    """Check that a method's reply equals that of its oracle, which hides tokens or entries instead of removing them.

    Also report the reply's distance from base. Oracles are in `oracles.py`.
    """
    comparison, moves = bench.match(reply, oracle), match(reply, bench.base).distance
    return Finding.of(
        comparison.within(bench.tolerance), f"{comparison.figure(bench.tolerance)}; moves base by {moves:.2g}"
    )


def wrong_positions(inputs: Inputs, kept: torch.Tensor, states: int = 0) -> str:
    """Return, as text, what is wrong with the prompt positions that a pruner kept; "" if nothing is.

    All text and as many audio tokens as planned must be kept. Of the first `states` positions, which are the states of
    an encoder-decoder, those of padding may be dropped.
    """
    audio = inputs.audio_mask[0].cpu()
    stays = torch.zeros_like(audio)
    stays[kept] = True
    if lost := int((~audio & ~stays)[states:].sum()):
        return f"{lost} text tokens were dropped"
    if (count := int((audio & stays).sum())) != (planned := kept_count(inputs.audio_tokens[0], RATIO)):
        return f"{count} audio tokens were kept, but {planned} were planned"
    return ""


def pressing(bench: Bench, method: KVPress) -> Finding:
    """Check that a press keeps the planned KV-cache entries and bytes.

    Also check that the model replies as if the other entries were hidden.
    """
    method = dataclasses.replace(method, ratio=RATIO)
    if why_not := applicable(bench.lm, [method])[1]:
        return Finding.not_applicable(why_not[method.key])
    lm, inputs = bench.lm, bench.inputs
    caches: list[Any] = []

    def collect(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        caches.append(kwargs["past_key_values"])

    with lm.decoder.register_forward_pre_hook(collect, with_kwargs=True):
        full = bench.generate(inputs, steps=1)
        pressed = bench.generate(inputs, method, steps=1, keep_entries=True)
    assert pressed.kept_entries is not None
    (total,), (prompt,), layers = inputs.audio_tokens, inputs.prompt_tokens, len(lm.decoder_layers)
    planned = tuple(prompt - total + budget for budget in method.budgets(total, layers))
    if pressed.kv_lengths != planned or sum(planned) != layers * (prompt - total + kept_count(total, RATIO)):
        return Finding.fail(f"the cache holds {pressed.kv_lengths} entries a layer, but {planned} were planned")
    if pressed.kv_bytes * layers * prompt != full.kv_bytes * sum(planned):
        return Finding.fail(f"the cache takes {pressed.kv_bytes} of {full.kv_bytes} bytes, not the planned share")
    for index, kept in enumerate(pressed.kept_entries):
        before, after = (cache.layers[index] for cache in caches)
        for name in ("keys", "values"):
            rows = getattr(before, name)[0][kept.to(getattr(before, name).device)]
            if not torch.equal(rows, getattr(after, name)[0].flatten(0, 1)):
                return Finding.fail(f"layer {index}: the cached {name} are not the entries reported as kept")
    del caches[:]
    hidden = bench.reply(inputs, HiddenEntries(kept=pressed.kept_entries))
    finding = compared(bench, bench.reply(inputs, method), hidden)
    return Finding(finding.verdict, f"{finding.figure}; KV {pressed.kv_bytes / full.kv_bytes:.0%}")


@dataclass(frozen=True)
class _Watched(Method):
    """Wraps a method, and records what enters `layer` in prefill: hidden states, and rotary cos and sin."""

    key: ClassVar[str] = "watched"

    inner: Method = dataclasses.field(default_factory=Base)
    layer: int = 0
    entered: list[tuple[torch.Tensor, ...]] = dataclasses.field(default_factory=list)

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Apply the inner method inside the `with` block, and record what enters the layer number `layer` in prefill.

        Recording comes after the inner method's hooks on that layer have run.
        """

        def record(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            handle.remove()
            call = call_of(signature, args, kwargs)
            states = call["encoder_hidden_states"] if lm.cross else call["hidden_states"]
            self.entered.append((states.clone(), *(call.get("position_embeddings") or ())))

        layer = lm.decoder_layers[0 if lm.cross else self.layer]
        signature = inspect.signature(layer.forward)
        with (
            self.inner.applied_to(lm, inputs) as trace,
            layer.register_forward_pre_hook(record, with_kwargs=True) as handle,
        ):
            yield trace
