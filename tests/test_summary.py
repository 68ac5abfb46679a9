"""`summary.json` from synthetic records: all numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import a_failed_record, a_record, a_session, a_verdict, typed

from audiomarathon.benchmarks import get_task
from audiomarathon.engine.run import Result
from audiomarathon.records import Verdict
from audiomarathon.report.tables import _whole, result_row
from audiomarathon.runs.summary import busy, is_busy, summarise, threads_of

TAU = get_task("tau")
ALONE = {"wall_s": 10.0, "audio_s": 125.0, "settings_side_by_side": 1}


def answered(**changes: Any) -> dict[str, Any]:
    """Return an untimed record of an answered sample."""
    sizes = {"audio_tokens": 100, "kept_audio_tokens": 50, "kv_lengths": [10, 6], "kv_bytes": 16, "new_tokens": 5}
    return a_record(clip_seconds=60.0, peak_memory_bytes=7, **sizes, **a_verdict("A", "ab", right=True)) | changes


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


def summary(records: list[dict[str, Any]], expected: int = 3, **facts: Any) -> dict[str, Any]:
    """Return the summary of records with new ids, with verdicts on all answered records."""
    known = [replace(typed(record), id=str(number)) for number, record in enumerate(records)]
    verdicts = {record.id: Verdict(record, TAU.scorer.judge(record)) for record in known if record.answered}
    run = {"samples": [str(number) for number in range(expected)], "settings": {"seed": 7}, **facts}
    return summarise(TAU, run, known, verdicts)


def test_a_run_is_complete_if_all_expected_replies_exist_without_an_error() -> None:
    for good, bad in ((3, 0), (2, 0), (2, 1), (3, 1), (4, 0), (0, 3)):
        figures = summary([answered()] * good + [FAILED] * bad)
        counts = [figures[name] for name in ("complete", "n", "errors", "expected")]
        assert counts == [(good, bad) == (3, 0), good, bad, 3]


@pytest.mark.parametrize(
    ("stage", "mean", "p50", "p95"),
    [
        ("load_s", 2, 2, 2.9),
        ("preprocess_s", 4, 4, 5.8),
        ("encoder_s", 6, 6, 8.7),
        ("llm_prefill_s", 8, 8, 11.6),
        ("prefill_s", 14, 14, 20.3),
        ("decode_s", 24.5 / 3, 8, 15.2),  # of 0.5, 8, 16: the 95th percentile is 8 + 0.9 * 8
        ("scoring_s", 24.5 / 24, 1, 1.9),
        ("decode_per_token_s", 5, 5, 7.7),  # 8 / (5 - 1) and 16 / (3 - 1); a single token has no rate
        ("forced_decode_per_token_s", 5, 5, 7.7),
        ("total_s", 84.5 / 3, 30.5, 35.45),  # load + preprocess + prefill + decode: 18, 36, 30.5
    ],
)
def test_mean_median_and_p95_of_stage_times_equal_values_by_hand(
    stage: str, mean: float, p50: float, p95: float
) -> None:
    spread = summary([*RECORDS, FAILED])["timing"][stage]
    assert spread == {"mean": pytest.approx(mean), "p50": pytest.approx(p50), "p95": pytest.approx(p95)}


def test_a_row_of_the_results_table_states_the_median_times() -> None:
    row = result_row(Result(Path("tau", "tiny", "base-0"), "base-0", summary(RECORDS)))
    assert (row["decode_s"], row["decode_per_token_s"], row["total_s"]) == (8, 5, 30.5)


def test_percentages_ending_in_one_half_are_rounded_up() -> None:
    assert [_whole(share) for share in (0.49, 0.5, 2.5, 33.3, 100)] == ["0", "1", "3", "33", "100"]


def test_tokens_and_audio_seconds_per_second_equal_values_by_hand() -> None:
    timing = summary(RECORDS, sessions=[ALONE])["timing"]
    assert timing["tokens_per_second"] == pytest.approx(6 / 24)  # 4 + 2 tokens after the first, in 8 + 16 s
    assert timing["audio_seconds_per_second"] == pytest.approx(169 / 84.5)


def test_replies_shorter_than_two_tokens_have_no_decode_rate() -> None:
    timing = summary([timed(1, 2, 3, 4, 5, new_tokens=count) for count in (1, 0)])["timing"]
    rates = ("decode_per_token_s", "tokens_per_second", "forced_decode_per_token_s")
    assert [timing[name] for name in rates] == [None] * 3
    assert timing["decode_s"]["mean"] == 5


def test_token_counts_and_byte_sizes_of_the_summary_equal_values_by_hand() -> None:
    records = [
        answered(finish="length", audio_tokens=100, kv_bytes=16, peak_memory_bytes=7, kv_lengths=[10, 6]),
        answered(finish="length", audio_tokens=200, kv_bytes=20, peak_memory_bytes=9, kv_lengths=[20, 7]),
        answered(finish="stop", audio_tokens=600, kv_bytes=60, peak_memory_bytes=None, kv_lengths=[60, 8]),
    ]
    figures = summary([*records, FAILED])
    assert figures["cut_by_token_limit"] == 2
    assert (figures["audio_seconds"], figures["audio_tokens"], figures["kept_audio_tokens"]) == (180.0, 300, 50)
    assert (figures["kv_bytes"], figures["kv_lengths"], figures["peak_memory_bytes"]) == (32, [30, 7], 9)
    assert (figures["score"], figures["macro_f1"], figures["headline"], figures["task"]) == (1, 1, "macro_f1", "tau")
    assert (figures["figure"]["title"], figures["scorer"]) == ("macro-F1", TAU.scorer.version)


def test_a_count_of_the_summary_is_none_if_one_record_lacks_it() -> None:
    figures = summary([answered(), answered(kept_audio_tokens=None, kv_lengths=None, kv_bytes=None)])
    assert (figures["kept_audio_tokens"], figures["kv_lengths"], figures["kv_bytes"]) == (None, None, None)


def test_the_price_of_a_run_is_the_sum_over_all_replies_or_none_if_one_is_unknown() -> None:
    for costs, total in (([0.25, 0.5], 0.75), ([0.25, None], None), ([0.25, 0.0], 0.25), ([], None)):
        assert summary([answered(cost=cost) for cost in costs], len(costs))["cost"] == total


def test_the_throughput_of_an_untimed_run_is_computed_from_session_wall_times() -> None:
    beside = ALONE | {"settings_side_by_side": 3}  # its wall time covers several settings
    for sessions in ([ALONE], [ALONE, beside, {"wall_s": None}]):
        assert summary([answered()], sessions=sessions)["timing"] == {"audio_seconds_per_second": 12.5}
    for sessions in ([], [beside]):
        assert summary([answered()], sessions=sessions)["timing"] == {"audio_seconds_per_second": None}


def test_a_run_without_replies_has_no_score() -> None:
    figures = summary([FAILED])
    none = ("score", "peak_memory_bytes", "audio_tokens")
    assert [figures[name] for name in ("n", *none)] == [0, None, None, None]


def test_a_reply_without_a_verdict_counts_as_unscored() -> None:
    records = [typed(answered(id=name)) for name in "ab"]
    verdicts = {"a": Verdict(records[0], TAU.scorer.judge(records[0]))}
    figures = summarise(TAU, {"samples": ["a", "b"]}, records, verdicts)
    assert (figures["n"], figures["unscored"], figures["complete"], figures["errors"]) == (1, 1, False, 0)
    assert figures["audio_seconds"] == 120.0  # both samples were answered


def test_a_machine_is_busy_if_threads_of_the_run_and_other_processes_exceed_its_cores() -> None:
    cases = {(1.0, 2): True, (1.0, 1): False, (2.0, 1): True, (0.4, 2): False, (0.6, 2): True, (None, 2): False}
    for (foreign, threads), expected in cases.items():
        assert is_busy({"foreign_processes": foreign, "cores": 2}, threads) is expected


def test_the_busy_machine_check_counts_only_one_thread_for_a_run_on_a_gpu() -> None:
    session = a_session(threads=4) | {"workers_sharing": 2}
    assert [threads_of(session, device) for device in ("a cpu", "a gpu", None)] == [8, 1, 1]


def test_a_run_is_marked_as_timed_on_a_busy_machine_if_any_session_that_timed_it_was_busy() -> None:
    loaded = a_session("busy", busy=1)
    before, after = ({**loaded, name: a_session()["load_before"]} for name in ("load_after", "load_before"))
    for session, expected in ((loaded, True), (before, True), (after, True), (a_session("busy"), False)):
        facts = {"identity": {"device": "a cpu"}, "sessions": [a_session("quiet"), session]}
        asked = [typed(timed(1, 1, 1, 1, 1, session=f"{name} 17")) for name in ("quiet", "busy")]
        assert busy(facts, asked) is expected
        assert busy(facts, asked[:1]) is False
        assert busy(facts, [replace(asked[1], time=None)]) is False
