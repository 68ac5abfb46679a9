"""`audiomarathon compare` on made-up runs: what it pairs, refuses and concludes."""

from __future__ import annotations

import csv
import gc
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import (
    IDENTITY,
    a_failed_record,
    a_run,
    a_session,
    a_timed_choice,
    added,
    as_control,
    changed,
    changed_records,
    finished,
    lines_of,
    records_in,
    with_identity,
    write_records,
)
from conftest import call, succeed
from rich.console import Console
from rich.padding import Padding

from audiomarathon.compression.method import Method
from audiomarathon.compression.press import ONE_TOKEN
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.sweep import grid, parse_ratios
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.metrics.betting import Decision
from audiomarathon.metrics.paired import Pair, PairedResult
from audiomarathon.records import Verdict
from audiomarathon.report.comparison_text import answer, notes, ranked
from audiomarathon.report.curves import read_panels
from audiomarathon.report.render import for_width, rich_table
from audiomarathon.report.tables import comparison, comparison_row
from audiomarathon.results.beside import ACROSS, base_among
from audiomarathon.results.best import Ranking, ranking_of
from audiomarathon.results.compare import Compared, Comparison, LeftOut, compare, is_clear, lines_by_reason
from audiomarathon.results.pairs import ONE_GRAPH, Pairs, speed_up
from audiomarathon.results.savings import savings
from audiomarathon.results.status import read_status
from audiomarathon.results.systems import base_of, control_of, find_reference, missing_controls, read_systems, sweeps_of
from audiomarathon.runs.read import Run, read_runs
from audiomarathon.scoring.choice import Choice
from audiomarathon.settings import RunSettings


def compared(*paths: Path, against: str | None = None, **options: Any) -> Compared:
    sides = read_systems(paths)
    return compare(sides, find_reference(sides, against), **options)


DART = "dart-0.5-layer2"


def base_and_dart(root: Path, base: Any = (True,) * 4, dart: Any = None, *, task: str = "tau", **of_dart: Any) -> Path:
    """Write a run of base and a run of dart, equally right unless `dart` is given; return dart's folder."""
    a_run(root, "base-0", base, task=task)
    return a_run(root, DART, base if dart is None else dart, **{"task": task, **of_dart})


def rows_of(*paths: Path, against: str | None = None, **options: Any) -> dict[tuple[str, str], Comparison]:
    return {(row.scope, row.side): row for row in compared(*paths, against=against, **options).rows}


def row_of(root: Path, task: str = "tau") -> Comparison:
    """Return the row of dart."""
    return rows_of(root)[task, DART]


def decision_of(root: Path, margin: float = 0.02, task: str = "tau") -> Decision:
    """Return the verdict on dart."""
    return rows_of(root, margins={"": margin})[task, DART].decision


def notes_of(*paths: Path) -> list[str]:
    """Return the notes below the table."""
    return notes(compared(*paths), {})


def test_the_scores_of_base_are_summed_only_once_for_all_settings_compared_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed, sums = list[Sequence[Verdict]](), Choice.sums
    monkeypatch.setattr(Choice, "sums", lambda self, verdicts: summed.append(verdicts) or sums(self, verdicts))
    for name in ("base-0", "dart-0.3-layer2", "dart-0.5-layer2", "dart-0.9-layer2"):
        a_run(tmp_path, name, [True] * 8)
    rows_of(tmp_path)
    assert len(summed) == 4


def test_the_garbage_collector_is_off_while_run_records_are_read_and_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector is on again even after an error."""
    a_run(tmp_path, "base-0", [True] * 8)
    read, on = Run.read, list[bool]()
    monkeypatch.setattr(Run, "read", lambda folder: on.append(gc.isenabled()) or read(folder))
    read_runs([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError):
        read_runs([tmp_path / "empty"])
    assert on == [False]
    assert gc.isenabled()


class TestRows:
    def test_scores_p_value_and_speed_ups_of_a_comparison_row_equal_values_computed_by_hand(
        self, tmp_path: Path
    ) -> None:
        """Base has all 8 samples right, dart 4 of them in half the LLM time."""
        base_and_dart(tmp_path, [True] * 8, [True] * 4 + [False] * 4, prefill=0.5)
        row = row_of(tmp_path)
        assert (row.samples, row.reference_score) == (8, 1.0)
        assert row.score == pytest.approx(0.5)  # each class: one of two found, one false alarm: F1 = 1/2
        assert (row.verdict.difference, row.mcnemar) == pytest.approx((-0.5, 2 / 2**4))
        assert row.speed_ups["llm_prefill"]["measured"] == pytest.approx(2.0)
        assert row.speed_ups["first_token"]["measured"] == pytest.approx(1.1 / 0.6)
        assert row.speed_ups["decode_per_token"] is None

    def test_a_comparison_uses_only_samples_that_both_settings_answered(self, tmp_path: Path) -> None:
        added(base_and_dart(tmp_path, [True] * 8, [True] * 4), a_failed_record("clip0"))
        row = row_of(tmp_path)
        assert (row.samples, row.verdict.difference) == (3, 0.0)
        (left,) = lines_by_reason(compared(tmp_path).left_out)
        assert left.startswith("dart-0.5-layer2 in tau: 1 of 4 samples")

    def test_comparison_rows_over_several_tasks_weigh_each_task_equally(self, tmp_path: Path) -> None:
        for task, count in (("tau", 4), ("desed", 12), ("vesus", 4)):
            base_and_dart(tmp_path, [True] * count, [task != "tau"] * count, task=task)
        rows = rows_of(tmp_path)
        assert ("speaker", DART) not in rows  # a group of one task would repeat that task's row
        for scope, difference in (("audio classification", -1 / 2), ("overall", -1 / 3)):
            row = rows[scope, DART]
            assert row.verdict.difference == pytest.approx(difference)
            assert row.p_adjusted == row.verdict.p < 0.2  # the only row of its kind: nothing to correct for
            assert row.clusters == 4  # those of the task with the fewest

    def test_holms_correction_counts_each_compared_setting_of_a_task_as_one_test(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 12)
        for method in ("dart-0.5-layer2", "fast_v-0.5-layer2", "random-0.5-layer2"):
            a_run(tmp_path, method, [False] * 12)
        for row in rows_of(tmp_path).values():
            assert row.p_adjusted == pytest.approx(min(1, 3 * row.verdict.p), abs=0.01)

    def test_a_difference_is_clear_only_if_its_corrected_p_is_below_5_percent(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path)
        row = row_of(tmp_path)
        for adjusted, clear in ((0.049, True), (0.05, False), (0.09, False), (None, False)):
            lost = replace(row, verdict=replace(row.verdict, p=0.001, difference=-0.1), p_adjusted=adjusted)
            assert is_clear(lost) is clear
            assert comparison_row(lost)["difference_mark"] == ("worse" if clear else "")

    def test_the_work_to_compute_p_values_grows_linearly_with_the_rows_of_a_table(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With only as many swaps as rows, Holm's p cannot fall below 0.5. With 50 more per row, cost was quadratic."""
        seen: list[int] = []
        inner = Pair._swapped
        monkeypatch.setattr(
            Pair, "_swapped", lambda pair, swaps, moved: seen.append(len(swaps)) or inner(pair, swaps, moved)
        )
        swaps = {}
        for rows in (8, 16):
            a_run(tmp_path / str(rows), "base-0", [True] * 20)
            for place in range(rows):
                a_run(tmp_path / str(rows), f"dart-0.{10 + place}-layer2", [place % 2 == 0] * 16 + [True] * 4)
            seen.clear()
            assert sum(map(is_clear, rows_of(tmp_path / str(rows)).values())) == rows / 2
            swaps[rows] = sum(seen)
        assert swaps[16] == 2 * swaps[8]

    def test_installed_plug_ins_are_searched_for_only_once_per_table(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The search took three quarters of the time of `status` on a thousand runs."""
        searched: list[str] = []
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: searched.append(group) or [])
        for label in ("base-0", "dart-0.5-layer2", "random-0.5-layer2"):
            a_run(tmp_path, label, [True] * 4)
        rows_of(tmp_path)
        read_status([tmp_path])
        assert searched == [f"audiomarathon.{kind}" for kind in ("wings", "benchmarks", "tasks", "methods")]

    def test_the_row_of_a_task_does_not_depend_on_the_other_tasks(self, tmp_path: Path) -> None:
        for task in ("desed", "tau"):
            base_and_dart(tmp_path, [True, True, False] * 4, [True, False, False] * 3 + [True] * 3, task=task)
        field = ranking_of(compared(tmp_path / "tau"))
        verdicts = [row_of(tmp_path / "tau").verdict, row_of(tmp_path).verdict]
        assert verdicts == [field.row(field.candidates[1]).verdict] * 2

    def test_mcnemar_p_is_missing_if_all_samples_are_of_one_cluster(self, tmp_path: Path) -> None:
        for label, right in (("base-0", True), (DART, False)):
            a_run(tmp_path, label, [right] * 6, cluster="one speaker")
        row = row_of(tmp_path)
        assert (row.mcnemar, row.verdict.interval, row.verdict.p) == (None, None, 1.0)

    def test_base_runs_of_two_models_can_be_compared_with_either_one_as_reference(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 8, checkpoint="Big")
        a_run(tmp_path, "base-0", [True, False] * 4, checkpoint="Small")
        assert rows_of(tmp_path)["tau", "Small base-0"].verdict.difference < 0
        assert rows_of(tmp_path, against="Small base-0")["tau", "Big base-0"].verdict.difference > 0


class TestTimes:
    """Only comparable times are compared; for others the reason is given."""

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        return a_run(tmp_path, "base-0", [True] * 4, prefill=2.0)

    def test_runs_of_other_sessions_or_devices_or_without_times_have_no_speed_up(
        self, base: Path, tmp_path: Path
    ) -> None:
        for options, why in (
            ({"session": "another"}, "times of another session, on another or an unknown machine"),
            ({"device": "H100"}, "times of other devices (H100 and gpu)"),
            ({"device": None}, "untimed runs"),
        ):
            a_run(tmp_path, DART, [True] * 4, **options)
            row = row_of(tmp_path)
            assert ({*row.speed_ups.values()}, row.timed, row.untimed) == ({None}, 0, why)
            assert f"no speed-ups for dart-0.5-layer2 in tau: {why}" in notes_of(tmp_path)

    def test_times_of_two_sessions_are_compared_if_machine_precision_and_load_are_the_same(
        self, base: Path, tmp_path: Path
    ) -> None:
        folder = changed(a_run(tmp_path, DART, [True] * 4, session="t"), sessions=[a_session("t")])
        changed(base, sessions=[a_session("s")])
        row = row_of(tmp_path)
        assert row.speed_ups["llm_prefill"]["measured"] == pytest.approx(2.0)
        assert (row.untimed, row.across, row.timed) == ("", True, 4)
        assert f"dart-0.5-layer2 in tau: {ACROSS}" in notes_of(tmp_path)
        saved = savings(Run.read(folder), Pairs.of(Run.read(folder), Run.read(base)))
        assert (saved["llm_prefill"]["measured"], saved["across_sessions"]) == (pytest.approx(2.0), True)

    def test_times_of_two_sessions_are_not_compared_if_machine_precision_or_load_differ(
        self, base: Path, tmp_path: Path
    ) -> None:
        changed(base, sessions=[a_session("s")])
        for session, identity, why in (
            (a_session("t", cpu="other"), {}, "on another"),
            (a_session("t", threads=1), {}, "on another"),
            (a_session("t", busy=1.0), {}, "on a machine with other"),
            ({**a_session("t"), "load_after": None}, {}, "with unknown load"),
            (a_session("t"), {"dtype": "float16"}, "in another precision"),
            (a_session("t"), {"attention": "eager"}, "in another precision"),
            ({**a_session("t"), "workers_sharing": 2}, {}, "shared a GPU"),
        ):
            folder = changed(a_run(tmp_path, DART, [True] * 4, session="t", **identity), sessions=[session])
            assert why in Pairs.of(Run.read(folder), Run.read(base)).untimed

    def test_times_taken_on_a_busy_machine_are_marked(self, base: Path, tmp_path: Path) -> None:
        changed(base, sessions=[a_session("s")])
        changed(a_run(tmp_path, DART, [True] * 4), sessions=[a_session("s", busy=3.0)])
        assert (row_of(tmp_path).timed, row_of(tmp_path).busy) == (4, True)
        assert "dart-0.5-layer2 in tau: the machine was busy while times were taken" in notes_of(tmp_path)
        with_identity(base, device="H100")
        assert (row_of(tmp_path).timed, row_of(tmp_path).busy) == (0, False)

    def test_speed_ups_use_only_samples_timed_in_a_session_that_both_runs_share(
        self, base: Path, tmp_path: Path
    ) -> None:
        """A resumed run has samples of several sessions. `savings` reports the same numbers."""
        folder = a_run(tmp_path, DART, [True] * 4)
        added(folder, a_timed_choice(3, right=True, prefill=0.1, session="later"))
        row = row_of(tmp_path)
        saved = savings(Run.read(folder), Pairs.of(Run.read(folder), Run.read(base)))
        assert (row.samples, row.timed) == (4, 3) == (4, saved["compared_samples"])
        for stage in ("llm_prefill", "first_token"):
            assert row.speed_ups[stage]["measured"] == saved[stage]["measured"]
            assert row.speed_ups[stage]["interval"] == pytest.approx(saved[stage]["interval"])
        assert "dart-0.5-layer2 in tau: speed-ups use 3 of the 4 samples" in notes_of(tmp_path)

    def test_equally_named_clips_of_two_tasks_count_as_separate_clusters(self, tmp_path: Path) -> None:
        both = []
        for task in ("tau", "gtzan"):
            dart = base_and_dart(tmp_path, task=task)
            both.append(Pairs.of(Run.read(dart), Run.read(dart.with_name("base-0"))))
        assert speed_up(both, "llm_prefill", 42).clusters == 8
        assert len({pairs._stream(42).random() for pairs in both}) == 2

    @pytest.mark.parametrize(
        ("base", "dart", "why"),
        [
            (({"decode_tokens": 64}, {}), ({"decode_tokens": 16}, {}), "forced decode made 16 and 64 tokens"),
            (({}, {"decode_setup": 0.04}), ({}, {}), "decode ran as a graph in one run"),
        ],
        ids=["tokens", "graph"],
    )
    def test_decode_times_are_not_compared_if_token_counts_differ_or_one_run_used_a_cuda_graph(
        self, tmp_path: Path, base: Any, dart: Any, why: str
    ) -> None:
        for label, (identity, more) in (("base-0", base), (DART, dart)):
            changed_records(a_run(tmp_path, label, [True] * 4, **identity), forced_decode={"per_token": 0.1, **more})
        speed_ups = row_of(tmp_path).speed_ups
        assert (speed_ups["decode_per_token"], bool(speed_ups["first_token"])) == (None, True)
        assert any(re.match(f"no decode speed-up for {DART} in tau: .*{why}", note) for note in notes_of(tmp_path))

    @pytest.mark.parametrize(("setup", "shown"), [({}, True), ({"decode_setup": 0.04}, False)])
    def test_throughputs_are_compared_unless_only_one_of_the_runs_used_a_cuda_graph(
        self, tmp_path: Path, setup: dict[str, float], shown: bool
    ) -> None:
        for label, size, more in (("base-0", 4, setup), (DART, 8, {})):
            batch = {"samples": size, "planned": size, "encoder": 1, "llm_prefill": 1, "decode": 2, "padding": 0}
            batch |= {"devices": 1, **more}
            changed_records(a_run(tmp_path, label, [True] * 4), batch=batch, time=None, forced_decode=None)
        row = row_of(tmp_path)
        cell = "2 a second against 1, batches of 8, base's of 4"
        why = f"no samples a second for dart-0.5-layer2 in tau: {ONE_GRAPH}"
        assert (comparison_row(row).get("throughput_speedup_said") == cell) == (row.throughput is not None) == shown
        assert (why in notes_of(tmp_path)) != shown


class TestConclusion:
    """The line below the table with its conclusion."""

    def test_the_conclusion_names_the_differences_that_are_significant_after_holms_correction(
        self, tmp_path: Path
    ) -> None:
        base_and_dart(tmp_path, [True] * 24, [False] * 24)
        a_run(tmp_path, "frame-0.5-layer2", [True] * 23 + [False])
        assert notes_of(tmp_path)[-1] == "significant after Holm's correction: dart-0.5-layer2 in tau (-1.000)"

    @pytest.mark.parametrize(
        ("counts", "scope", "width"),
        [
            ({"tau": (12, 1), "desed": (18, 1)}, "overall", "12–18 samples a task, overall ±{:.2f}"),
            ({"tau": (12, 1), "lalm/mmar": (12, 2)}, "lalm/mmar", "12 samples a task, at most ±{:.2f} (in lalm/mmar)"),
        ],
        ids=["overall", "widest"],
    )
    def test_without_a_clear_difference_the_conclusion_states_the_confidence_interval_width(
        self, tmp_path: Path, counts: dict[str, tuple[int, int]], scope: str, width: str
    ) -> None:
        for task, (count, lost) in counts.items():
            base_and_dart(tmp_path, [True] * count, [True] * (count - lost) + [False] * lost, task=task)
        (low, high) = rows_of(tmp_path)[scope, DART].verdict.interval
        none = "no clear difference: none has p (Holm) under 0.05; "
        assert notes_of(tmp_path)[-1] == none + width.format((high - low) / 2)

    def test_the_conclusion_states_no_confidence_interval_of_zero_width(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 2)
        assert "±" not in "".join(notes_of(tmp_path))

    def test_a_note_names_the_tasks_with_fewer_than_ten_clusters_of_samples(self, tmp_path: Path) -> None:
        for task, count in (("tau", 9), ("desed", 10)):
            base_and_dart(tmp_path, [True] * count, [True, False] * (count // 2), task=task)
        (line,) = [line for line in notes_of(tmp_path) if "clusters" in line]
        assert line == "tau: fewer than ten clusters, so intervals are slightly too narrow"


class TestAlike:
    """Two kinds of equality: identical replies, and a small difference in score."""

    def test_settings_whose_replies_all_equal_those_of_base_are_marked_in_the_table(self, tmp_path: Path) -> None:
        for label, tokens, wrong, said in (
            ("snapkv-0.5", 2, 0, "= base"),  # prefill gives the letter, and the next token is the end
            ("snapkv-0.5", 3, 0, "same replies"),
            ("frame-0.5-layer2", 2, 0, "same replies"),
            ("snapkv-0.5", 2, 1, ""),
        ):
            root = tmp_path / f"{label}-{tokens}-{wrong}"
            a_run(root, "base-0", [True] * 4)
            changed_records(a_run(root, label, [True] * (4 - wrong) + [False] * wrong), new_tokens=tokens)
            row = comparison(compared(root)).frame.iloc[0]
            assert row["difference_said"] == said
            assert (row["p"] is None) == (row["p_holm"] is None) == (said == "= base")

    def test_the_all_tasks_row_gets_the_weaker_equality_mark_if_its_tasks_have_different_marks(
        self, tmp_path: Path
    ) -> None:
        for task, tokens in (("tau", 2), ("desed", 3)):
            a_run(tmp_path, "base-0", [True] * 4, task=task)
            changed_records(a_run(tmp_path, "snapkv-0.5", [True] * 4, task=task), new_tokens=tokens)
        assert [row.alike for row in rows_of(tmp_path).values()] == ["same replies", "= base", "same replies"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("of_dart", "reason"),
        [
            ({"data": "a" * 64}, r"asked the same questions \(data a{12} and d\)"),
            ({"prompts": "q"}, r"asked the same questions \(prompts q and p"),
            ({"max_new_tokens": 9}, r"the same questions \(max_new_tokens 9"),
            ({"task": "desed"}, "layer2 in desed: base-0 was not run"),
            ({"first": 4}, "no sample that both answered"),
        ],
        ids=["other data", "other prompts", "another token limit", "another task", "other samples"],
    )
    def test_a_setting_run_with_other_data_prompts_task_or_samples_than_base_is_refused(
        self, tmp_path: Path, of_dart: dict[str, Any], reason: str
    ) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        a_run(tmp_path, DART, [True] * 4, **of_dart)
        with pytest.raises(RecordError, match=reason):
            rows_of(tmp_path)

    def test_runs_that_cannot_be_compared_are_left_out_and_the_others_compared(self, tmp_path: Path) -> None:
        for task in ("tau", "desed"):
            base_and_dart(tmp_path, task=task, prompts="p" if task == "tau" else "q")
        for method in ("fast_v", "random"):
            a_run(tmp_path, f"{method}-0.5-layer2", [True] * 4, task="gtzan")
        outcome = compared(tmp_path)
        assert [(row.scope, row.side) for row in outcome.rows] == [("tau", DART)]
        asked, ran = lines_by_reason(outcome.left_out)
        assert re.match("dart-0.5-layer2 in desed: .*prompts q and p", asked)
        assert ran.startswith("fast_v-0.5-layer2, random-0.5-layer2 in gtzan: base-0 was not run")

    def test_records_that_cannot_be_scored_again_are_left_out_with_a_warning(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, task="librispeech")  # with the records of a choice task
        for folder in (tmp_path / "librispeech" / "M").iterdir():
            changed_records(folder, reference={})
        with (
            pytest.raises(RecordError, match="no sample that both answered"),
            pytest.warns(UserWarning, match="cannot"),
        ):
            rows_of(tmp_path)

    def test_a_task_that_is_not_installed_is_left_out(self, tmp_path: Path) -> None:
        for task in ("tau", "theirs"):
            base_and_dart(tmp_path, task=task)
        outcome = compared(tmp_path)
        assert [row.scope for row in outcome.rows] == ["tau"]
        assert "dart-0.5-layer2 in theirs" in lines_by_reason(outcome.left_out)[0]

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            ({"identity": None}, "identity. is not a JSON"),
            ({"task": None}, "lacks the field"),
            ({"samples": [{}]}, "'samples' must be a list"),
        ],
    )
    def test_a_run_with_a_damaged_run_json_is_left_out_with_a_warning_among_other_runs(
        self, tmp_path: Path, facts: dict[str, Any], message: str
    ) -> None:
        folder = a_run(tmp_path, "base-0", [True])
        file = folder / "run.json"
        content = {key: value for key, value in json.loads(file.read_text()).items() if key not in facts}
        file.write_text(json.dumps(content | {key: facts[key] for key in facts if key != "task"}))
        with pytest.raises(RecordError, match=message):
            read_systems([folder])
        a_run(tmp_path, "dart-0.5-layer2", [True])
        with pytest.warns(UserWarning, match=f"left out: .*{message}"):
            assert [side.method for side in read_systems([tmp_path])] == ["dart-0.5-layer2"]

    def test_records_with_unreadable_times_are_left_out(self, tmp_path: Path) -> None:
        for time in ({"prefill": 1.0}, "soon", {"llm_prefill": "1 s", "prefill": 1}, {"llm_prefill": math.nan}):
            changed_records(base_and_dart(tmp_path, [True]), time=time)
            with (
                pytest.warns(UserWarning, match=r"\b1 .*line left out"),
                pytest.raises(RecordError, match="nothing can be compared"),
            ):
                rows_of(tmp_path)

    def test_a_run_reached_through_a_symbolic_link_is_counted_once(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path / "disk")
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "tau").symlink_to(tmp_path / "disk" / "tau")
        assert len(rows_of(tmp_path / "results")) == 1
        assert len(rows_of(tmp_path / "results", tmp_path / "disk", tmp_path / "disk" / ".." / "disk")) == 1

    def test_a_method_name_is_accepted_as_reference_only_if_the_method_has_one_setting(self, tmp_path: Path) -> None:
        for label in ("base-0", "random-0.9-layer2"):
            a_run(tmp_path, label, [True] * 4)
        as_control(a_run(tmp_path / "silence", "random-0.9-layer2", [True] * 4))
        assert compared(tmp_path, against="random").reference == "random-0.9-layer2"
        a_run(tmp_path, "random-0.5-layer2", [True] * 4)
        with pytest.raises(SettingsError, match=r"no setting is called random.*; allowed: base-0, random-0.5"):
            compared(tmp_path, against="random")
        with pytest.raises(SettingsError, match="did you mean 'base-0'"):
            compared(tmp_path, against="bas-0")


class TestNames:
    """Each compared setting has a name that no other setting has."""

    def names(self, *paths: Path) -> list[str]:
        sides = read_systems(paths)
        several = len({side.checkpoint for side in sides}) > 1
        return [side.name(with_checkpoint=several) for side in sides]

    def test_names_of_settings_show_the_precision_attention_or_seed_that_differs(self, tmp_path: Path) -> None:
        same = {"dtype": "float32", "attention": "sdpa", "seed": 42}
        for label in ("base-0", "random-0.5-layer2"):
            a_run(tmp_path / "one", label, [True] * 4, **same)
        for field, value in {"dtype": "bfloat16", "attention": "eager", "seed": 7}.items():
            a_run(tmp_path / "two", "random-0.5-layer2", [False] * 4, **same | {field: value})
            marked = "random-0.5-layer2 " + ("seed 7" if field == "seed" else value)
            assert self.names(tmp_path / "one", tmp_path / "two") == ["base-0", "random-0.5-layer2", marked]
            assert set(rows_of(tmp_path)) == {("tau", "random-0.5-layer2"), ("tau", marked)}

    def test_names_of_two_checkpoints_with_equal_folder_names_show_their_hashes(self, tmp_path: Path) -> None:
        for folder, content in (("one", "aaaaaaaa"), ("two", "bbbbbbbb")):
            run = a_run(tmp_path / folder, "base-0", [True] * 4, checkpoint=content)
            changed(run, checkpoint_name="M", identity=IDENTITY | {"checkpoint": content})
        assert self.names(tmp_path) == ["M aaaaaa base-0", "M bbbbbb base-0"]
        assert set(rows_of(tmp_path)) == {("tau", "M bbbbbb base-0")}

    def test_a_run_on_silence_is_named_as_a_control_run_and_has_no_speed_up(self, tmp_path: Path) -> None:
        """Silence beside the real clips: samples are paired by their ids, although the clips differ."""
        a_run(tmp_path / "heard", "base-0", [True] * 4)
        folder = a_run(tmp_path / "silence", "base-0", [True, False] * 2, data="names of its own")
        changed_records(as_control(folder), clips="silent")
        row = rows_of(tmp_path)["tau", "base-0 [silence]"]
        assert (row.samples, row.mcnemar, row.untimed) == (4, 0.5, "times of different audio")

    def test_settings_decoded_with_a_cuda_graph_are_compared_with_a_base_run_that_used_one(
        self, tmp_path: Path
    ) -> None:
        """Each setting has a distinct name and is compared with base of the same decode mode."""
        graph = " as a graph"
        for how, identity, setup in (("graph", {"decode": "graph"}, {"decode_setup": 0.04}), ("eager", {}, {})):
            for label in ("base-0", DART):
                folder = a_run(tmp_path / how, label, [True] * 4, **identity)
                changed_records(finished(folder), forced_decode={"per_token": 0.1, **setup})
        systems = read_systems([tmp_path])
        names = {system.name(with_checkpoint=False): system for system in systems}
        assert {*names} == {"base-0", DART, "base-0" + graph, DART + graph}
        assert base_of(names[DART + graph], systems) is names["base-0" + graph]
        run, base, eager = (names[name].runs["tau"] for name in (DART + graph, "base-0" + graph, "base-0"))
        assert base_among(run, [eager, base]) is base
        rows = rows_of(tmp_path)
        assert rows["tau", DART + graph].score == 1
        timed = {name: bool(row.speed_ups["decode_per_token"]) for (scope, name), row in rows.items() if scope == "tau"}
        assert timed == {DART: True, "base-0" + graph: False, DART + graph: False}
        (panel,) = read_panels([tmp_path])
        assert {(setting.method, setting.conditions) for setting in panel.settings} == {
            (method, conditions) for method in ("base", "dart") for conditions in ("", "as a graph")
        }

    def test_without_an_eager_base_run_a_setting_is_compared_with_a_base_run_on_a_cuda_graph(
        self, tmp_path: Path
    ) -> None:
        a_run(tmp_path, "base-0", [True] * 4, decode="graph")
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4)
        base, other = read_systems([tmp_path])
        assert (base_of(other, [base, other]), base.marks) == (base, ())

    def test_two_runs_with_equal_names_are_refused_stating_how_they_differ(self, tmp_path: Path) -> None:
        for device in ("gpu", "other"):
            a_run(tmp_path / device, "base-0", [True] * 4, device=device)
        with pytest.raises(RecordError, match=r"same task, checkpoint and setting.*the two differ in device"):
            read_systems([tmp_path])


class TestControl:
    def test_the_random_control_of_a_pruner_has_the_same_ratio_and_layer_as_the_pruner(self) -> None:
        assert control_of(DART) == "random-0.5-layer2"
        assert control_of("merge_frame-0.5-input") == "random-0.5-input"
        for label in ("base-0", "dart-0-layer2", "snapkv-0.5", "frame-0.5-input+snapkv-0.3", f"{DART}+snapkv-0.3"):
            assert control_of(label) == ""

    def test_a_random_control_stored_beside_a_given_run_is_compared_too(self, tmp_path: Path) -> None:
        dart = base_and_dart(tmp_path)
        a_run(tmp_path, "random-0.5-layer2", [True] * 4)
        assert ("tau", "random-0.5-layer2") in rows_of(dart.with_name("base-0"), dart)

    def test_a_random_control_that_was_not_run_is_reported_as_missing(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path)
        assert missing_controls(read_systems([tmp_path])) == {"random-0.5-layer2": "random-0.5-layer2"}

    def test_the_options_suggested_for_missing_random_controls_run_exactly_those_controls(self) -> None:
        methods = [get_method("random", ratio, layer=layer) for ratio, layer in ((0.5, 2), (0.25, 2), (0.5, 12))]
        methods += [get_method("random", 0.5, at="input"), get_method("random", schedule="2:0.3,8:0.5")]
        again = list[Method]()
        for options in sweeps_of(method.label for method in methods):
            given = dict(zip(options.split()[::2], options.split()[1::2], strict=True))
            settings = RunSettings.read({}, **{name[2:]: text for name, text in given.items() if name != "--ratios"})
            ratios = parse_ratios(given.get("--ratios"), settings.schedule)
            again += grid(["random"], ratios, base=False, **settings.places)
        assert {method.label for method in again} == {method.label for method in methods}


class TestAnswers:
    @pytest.fixture
    def field(self, tmp_path: Path) -> Ranking:
        a_run(tmp_path, "base-0", [True] * 8)
        a_run(tmp_path, "dart-0.3-layer2", [True] * 8, prefill=0.7)
        a_run(tmp_path, "dart-0.6-layer2", [True] * 7 + [False], prefill=0.4)
        a_run(tmp_path, "dart-0.9-layer2", [False] * 8, prefill=0.1)
        return ranking_of(compared(tmp_path))

    @pytest.mark.parametrize(
        ("limit", "best"),
        [
            *((("latency", most), name) for most, name in ((2.0, 3), (0.8, 3), (0.5, 6), (0.2, 9), (0.1, None))),
            *((("score", least), name) for least, name in ((0.99, 3), (0.8, 6), (1.1, None))),
        ],
    )
    def test_the_best_setting_within_a_latency_or_score_limit_is_chosen(
        self, field: Ranking, limit: tuple[str, float], best: int | None
    ) -> None:
        winner = field.best(**dict([limit]))
        assert (winner.name if winner else None) == (best and f"dart-0.{best}-layer2")

    def test_the_row_of_the_best_setting_is_taken_from_the_table_if_both_use_the_same_samples(
        self, field: Ranking, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = field.candidates[3]
        (row,) = (candidate for candidate in field._compared.rows if candidate.side == chosen.name)
        part = replace(field, ids={"tau": field.ids["tau"] - {"clip0"}})
        assert part.row(chosen).samples == 7
        monkeypatch.setattr("audiomarathon.results.best.row_of", None)
        answered = field.row(chosen)
        assert answered.verdict is row.verdict
        assert answered.p_adjusted == row.verdict.p  # a separate question, not one of the table's tests
        assert row.p_adjusted > row.verdict.p

    def test_the_unpruned_reference_may_itself_be_the_best_setting(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 8, checkpoint="Big")
        a_run(tmp_path, "dart-0.3-layer2", [False] * 8, prefill=0.5, checkpoint="Big")
        a_run(tmp_path, "base-0", [False] * 8, checkpoint="Small", prefill=0.4)
        answered = answer(ranking_of(compared(tmp_path)), score=0.95)
        assert re.search(r"0\.95 .*Big base-0's score: Big base-0 itself .*1\.000", answered["text"])

    def test_random_pruning_recommended_as_the_best_setting_is_called_the_control(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 8, [True] * 8, prefill=0.6)
        a_run(tmp_path, "random-0.5-layer2", [True] * 8, prefill=0.5)
        text = answer(ranking_of(compared(tmp_path)), latency=0.8)["text"]
        assert "time to first token: random-0.5-layer2 (score 1.000, +0.000" in text
        assert re.search(r"control.*dart-0\.5-layer2$", text)

    def test_the_answer_warns_if_the_confidence_interval_of_the_score_exceeds_the_allowed_loss(
        self, tmp_path: Path
    ) -> None:
        base_and_dart(tmp_path, [True] * 20, [True] * 19 + [False], prefill=0.5)
        field = ranking_of(compared(tmp_path))
        doubt = "but the score's interval allows a larger loss: more samples, .* quiet machine"
        assert re.search(doubt, answer(field, score=0.94)["text"])
        assert "larger loss" not in answer(field, score=0.1)["text"] + answer(field, latency=0.9)["text"]

    def test_settings_are_ranked_on_tasks_that_all_of_them_ran(self, tmp_path: Path) -> None:
        """dart is faster and better on tau but did not run on the other task; over both tasks fast_v is the best."""
        for task, right in (("tau", True), ("desed", False)):
            a_run(tmp_path, "base-0", [True] * 4, task=task)
            a_run(tmp_path, "fast_v-0.5-layer2", [True] * 3 + [right], task=task, prefill=0.5)
            a_run(tmp_path, "random-0.5-layer2", [True, True, False, right], task=task, prefill=0.5)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4, prefill=0.1)
        a_run(tmp_path, "base-0", [True] * 4, task="gtzan")
        a_run(tmp_path, "fast_v-0.5-layer2", [True] * 4, task="gtzan")
        field = ranking_of(compared(tmp_path))
        assert list(field.ids) == ["desed", "tau"]
        assert field.best(latency=0.9).name == "fast_v-0.5-layer2"
        text = ranked(field)
        assert "ranked on the same 8 samples of desed, tau: 3 settings" in text
        assert "left out dart-0.5-layer2 in desed: not run" in text
        assert "left out task gtzan: not timed" in text

    def test_settings_are_ranked_on_samples_that_all_of_them_answered(self, tmp_path: Path) -> None:
        """dart answered the easy half only."""
        a_run(tmp_path, "base-0", [True] * 8)
        a_run(tmp_path, "fast_v-0.5-layer2", [True] * 4 + [False] * 4, prefill=0.4)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4, prefill=0.5)
        field = ranking_of(compared(tmp_path))
        assert field.samples == 4
        assert field.best(score=0.95).name == "fast_v-0.5-layer2"

    def test_control_runs_and_settings_without_comparable_times_are_not_ranked(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, session="another")
        changed(a_run(tmp_path / "silence", "base-0", [True] * 4), control={"kind": "silence"})
        field = ranking_of(compared(tmp_path))
        assert not field.candidates
        told = ranked(field)
        assert "dart-0.5-layer2 in tau: times of another session" in told
        assert "base-0 [silence]: heard control audio" in told
        assert re.search("no setting.* base-0", answer(field, latency=0.5)["text"])

    def test_a_setting_that_shares_too_few_timed_samples_with_the_others_is_not_ranked(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 11, [True] * 6)
        a_run(tmp_path, "fast_v-0.5-layer2", [True] * 5, first=6)
        a_run(tmp_path, "frame-0.5-layer2", [True] * 4)
        field = ranking_of(compared(tmp_path))
        assert [candidate.name for candidate in field.candidates] == ["base-0", "dart-0.5-layer2", "frame-0.5-layer2"]
        assert "fast_v-0.5-layer2: few or no timed samples shared with the others" in ranked(field)

    def test_a_setting_with_very_few_samples_is_left_out_of_the_ranking(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 20, [True], prefill=0.1)
        for method in ("fast_v", "random"):
            a_run(tmp_path, f"{method}-0.5-layer2", [True] * 20, prefill=0.5)
        field = ranking_of(compared(tmp_path))
        assert (field.samples, field.best(latency=0.9).name) == (20, "fast_v-0.5-layer2")
        assert "left out dart-0.5-layer2: few" in ranked(field)


class TestMargin:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Two settings on 200 samples (one loses a quarter), the first also on 40 samples of another task."""
        base_and_dart(tmp_path, [True] * 200)
        a_run(tmp_path, "random-0.5-layer2", [True] * 150 + [False] * 50)
        base_and_dart(tmp_path, [True] * 40, task="gtzan")
        return tmp_path

    def test_each_setting_and_task_with_a_margin_gets_a_non_inferiority_verdict(self, folder: Path) -> None:
        decisions = {place: row.decision for place, row in rows_of(folder, margins={"": 0.05, "gtzan": 0.02}).items()}
        assert {place: decision and decision.verdict for place, decision in decisions.items()} == {
            ("tau", DART): "no worse", ("tau", "random-0.5-layer2"): "worse", ("gtzan", DART): "not decided",
            ("overall", DART): None,
        }  # fmt: skip
        assert {decision.tests for decision in decisions.values() if decision} == {3}
        rows = rows_of(folder / "gtzan", folder / "tau" / "M" / DART, margins={"gtzan": 0.02})
        assert {place for place, row in rows.items() if row.decision} == {("gtzan", DART)}

    def test_a_margin_applies_to_the_difference_in_accuracy_rather_than_macro_f1(self, tmp_path: Path) -> None:
        """All samples of one class of four turn wrong, so macro-F1 falls by another amount than accuracy."""
        base_and_dart(tmp_path, [True] * 8, [True, True, True, False] * 2)
        assert (decision_of(tmp_path).figure, decision_of(tmp_path).difference) == ("accuracy", -0.25)
        assert row_of(tmp_path).verdict.difference != pytest.approx(-0.25)

    def test_samples_of_one_cluster_do_not_count_as_independent_in_a_margin_verdict(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 200)
        for folder in (tmp_path / "tau" / "M").iterdir():
            records = [record | {"cluster": f"c{place // 5}"} for place, record in enumerate(records_in(folder))]
            write_records(folder, records)
        decision = decision_of(tmp_path, 0.05)
        assert (decision.samples, decision.clusters, decision.verdict, decision.needed) == (200, 40, "not decided", 73)

    def test_failed_samples_count_towards_the_size_of_the_largest_cluster(self, tmp_path: Path) -> None:
        """A cluster may have three samples, although only one of them was answered."""
        base_and_dart(tmp_path, [True] * 9)
        for folder in (tmp_path / "tau" / "M").iterdir():
            added(folder, *(a_failed_record(f"f{number}", cluster="clip0") for number in range(2)))
            changed(folder, samples=[record["id"] for record in records_in(folder)])
        pairs = compared(tmp_path).shared[DART]["tau"]
        assert (pairs.clustered.largest, len(pairs.clustered.sizes)) == (3, 9)

    def test_a_margin_verdict_on_transcripts_caps_the_word_error_rate_of_each_sample_at_1(self, tmp_path: Path) -> None:
        for label, said in (("base-0", "a dog"), (DART, "a dog barks barks barks barks barks")):
            folder = a_run(tmp_path, label, [True] * 3, task="librispeech")
            changed_records(folder, reply=said, reference={"answer": "a dog"})
        decision = decision_of(tmp_path, task="librispeech")
        assert (decision.difference, decision.figure) == (-1.0, "1 − errors per word, capped at 1 a sample")
        assert decision.beside == "insertions per word 2.500, reference's 0.000"

    def test_a_run_on_silence_gets_no_margin_verdict(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 200)
        as_control(a_run(tmp_path / "silent", "base-0", [False] * 200))
        decisions = {place[1]: row.decision for place, row in rows_of(tmp_path, margins={"": 0.02}).items()}
        assert (decisions["base-0 [silence]"], decisions[DART].tests) == (None, 1)

    def test_equal_one_token_replies_prove_no_loss_only_if_the_token_limit_was_1(self, tmp_path: Path) -> None:
        for most, verdict in ((16, "not decided"), (1, "no worse")):
            for label in ("base-0", "snapkv-0.5"):
                run = changed(a_run(tmp_path, label, [True] * 8, max_new_tokens=most), note=ONE_TOKEN)
                changed_records(run, new_tokens=1)
            decision = rows_of(tmp_path, margins={"": 0.02})["tau", "snapkv-0.5"].decision
            assert (decision.verdict, decision.by_construction) == (verdict, most == 1)

    def test_a_failed_sample_counts_as_a_wrong_reply_in_a_margin_verdict(self, tmp_path: Path) -> None:
        run = base_and_dart(tmp_path, [True] * 200)
        assert (decision_of(tmp_path).verdict, decision_of(tmp_path).beside) == ("no worse", "")
        records = lines_of(run / "samples.jsonl")
        lost = [{name: record[name] for name in ("id", "cluster", "clips")} for record in records[:60]]
        write_records(run, [*(a_failed_record(**facts) for facts in lost), *records[60:]])
        assert decision_of(tmp_path).verdict != "no worse"
        assert decision_of(tmp_path).beside == "60 without a score count as lost"

    def test_a_sample_not_selected_for_the_setting_does_not_count_in_a_margin_verdict(self, tmp_path: Path) -> None:
        run = base_and_dart(tmp_path, [True] * 9)
        first, *others = lines_of(run / "samples.jsonl")
        changed(run, samples=[record["id"] for record in others])
        write_records(run.with_name("base-0"), [a_failed_record(first["id"], cluster=first["cluster"]), *others])
        assert decision_of(tmp_path).beside == ""

    def test_a_larger_largest_cluster_of_a_task_makes_its_margin_verdict_stricter(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 300)
        for folder in (tmp_path / "tau" / "M").iterdir():
            changed(folder, largest_cluster=4)
        assert decision_of(tmp_path).verdict == "not decided"

    def test_a_task_that_gives_no_score_per_sample_gets_no_margin_verdict(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base_and_dart(tmp_path)
        monkeypatch.setattr("audiomarathon.scoring.choice.Choice.own_score", lambda *_given: None)
        assert decision_of(tmp_path) is None
        monkeypatch.setattr("audiomarathon.scoring.choice.Choice.own_score", lambda *_given: 5.0)
        with pytest.raises(RecordError, match=r"clip0 is 5; a margin needs scores in \[0, 1\]"):
            decision_of(tmp_path)

    def test_compare_writes_margin_verdicts_to_json_csv_and_latex(self, folder: Path) -> None:
        for end in ("json", "csv", "tex"):
            said = succeed("compare", folder, "--margin", "0.05,gtzan=0.02", "-o", f"{folder}/c.{end}")
        assert "margin 0.05 of accuracy: tau" in said
        rows = json.loads((folder / "c.json").read_text())["rows"]
        assert {row["decision"]["verdict"] for row in rows if "decision" in row} == {"no worse", "worse", "not decided"}
        rows = list(csv.DictReader((folder / "c.csv").read_text().splitlines()))
        assert [row["margin_figure"] for row in rows] == ["accuracy"] * 3 + [""]
        text = (folder / "c.tex").read_text()
        assert "no worse by more than 0.05" in text
        assert "needs at least 186 clusters, any test 149" in text

    def test_a_wrong_margin_is_refused_with_the_allowed_values(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path)
        for margin in ("0", "1", "nan", "x", "tau=0.1,tau=0.2", ",", "race=0.02"):
            code, said = call("compare", tmp_path, "--margin", margin)
            assert (code, "--margin" in said, "allowed: " in said) == (2, True, True), margin

    def test_damaged_sequential_stopping_data_in_a_run_json_is_a_one_line_error_of_compare(
        self, tmp_path: Path
    ) -> None:
        changed(base_and_dart(tmp_path), stopping={"largest": "x", "order": 3})
        code, said = call("compare", tmp_path, "--margin", "0.05")
        assert code == 2
        assert "not as this version writes them" in said


class TestPower:
    def test_the_power_option_reports_how_many_clusters_of_samples_a_verdict_would_need(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 100, [False] * 2 + [True] * 98)
        said = succeed("compare", tmp_path, "--margin", "0.1", "--power")
        clusters = re.search(r"2 of 100 clusters differ from base; ([\d,]+) such clusters", said)
        assert clusters
        assert 80 < int(clusters[1].replace(",", "")) < 200


class TestKept:
    def test_the_share_of_answers_right_only_with_audio_that_a_method_keeps_equals_a_hand_count(
        self, tmp_path: Path
    ) -> None:
        """Base has 8 of 10 samples right, 2 of them even on silence. dart keeps 3 of the other 6."""
        base_and_dart(tmp_path, [True] * 8 + [False] * 2, [True] * 5 + [False] * 3 + [True] * 2)
        as_control(a_run(tmp_path / "silent", "base-0", [True] * 2 + [False] * 6 + [True] * 2))
        said = succeed("compare", tmp_path, "--kept", "-o", f"{tmp_path}/c.json")
        (row,) = json.loads((tmp_path / "c.json").read_text())["kept"]
        assert (row["side"], row["samples"], row["share"]) == ("dart-0.5-layer2", 6, 0.5)
        assert row["interval"][0] < 0.5 < row["interval"][1]
        assert "between methods only" in said

    def test_the_kept_option_of_compare_is_refused_without_a_run_on_silence(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path)
        for _ in range(2):
            code, said = call("compare", tmp_path, "--kept")
            assert code == 2
            assert "--kept" in said
            as_control(a_run(tmp_path / "silent", "base-0", [True] * 4))


class TestCommand:
    def test_compare_prints_the_comparison_and_writes_json_csv_and_markdown(self, tmp_path: Path) -> None:
        base_and_dart(tmp_path, [True] * 8, [True] * 6 + [False] * 2, prefill=0.5)
        a_run(tmp_path, "dart-0.7-layer2", [True] * 8, prefill=0.5, prompts="other")
        for end in ("json", "csv", "md"):
            said = succeed("compare", tmp_path, "--at-latency", "0.6", "-o", f"{tmp_path}/c.{end}")
        told = "within 0.6 of base-0's time to first token: dart-0.5-layer2"
        assert told in said
        assert "not run" in said
        content = json.loads((tmp_path / "c.json").read_text())
        assert (content["reference"], content["rows"][0]["samples"]) == ("base-0", 8)
        assert content["left_out"][0]["side"] == "dart-0.7-layer2"
        assert content["answers"][0]["best"]["name"] == "dart-0.5-layer2"
        (row,) = csv.DictReader((tmp_path / "c.csv").read_text().splitlines())
        assert (row["setting"], row["samples"], float(row["llm_prefill_speedup"])) == ("dart-0.5-layer2", "8", 2.0)
        assert told in (tmp_path / "c.md").read_text()

    def test_compare_reports_an_undefined_score_and_writes_null_to_json(self, tmp_path: Path) -> None:
        """The normaliser drops all words of the references, so there is no error rate."""
        base_and_dart(tmp_path, [True] * 3, task="librispeech")
        for folder in (tmp_path / "librispeech" / "M").iterdir():
            changed_records(folder, reply="", reference={"answer": "uh, um"})
        row = row_of(tmp_path, "librispeech")
        assert (row.score, row.verdict, row.p_adjusted) == (None, PairedResult(None, None, None), None)
        said = succeed("compare", tmp_path, "--at-score", "0.9", "-o", f"{tmp_path}/c.json")
        assert "dart-0.5-layer2 in librispeech: the score has no value" in said
        assert json.loads((tmp_path / "c.json").read_text())["rows"][0]["verdict"]["p"] is None

    def test_the_output_of_compare_fits_into_80_columns(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        a_run(tmp_path, "base-0", [True] * 8)
        for method in ("dart", "random"):
            a_run(tmp_path, f"{method}-0.5-layer2", [True] * 5 + [False] * 3, prefill=0.5)
        lines = succeed("compare", tmp_path).splitlines()
        assert max(map(len, lines)) <= 80
        assert sum(line.lstrip().startswith("random-0.5-layer2 ") for line in lines) == 2  # scores, then speed-ups
        assert not any("…" in line for line in lines)

    def test_compare_refuses_wrong_options_and_a_single_run(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        for options, message in {
            "--at-score -1": "--at-score -1.0: not allowed; allowed: a share above 0",
            "--at-latency nan": "--at-latency nan: expected a finite number",
            "-o x.doc": "ends in .json",
            "--seed -1": "Invalid value for '--seed'",
            "--power": "--power needs a margin",
            "": "at least two",
        }.items():
            code, said = call("compare", tmp_path, *options.split())
            assert (code, message in said) == (2, True), options


def test_the_fast_table_printer_prints_the_same_text_as_the_rich_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand rows, measuring each cell three times took longer than any other part."""
    for label in ("base-0", DART, "日本-0.5"):
        a_run(tmp_path, label, [True] * 4)
    cells, measure, console = list[object](), Padding.__rich_measure__, Console(width=200)
    monkeypatch.setattr(Padding, "__rich_measure__", lambda cell, *more: cells.append(cell) or measure(cell, *more))

    def printed(table: Any) -> tuple[str, int]:
        with console.capture() as text:
            console.print(table)
        return text.get(), len(cells)

    shown_table = comparison(compared(tmp_path), ["random-0.5-layer2"])
    text, measured = printed(for_width(shown_table, 200))
    assert (text, measured) == (printed(rich_table(shown_table))[0], 0)


def test_a_reason_that_applies_to_all_settings_is_printed_once_without_their_names() -> None:
    names = [f"frame-0.{n}" for n in range(1, 6)]
    left = [LeftOut(name, "tau", "why") for name in names]
    assert lines_by_reason(left, names) == ["all 5 settings in tau: why"]
    assert lines_by_reason(left[:4], names) == [f"{', '.join(names[:4])} in tau: why"]
    assert lines_by_reason(left[:2], names[:2]) == ["frame-0.1, frame-0.2 in tau: why"]
