"""Measure the time that our own code takes: to choose what to keep, to gather it, and in decode."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from audiomarathon.compression.dropping import Drop
from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.models.audio_lm import AudioLM
from efficiency.stages import forced, prepare


@contextmanager
def gathering_timed(lm: AudioLM) -> Iterator[list[tuple[Any, Any]]]:
    """Yield a list that collects (start, end) marks of the clock around each gathering of kept tokens in the block.

    Hidden states, cos and sin, and masks are gathered for the layers after a drop.
    """
    spans: list[tuple[Any, Any]] = []
    originals = {name: getattr(Drop, name) for name in ("rows", "prefill_mask")}
    inside = [False]

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if inside[0]:
                return work(*args)
            inside[0], start = True, lm.clock.mark()
            try:
                return work(*args)
            finally:
                inside[0] = False
                spans.append((start, lm.clock.mark()))

        return call

    for name, work in originals.items():
        setattr(Drop, name, timed(work))
    try:
        yield spans
    finally:
        for name, work in originals.items():
            setattr(Drop, name, work)


def choosing_and_gathering(lm: AudioLM, seconds: float, method: Method, repeats: int) -> float:
    """Return the time of choosing and gathering the kept tokens, as a share of the LLM prefill without compression.

    It is the median over repeats.
    """
    inputs = prepare(lm, round(seconds * 25))
    shares = []
    with encoder_shared(lm):
        forced(lm, inputs, method, 1)
        for _ in range(repeats):
            base = forced(lm, inputs, Base(), 1)
            with gathering_timed(lm) as spans:
                generation = forced(lm, inputs, method, 1)
            gathering = sum(lm.clock.seconds(start, end) for start, end in spans)
            shares.append((generation.scoring + gathering) / base.stages.llm_prefill)
    return statistics.median(shares)


def decode_against_control(lm: AudioLM, seconds: float, name: str, tokens: int, repeats: int) -> list[float]:
    """Return decode times of a prompt pruned by one audio token ÷ those of a prompt with one token fewer.

    There is one ratio per pair of calls.

    Caches are equally long on both sides (except in the layers below the layer K of a token pruner), so an excess above
    1 is the overhead of our code.
    """
    total = round(seconds * 25)
    pruned = get_method(name, round(1 / total, 6))
    assert kept_count(total, pruned.ratio) == total - 1
    sides = {"pruned": (prepare(lm, total), pruned), "control": (prepare(lm, total - 1), Base())}
    encoded: dict[str, list[Any]] = {}
    ratios = []
    with encoder_shared(lm) as memory:
        for repeat in range(-1, repeats):  # the first pair warms up
            times = {}
            for side in sides if repeat % 2 else reversed(sides):
                memory.output[:] = encoded.get(side, [])
                times[side] = forced(lm, *sides[side], tokens).stages.decode
                encoded[side] = list(memory.output)
            if repeat >= 0:
                ratios.append(times["pruned"] / times["control"])
    return ratios


def overheads(lm: AudioLM, seconds: float, *, repeats: int, decode_tokens: int) -> dict[str, Any]:
    """Measure the time that our own code adds to prefill and decode, at one duration of audio; return it as a dict."""
    decode = {
        name: decode_against_control(lm, seconds, name, decode_tokens, max(5, repeats)) for name in ("fast_v", "snapkv")
    }
    return {
        "seconds": seconds,
        "choosing_and_gathering_share_of_base_prefill": {
            name: choosing_and_gathering(lm, seconds, get_method(name, 0.5), repeats)
            for name in ("fast_v", "dart", "snapkv")
        },
        "decode_against_control": {
            name: {"median": statistics.median(each), "lowest": min(each), "highest": max(each), "each": each}
            for name, each in decode.items()
        },
    }
