"""What the report page recommends, and its reasons if it recommends nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import a_run, a_session, as_control, changed, changed_records, finished, timed_as, with_identity
from conftest import call, succeed

from audiomarathon.judges.anchors import Certificate
from audiomarathon.records import Figure
from audiomarathon.report.page import PageOptions, page
from audiomarathon.report.page_data import PageData
from audiomarathon.report.sections import advice, sections
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.folder import read_run
from audiomarathon.scoring.choice import Choice

MOST = [True] * 7 + [False]  # if all were right, the interval of a difference would allow a loss


def data_of(folder: Path) -> PageData:
    return PageData(read_systems([folder]))


def said(folder: Path) -> list[str]:
    return advice(data_of(folder))


def first_table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = sections(data_of(folder))[0].tables[0].frame.to_dict("records")
    return rows


def a_pruned(root: Path, label: str = "dart-0.5-layer2", rights: Any = MOST, prefill: float = 0.5, **more: Any) -> Path:
    return finished(a_run(root, label, list(rights), prefill=prefill, **more))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    finished(a_run(tmp_path, "base-0", MOST))
    return tmp_path


def test_the_fastest_setting_that_loses_at_most_one_score_point_is_recommended_first(root: Path) -> None:
    a_pruned(root)
    a_pruned(root, "fast_v-0.3-layer2", prefill=0.8)
    a_pruned(root, "dart-0.9-layer2", [True] * 4 + [False] * 4, prefill=0.1)
    (line,) = said(root)
    assert "dart-0.5-layer2 keeps the score within 1 point at 1.83×" in line
    names = [row["setting"] for row in first_table(root)]
    assert names == ["dart-0.5-layer2", "fast_v-0.3-layer2", "base-0", "dart-0.9-layer2"]
    assert first_table(root)[0]["setting_said"] == "recommended"


def test_advice_on_a_press_that_cannot_change_replies_states_no_confidence_interval(tmp_path: Path) -> None:
    """Two samples give no interval."""
    finished(a_run(tmp_path, "base-0", [True] * 2))
    a_pruned(tmp_path, "snapkv-0.5", [True] * 2)
    (line,) = said(tmp_path)
    assert "snapkv-0.5 keeps the score" in line
    assert "by construction" in line
    assert "interval" not in line


def test_a_setting_excluded_from_the_ranking_is_named_in_a_note(root: Path) -> None:
    """The excluded setting is faster, but has only two of eight samples."""
    a_pruned(root)
    a_pruned(root, "dart-0.9-layer2", [True] * 2, prefill=0.1)
    assert "dart-0.5-layer2 keeps" in said(root)[0]
    assert first_table(root)[0]["setting"] == "dart-0.5-layer2"
    notes = sections(data_of(root))[0].notes[""]
    assert any("not ranked: dart-0.9-layer2" in note for note in notes)


@pytest.mark.parametrize("mark", [Certificate({}).mark, Certificate({"injection": (1, 10)}).mark])
def test_a_recommendation_based_on_scores_of_an_unreliable_judge_has_a_warning(root: Path, mark: str) -> None:
    folder = a_pruned(root)
    assert len(said(root)) == 1
    finished(folder, notes=[f"judge A: {mark}"])
    _advised, warning = said(root)
    assert "scores alone" in warning


def two_controls(root: Path) -> None:
    as_control(root / "tau" / "M" / "base-0")
    as_control(a_pruned(root))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda root: a_run(root, "dart-0.5-layer2", [True] * 8, prefill=0.5), "can be compared with its base"),
        (lambda root: a_pruned(root, prefill=0.999), "within 1 point of base's and is faster"),
        (lambda root: a_pruned(finished(a_run(root, "base-0", [True])).parents[2], rights=[True]),
         "the speed-up has no interval, the score has no interval"),
        (two_controls, "control runs are not ranked"),
    ],
)  # fmt: skip
def test_no_setting_is_recommended_without_comparable_times_a_gain_or_intervals_or_on_controls(
    root: Path, make: Callable[[Path], object], why: str
) -> None:
    make(root)
    (line,) = said(root)
    assert why in line


def losing_one(root: Path) -> Path:
    """Write a run with the score of base whose interval allows a loss."""
    return a_pruned(root, rights=[False] + [True] * 7)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (losing_one, "the score's interval allows a larger loss"),
        (lambda root: timed_as(a_pruned(root), [0.1] * 4 + [1.2] * 4), "the speed-up's interval includes 1"),
        (lambda root: changed(a_pruned(root), sessions=[a_session("s", busy=3.0)]), "the machine was busy"),
        (
            lambda root: changed(changed_records(a_pruned(root), session="t"), sessions=[a_session("t")]),
            "its times come from another session than base's",
        ),
    ],
    ids=["loss", "slow", "busy", "session"],
)
def test_a_setting_whose_speed_up_or_score_loss_is_uncertain_is_not_recommended(
    root: Path, make: Callable[[Path], Path], why: str
) -> None:
    changed(root / "tau" / "M" / "base-0", sessions=[a_session("s")])
    folder = make(root)
    finished(folder if read_run(folder).get("sessions") else changed(folder, sessions=[a_session("s")]))
    (line,) = said(root)
    assert "no recommendation, because dart-0.5-layer2 was" in line
    assert why in line
    assert "more samples" in line
    assert all(row["setting_said"] != "recommended" for row in first_table(root))


def test_a_setting_certain_to_keep_the_score_is_recommended_before_a_faster_uncertain_one(root: Path) -> None:
    a_pruned(root)
    a_pruned(root, "fast_v-0.9-layer2", rights=[False] + [True] * 7, prefill=0.2)
    assert "M: dart-0.5-layer2 keeps the score" in said(root)[0]


def test_a_recommendation_of_random_pruning_says_that_it_is_only_a_control(root: Path) -> None:
    a_pruned(root, "random-0.5-layer2")
    (line,) = said(root)
    assert "That is the control" in line
    assert "other setting is none" in line


def test_the_page_has_one_line_of_advice_per_checkpoint(root: Path) -> None:
    a_pruned(root)
    other = a_pruned(root / "more")
    with_identity(changed(other, checkpoint="/m/N"), checkpoint="N")
    lines = said(root)
    assert len(lines) == 2
    assert any("these runs include no base of this checkpoint" in line for line in lines)


class TestOddRuns:
    def test_a_run_of_an_uninstalled_task_does_not_hide_other_runs_on_the_report_page(self, root: Path) -> None:
        a_pruned(root)
        for label in ("base-0", "dart-0.5-layer2"):
            changed(finished(a_run(root / "x", label, [True] * 4)), task="alien")
        html = page(data_of(root), PageOptions(spectrograms=False))
        assert "alien" in html
        assert data_of(root).figures["tau", 1]["difference"] == 0
        succeed("report", root, "-o", root / "r.html", "--figures", root / "f")

    def test_a_class_label_that_contains_html_is_escaped_on_the_report_page(self, root: Path) -> None:
        folder = a_pruned(root)
        for label in ("n", "score", "x_low", "setting_why", "<img src=x>", "_a"):
            reference = {"answer": "A", "options": ["a", "b"], "labels": [label, "other"]}
            for run_folder in (folder, folder.with_name("base-0")):
                changed_records(run_folder, reference=reference)
            html = page(data_of(root), PageOptions(spectrograms=False))
            assert "<img" not in html.partition('<script type="application/json"')[0]

    def test_runs_without_score_and_times_do_not_crash_the_plot_command(self, tmp_path: Path) -> None:
        folder = finished(a_run(tmp_path, "base-0", [True] * 4), score=None, intervals=None)
        for changes in ({"kv_bytes": 0}, {"time": None, "kv_bytes": None}):
            changed_records(folder, **changes)
            assert "Traceback" not in call("plot", tmp_path, "-o", tmp_path / "p")[1]


def test_an_unfinished_task_is_left_out_of_the_mean(root: Path) -> None:
    """The sweep is still running: its last task has records and no summary yet."""
    finished(a_run(root, "base-0", MOST, task="gtzan"))
    a_run(root, "base-0", [True] * 3, task="desed")
    a_pruned(root)
    a_pruned(root, task="gtzan")
    a_run(root, "dart-0.5-layer2", [True] * 3, task="desed", prefill=0.1)
    data = data_of(root)
    assert set(data.scopes["overall"]) == {"tau", "gtzan"}
    assert data.figures["overall", 1]["difference"] == 0
    assert "on 16 samples of 2 tasks" in said(root)[0]


def test_a_score_point_is_one_hundredth_of_the_range_of_the_score(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of 0 to 2 have points of 0.02."""
    assert data_of(root).point == 0.01
    monkeypatch.setattr(Choice, "figure", Figure("macro_f1", "macro-F1", 0.0, 2.0))
    a_pruned(root, rights=[True] * 6 + [False] * 2)
    data = data_of(root)
    assert data.point == 0.02
    assert data.figures["tau", 1]["difference"] < -0.02
    assert "no setting keeps" in said(root)[0]


class TestMargin:
    def advised(self, folder: Path, margin: float = 0.05) -> str:
        (line,) = advice(PageData(read_systems([folder]), margins={"": margin}))
        return line

    def test_a_faster_setting_is_recommended_if_its_score_loss_is_certainly_within_the_margin(
        self, tmp_path: Path
    ) -> None:
        rights = [True, True, True, False] * 30
        finished(a_run(tmp_path, "base-0", rights))
        a_pruned(tmp_path, rights=rights)
        a_pruned(tmp_path, "dart-0.9-layer2", [False] * 120, prefill=0.1)
        assert "dart-0.5-layer2 is decided to lose no more than 0.05 at 1.83×" in self.advised(tmp_path)

    def test_advice_states_the_samples_needed_if_a_score_loss_within_the_margin_is_not_yet_proven(
        self, root: Path
    ) -> None:
        a_pruned(root)
        assert "dart-0.5-layer2 keeps the score within 1 point" in said(root)[0]  # as without a margin
        line = self.advised(root)
        assert "no recommendation, because dart-0.5-layer2 was 1.83× as fast, but tau does not decide" in line
        assert "samples like these would settle it" in line

    def test_a_setting_within_the_score_margin_but_not_surely_faster_is_not_recommended(self, tmp_path: Path) -> None:
        rights = [True, True, True, False] * 30
        changed(finished(a_run(tmp_path, "base-0", rights)), sessions=[a_session("s")])
        finished(changed(a_pruned(tmp_path, rights=rights), sessions=[a_session("s", busy=3.0)]))
        assert "but the machine was busy" in self.advised(tmp_path)

    def test_verdicts_on_score_margins_are_written_to_a_latex_table(self, tmp_path: Path) -> None:
        finished(a_run(tmp_path, "base-0", [True] * 40))
        a_pruned(tmp_path, rights=[False] * 40)
        options = ("--margin", "0.05", "--figures", tmp_path / "f", "--audio", "none", "-o", tmp_path / "r.html")
        succeed("report", tmp_path, *options)
        assert "it is worse by more than 0.05 in tau" in self.advised(tmp_path)
        assert "worse by more than 0.05" in (tmp_path / "f" / "margins-1.tex").read_text()
        assert "lose no more" not in (tmp_path / "r.html").read_text()

    def test_a_score_margin_for_a_task_without_runs_is_refused(self, root: Path) -> None:
        a_pruned(root)
        code, said = call("report", root, "--margin", "race=0.05", "-o", root / "r.html")
        assert code == 2
        assert "no run of race here; allowed: tau" in said


def test_the_report_shows_the_number_of_samples_shared_with_base_if_some_are_missing(tmp_path: Path) -> None:
    finished(a_run(tmp_path, "base-0", [True] * 4 + [False] * 4))
    a_pruned(tmp_path, rights=[True] * 6)
    changed_records(tmp_path / "tau" / "M" / "base-0", session="s")
    assert data_of(tmp_path).figures["tau", 1]["shared"] == 6
    finished(a_run(tmp_path / "b", "base-0", [True] * 4))
    a_pruned(tmp_path / "b", rights=[True] * 8)
    assert data_of(tmp_path / "b").figures["tau", 1]["difference_said"] == "same replies, n 4"


def test_the_choice_table_leaves_out_a_time_to_first_token_that_cannot_be_compared_with_base(root: Path) -> None:
    changed(changed_records(a_pruned(root), session="t"), sessions=[a_session("t")])
    base, dart = (next(row for row in first_table(root) if name in row["setting"]) for name in ("base", "dart"))
    assert base["prefill_s"] > 0
    assert dart["prefill_s"] is None
