"""What the machinery itself costs: choosing, gathering, hooks in decode; and what a sweep saves over separate runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from audiomarathon.kvpress.audio_features import encoder_shared
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.pruning.dropping import Drop
from audiomarathon.pruning.method import Base, Method, kept_count
from audiomarathon.pruning.registry import get_method
from efficiency.stages import forced, prepare

NINE = [round(0.1 * step, 1) for step in range(1, 10)]


@contextmanager
def gathering_timed(lm: AudioLM) -> Iterator[list[tuple[Any, Any]]]:
    """Collect marks around everything that is gathered for later layers (hidden states, cos and sin, masks)."""
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
    """Return the time of choosing and of gathering as share of base's LLM prefill, the median over repeats."""
    inputs = prepare(lm, round(seconds * 25))
    shares = []
    with encoder_shared(lm):
        forced(lm, inputs, method, 1)
        for _ in range(repeats):
            base = forced(lm, inputs, Base(), 1)
            with gathering_timed(lm) as spans:
                own = forced(lm, inputs, method, 1)
            gathering = sum(lm.clock.seconds(start, end) for start, end in spans)
            shares.append((own.scoring + gathering) / base.stages.llm_prefill)
    return statistics.median(shares)


def decode_overhead(lm: AudioLM, seconds: float, tokens: int, repeats: int) -> tuple[float, list[float]]:
    """Return decode under hooks ÷ base decode − 1, where one audio token is dropped, and each repeat's value."""
    total = round(seconds * 25)
    inputs = prepare(lm, total)
    method = get_method("fast_v", round(1 / total, 6))
    assert kept_count(total, method.ratio) == total - 1
    ratios = []
    with encoder_shared(lm):
        for one in (Base(), method):
            forced(lm, inputs, one, 2)
        for repeat in range(repeats):
            order = (Base(), method) if repeat % 2 else (method, Base())
            times = {one.key: forced(lm, inputs, one, tokens).stages.decode for one in order}
            ratios.append(times["fast_v"] / times["base"] - 1)
    return statistics.median(ratios), ratios


def sweep_against_runs(lm: AudioLM, seconds: float, name: str, mark: Callable[[], float]) -> tuple[float, float]:
    """Return what nine ratios take in one sweep (features and tower once) and in nine runs (each by itself)."""
    methods, tokens = [get_method(name, ratio) for ratio in NINE], round(seconds * 25)
    forced(lm, prepare(lm, tokens), methods[0], 2)
    start = mark()
    inputs = prepare(lm, tokens)
    with encoder_shared(lm):
        for method in methods:
            forced(lm, inputs, method, 2)
    swept = mark() - start
    start = mark()
    for method in methods:
        forced(lm, prepare(lm, tokens), method, 2)
    return swept, mark() - start


def overheads(lm: AudioLM, seconds: float, *, repeats: int, decode_tokens: int, cpu_time: bool) -> dict[str, Any]:
    """Measure what the machinery costs, at one duration."""
    decode, each = decode_overhead(lm, seconds, decode_tokens, max(5, repeats))
    mark = time.process_time if cpu_time else time.perf_counter
    swept, separate = sweep_against_runs(lm, seconds, "fast_v", mark)
    shares = {name: choosing_and_gathering(lm, seconds, get_method(name, 0.5), repeats) for name in ("fast_v", "dart")}
    return {
        "seconds": seconds,
        "choosing_and_gathering_share_of_base_prefill": shares,
        "decode_hooks": decode,
        "decode_hooks_each_repeat": each,
        "sweep_of_nine_s": swept,
        "nine_runs_s": separate,
        "sweep_share_of_nine_runs": swept / separate,
    }
