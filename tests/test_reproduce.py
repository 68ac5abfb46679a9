"""`audiomarathon reproduce`: the published table, the release's way of counting, and intervals of means."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from test_compare import a_run

from audiomarathon.errors import SettingsError
from audiomarathon.evaluation.published import _ROWS, published
from audiomarathon.evaluation.reproduce import Reproduced, paper_settings, reproduced
from audiomarathon.evaluation.run import Result
from audiomarathon.metrics.classification import as_published, published_choice_sums
from audiomarathon.settings import RunSettings
from audiomarathon.tasks.registry import BENCHMARK


class TestPublishedTable:
    @pytest.mark.parametrize(
        ("row", "average"),
        [
            ("Phi-4-MM", 47.7), ("Qwen2.5-Omni-3B", 67.2), ("Qwen2.5-Omni-7B", 70.5), ("Audio-Flamingo-3", 63.0),
            ("Gemma-3n-E2B", 45.5), ("Gemma-3n-E4B", 49.3), ("Voxtral-Mini-3B-2507", 57.4), ("Aero-1", 42.8),
            ("Human", 87.6),
        ],
    )  # fmt: skip
    def test_rows_average_to_what_the_paper_says(self, row: str, average: float) -> None:
        scores = [score for score in _ROWS[row] if not math.isnan(score)]
        assert sum(scores) / len(scores) == pytest.approx(average, abs=0.06)

    def test_columns_are_the_tasks(self) -> None:
        table = published("qwen2.5-omni-7b")
        assert set(table) == {task.key for task in BENCHMARK}
        assert (table["librispeech"], table["gtzan"], table["vox_age"]) == (0.981, 1.0, 0.214)
        assert published("embedded") == {}


class TestCounting:
    def test_is_that_of_the_published_block(self) -> None:
        truth, predicted = ["a", "a", "b", "b", "c"], ["a", "b", None, "b", "d"]
        sums = published_choice_sums(truth, predicted)
        figure = sums.statistic(sums.columns.sum(axis=0, keepdims=True))[0, 0]
        expected = as_published(truth, predicted)
        assert expected is not None
        assert figure == pytest.approx(expected["macro_f1"])

    def test_nothing_parsed_is_no_score(self) -> None:
        sums = published_choice_sums(["a", "b"], [None, None])
        assert math.isnan(sums.statistic(sums.columns.sum(axis=0, keepdims=True))[0, 0])


def results_of(root: Path, rights: dict[str, list[bool]]) -> list[Result]:
    return [Result(a_run(root, "base-0", right, task=task), "base-0", {}) for task, right in rights.items()]


class TestRows:
    def test_a_task_and_its_groups_mean(self, tmp_path: Path) -> None:
        rights = {"tau": [True] * 8, "gtzan": [True] * 4 + [False] * 4, "desed": [False] * 8}
        rows = {row.scope: row for row in reproduced(results_of(tmp_path, rights), "qwen2.5-omni-7b")}
        assert rows["tau"].mine == 1.0
        assert rows["tau"].difference == pytest.approx(1 - 0.722)
        group = rows["audio classification"]
        assert group.mine == pytest.approx(sum(rows[task].mine for task in rights) / 3)
        assert group.published == pytest.approx((0.722 + 1.0 + 0.784) / 3)
        assert group.interval[0] < group.mine < group.interval[1]
        assert "overall" not in rows

    def test_an_unparsed_reply_is_dropped_as_the_release_did(self, tmp_path: Path) -> None:
        (result,) = results_of(tmp_path, {"tau": [True] * 8})
        file = result.folder / "samples.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        records[0] |= {"parsed": None, "correct": False}
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        (row,) = reproduced([result], "embedded")
        assert row.mine == 1.0
        assert row.published is None

    @pytest.mark.parametrize(("told", "agrees"), [(0.5, True), (0.7, False), (None, None)])
    def test_agreement_is_lying_within_the_interval(self, told: float | None, agrees: bool | None) -> None:
        assert Reproduced("tau", 9, 0.5, (0.4, 0.6), told).agrees is agrees


class TestProtocol:
    def test_paper_is_the_public_runs_subsets(self) -> None:
        settings = paper_settings(RunSettings())
        assert (settings.balance, settings.skip_persons, settings.skip_emotion) == (True, ("2", "10"), "happy")

    @pytest.mark.parametrize("other", [{"method": "dart"}, {"seed": 7}])
    def test_what_contradicts_it_is_refused(self, other: dict[str, object]) -> None:
        with pytest.raises(SettingsError, match=r"base|seed 42"):
            paper_settings(RunSettings(**other))
