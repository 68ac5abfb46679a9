"""`summary.json` from hand-made records: every figure worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from builders import a_failed_record, a_record

from audiomarathon.runs.summary import summarise


class CountingTask:
    """A task whose metric is how many records it was given."""

    key, headline = "counting", "macro_f1"

    def summarise(self, records: list[dict[str, Any]], *, seed: int) -> dict[str, Any]:
        return {"n": len(records), "score": 0.5, "seed": seed}


def answered(**changes: Any) -> dict[str, Any]:
    """An untimed record of a sample that went well."""
    sizes = {"audio_tokens": 100, "kept_audio_tokens": 50, "kv_lengths": [10, 6], "kv_bytes": 16, "new_tokens": 5}
    return a_record(clip_seconds=60.0, peak_memory_bytes=7, **sizes) | changes


def timed(
    load: float, preprocess: float, encoder: float, llm_prefill: float, decode: float, **changes: Any
) -> dict[str, Any]:
    stages = {
        "load": load, "preprocess": preprocess, "encoder": encoder, "llm_prefill": llm_prefill,
        "prefill": encoder + llm_prefill, "decode": decode, "scoring": decode / 8,
    }  # fmt: skip
    return answered(time=stages, **changes)


FAILED = a_failed_record()
RECORDS = [
    timed(1, 2, 3, 4, 8, new_tokens=5, forced_decode={"per_token": 2.0}),  # 18 s in all, 2 s a token
    timed(2, 4, 6, 8, 16, new_tokens=3, forced_decode={"per_token": 8.0}),  # 36 s in all, 8 s a token
    timed(3, 6, 9, 12, 0.5, new_tokens=1, clip_seconds=49.0, finish="length", forced_decode=None),  # 30.5 s in all
]


def summary(records: list[dict[str, Any]], expected: int = 3, throughput: float | None = None) -> dict[str, Any]:
    return summarise(CountingTask(), records, expected=expected, seed=7, audio_seconds_per_second=throughput)


@pytest.mark.parametrize(
    ("good", "bad", "expected", "complete"),
    [(3, 0, 3, True), (2, 0, 3, False), (2, 1, 3, False), (3, 1, 3, False), (4, 0, 3, False), (0, 3, 3, False)],
)
def test_complete_is_as_many_answers_as_expected_and_no_error(
    good: int, bad: int, expected: int, complete: bool
) -> None:
    found = summary([answered()] * good + [FAILED] * bad, expected)
    assert found["complete"] is complete
    assert (found["n"], found["errors"], found["expected"]) == (good, bad, expected)


@pytest.mark.parametrize(
    ("stage", "mean", "p50", "p95"),
    [
        ("load_s", 2, 2, 2.9),
        ("preprocess_s", 4, 4, 5.8),
        ("encoder_s", 6, 6, 8.7),
        ("llm_prefill_s", 8, 8, 11.6),
        ("prefill_s", 14, 14, 20.3),
        ("decode_s", 24.5 / 3, 8, 15.2),  # of 0.5, 8, 16: 95 % of the way is 8 + 0.9 * 8
        ("scoring_s", 24.5 / 24, 1, 1.9),
        ("decode_per_token_s", 5, 5, 7.7),  # 8 / (5 - 1) and 16 / (3 - 1); a single token has no rate
        ("forced_decode_per_token_s", 5, 5, 7.7),
        ("total_s", 84.5 / 3, 30.5, 35.45),  # load + preprocess + prefill + decode: 18, 36, 30.5
    ],
)
def test_times_by_hand(stage: str, mean: float, p50: float, p95: float) -> None:
    spread = summary([*RECORDS, FAILED])["timing"][stage]
    assert spread == {"mean": pytest.approx(mean), "p50": pytest.approx(p50), "p95": pytest.approx(p95)}


def test_rates_by_hand() -> None:
    timing = summary(RECORDS, throughput=999.0)["timing"]
    assert timing["tokens_per_second"] == pytest.approx(6 / 24)  # 4 + 2 tokens after the first, in 8 + 16 s
    assert timing["audio_seconds_per_second"] == pytest.approx(169 / 84.5)


def test_no_rate_below_two_tokens() -> None:
    timing = summary([timed(1, 2, 3, 4, 5, new_tokens=1), timed(1, 2, 3, 4, 5, new_tokens=0)])["timing"]
    assert timing["decode_per_token_s"] is None
    assert timing["tokens_per_second"] is None
    assert timing["forced_decode_per_token_s"] is None
    assert timing["decode_s"]["mean"] == 5


def test_counts_and_sizes_by_hand() -> None:
    records = [
        answered(finish="length", audio_tokens=100, kv_bytes=16, peak_memory_bytes=7, kv_lengths=[10, 6]),
        answered(finish="length", audio_tokens=200, kv_bytes=20, peak_memory_bytes=9, kv_lengths=[20, 7]),
        answered(finish="stop", audio_tokens=600, kv_bytes=60, peak_memory_bytes=None, kv_lengths=[60, 8]),
    ]
    found = summary([*records, FAILED])
    assert found["cut_by_token_limit"] == 2
    assert (found["audio_seconds"], found["audio_tokens"], found["kept_audio_tokens"]) == (180.0, 300, 50)
    assert (found["kv_bytes"], found["kv_lengths"], found["peak_memory_bytes"]) == (32, [30, 7], 9)
    assert (found["score"], found["seed"], found["headline"]) == (0.5, 7, "macro_f1")


def test_what_one_record_does_not_say_is_not_averaged_over_the_others() -> None:
    found = summary([answered(), answered(kept_audio_tokens=None, kv_lengths=None, kv_bytes=None)])
    assert (found["kept_audio_tokens"], found["kv_lengths"], found["kv_bytes"]) == (None, None, None)


def test_an_untimed_run_has_only_the_throughput_that_was_measured_outside() -> None:
    assert summary([answered()], throughput=12.5)["timing"] == {"audio_seconds_per_second": 12.5}


def test_nothing_answered_has_no_score() -> None:
    found = summary([FAILED])
    assert (found["n"], found["score"], found["peak_memory_bytes"], found["audio_tokens"]) == (0, None, None, None)
