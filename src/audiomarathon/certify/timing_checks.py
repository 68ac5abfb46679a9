"""Checks of measurements: the times of one call's stages, and the encoder output that settings share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from audiomarathon.certify.bench import Bench, pruner
from audiomarathon.certify.check_result import Finding
from audiomarathon.compression.method import Base
from audiomarathon.costs.cost import LAUNCH_BOUND
from audiomarathon.engine import encoder_cache
from audiomarathon.engine.batches import WARM_PASS_TOKENS
from audiomarathon.engine.evaluate import run_uncounted
from audiomarathon.engine.stamp import PASS
from audiomarathon.errors import ModelError
from audiomarathon.models.busy import busy_seconds
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.timing import Stages

_FEW, _MANY, _ROUNDS, _ATTEMPTS = 4, 24, 3, 4
_FRESH = 1.15
_STAGES = ("encoder", "llm_prefill", "decode")


@dataclass(frozen=True)
class _Timed:
    """The times of the stages that one call reported, and the seconds that the call took by the wall clock."""

    stages: Stages
    wall: float


def timing(bench: Bench) -> Finding:
    """Check the recorded times: stages add up to the whole call, decode takes longer for more tokens, and prefill takes
    as long as a call for one token.

    Other work on the machine can only make a call longer. So the fastest of several calls counts, and a failed check is
    repeated; a real fault fails every time.
    """
    for _ in range(_ATTEMPTS):
        finding = _attempt(bench)
        if finding.verdict == PASS:
            break
    return finding


def _attempt(bench: Bench) -> Finding:
    rounds = [{tokens: _timed(bench, tokens) for tokens in (1, _FEW, _MANY)} for _ in range(_ROUNDS)]
    calls = [call for calls in rounds for call in calls.values()]
    if absent := [name for name in _STAGES if any(not getattr(r[_MANY].stages, name) > 0 for r in rounds)]:
        return Finding.fail(f"not measured: {', '.join(absent)}")
    few, many = (min(r[tokens].stages.decode for r in rounds) for tokens in (_FEW, _MANY))
    alone, prefill = min(r[1].wall for r in rounds), min(r[_MANY].stages.prefill for r in rounds)
    shares = [
        (call.stages.prefill + call.stages.decode + (call.stages.decode_setup or 0)) / call.wall for call in calls
    ]
    faults = []
    if any(call.stages.prefill != call.stages.encoder + call.stages.llm_prefill for call in calls):
        faults.append("prefill is not encoder + LLM prefill")
    if max(shares) > 1:
        faults.append("stages take longer than the call")
    if max(shares) < 0.8:
        faults.append("stages do not account for the call")
    if not few < many:
        faults.append(f"{_FEW} tokens took as long to decode as {_MANY}")
    if not 0.5 < prefill / alone < 2:
        faults.append("prefill is not as long as a call of one token")
    best = min((r[_MANY] for r in rounds), key=lambda call: call.wall)
    figures = ", ".join(f"{name} {1000 * getattr(best.stages, name):.1f}" for name in _STAGES)
    figure = (
        f"{figures} ms, up to {max(shares):.0%} of the call; {_FEW} and {_MANY} tokens decode in {1000 * few:.1f} and "
        f"{1000 * many:.1f} ms; prefill {1000 * prefill:.1f} ms, a call of one token {1000 * alone:.1f} ms"
    )
    return Finding.fail(f"{'; '.join(faults)}: {figure}") if faults else Finding.ok(figure)


def _timed(bench: Bench, tokens: int) -> _Timed:
    bench.lm.clock.synchronize()
    start = time.perf_counter()
    done = Base().generate(bench.lm, bench.inputs, max_new_tokens=tokens, ignore_end=True)
    bench.lm.clock.synchronize()
    return _Timed(done.stages, time.perf_counter() - start)


def fresh_lengths(bench: Bench) -> Finding:
    """Check on a GPU that the recorded call at a new prompt length takes at most 15 % longer than later calls at that
    length.

    As in a run, an uncounted call of three tokens comes first. Each attempt has a new length.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        finding = _fresh(bench, 1 + 0.13 * attempt)
        if finding.verdict == PASS:
            break
    return finding


def _fresh(bench: Bench, lengths: float) -> Finding:
    inputs = bench.lm.prepare([Prompt(bench.prompt.text, (bench.clip(4, lengths),))])

    def stages() -> Stages:
        return Base().generate(bench.lm, inputs, max_new_tokens=_MANY, ignore_end=True).stages

    run_uncounted(bench.lm, inputs, [Base()], max_new_tokens=WARM_PASS_TOKENS, ignore_end=True)
    first, later = stages(), [stages() for _ in range(_ROUNDS)]
    steady = {name: min(getattr(call, name) for call in later) for name in _STAGES}
    ratios = {name: getattr(first, name) / steady[name] for name in _STAGES}
    figure = "first ÷ later calls: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    try:
        with busy_seconds(bench.lm):
            busy = stages()
    except ModelError as error:
        figure += f"; {error}"
    else:
        shares = {name: getattr(busy, name) / steady[name] for name in _STAGES}
        bound = [f"{name} ({share:.0%} busy)" for name, share in shares.items() if share < LAUNCH_BOUND]
        figure += f"; launch-bound: {', '.join(bound) or 'none'}"
    return Finding.of(max(ratios.values()) <= _FRESH, figure)


def shared_encoder(bench: Bench) -> Finding:
    """Check that settings which share the encoder's output run it once per sample, and reply as without sharing."""
    lm, pruned = bench.lm, pruner(bench.lm)
    samples = [bench.inputs, lm.prepare([Prompt(bench.prompt.text, (bench.clip(2),))])]
    with _counted(lm.audio_tower) as runs:
        alone = [bench.reply(inputs, method).logits for inputs in samples for method in (Base(), pruned)]
        apart = len(runs)
        runs.clear()
        together = []
        for inputs in samples:
            with encoder_cache.encoder_shared(lm):
                together += [bench.reply(inputs, method).logits for method in (Base(), pruned)]
        shared = len(runs)
    if not all(torch.equal(solo, other) for solo, other in zip(alone, together, strict=True)):
        return Finding.fail(
            "replies with a shared encoder output differ from those without: a setting heard another sample"
        )
    if not runs or 2 * shared != apart:
        return Finding.fail(
            f"two settings of two samples called the encoder's modules {shared} times, expected half of {apart}"
        )
    return Finding.ok("two settings of two samples: encoded twice instead of four times; replies bit-identical")


@contextmanager
def _counted(tower: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield a list to which every call of a module inside the tower adds that module, during the `with` block.

    Calls of the tower itself are left out, since it is also called when its cached output is reused.
    """
    runs: list[nn.Module] = []
    with ExitStack() as hooks:
        for module in tower.modules():
            if module is not tower:
                hooks.enter_context(module.register_forward_hook(lambda module, _args, _out: runs.append(module)))
        yield runs
