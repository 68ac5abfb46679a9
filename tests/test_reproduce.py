"""`audiomarathon reproduce`: the published table, the release's way of counting, and intervals of means."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import task_folders
from builders import a_run, records_in, write_records
from typer.testing import CliRunner

from audiomarathon.benchmarks.audiomarathon.published import _ROWS
from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.benchmarks.registry import TASKS
from audiomarathon.cli.app import app
from audiomarathon.engine.run import Result
from audiomarathon.errors import SettingsError
from audiomarathon.metrics.classification import as_published, published_choice_sums
from audiomarathon.results.reproduce import protocol_settings, reproduced, row_of
from audiomarathon.settings import RunSettings


class TestPublishedTable:
    @pytest.mark.parametrize(
        ("row", "average"),
        [
            ("Phi-4-MM", 47.7), ("Qwen2.5-Omni-3B", 67.2), ("Qwen2.5-Omni-7B", 70.5), ("Audio-Flamingo-3", 63.0),
            ("Gemma-3n-E2B", 45.5), ("Gemma-3n-E4B", 49.3), ("Voxtral-Mini-3B-2507", 57.4), ("Aero-1", 42.8),
            ("Human", 87.6),
        ],
    )  # fmt: skip
    def test_every_published_row_averages_to_the_mean_printed_in_the_paper(self, row: str, average: float) -> None:
        scores = [score for score in _ROWS[row] if not math.isnan(score)]
        assert sum(scores) / len(scores) == pytest.approx(average, abs=0.06)


class TestCounting:
    def test_macro_and_weighted_f1_equal_those_of_the_original_code(self) -> None:
        truth, predicted = ["a", "a", "b", "b", "c"], ["a", "b", None, "b", "d"]
        sums, none_parsed = published_choice_sums(truth, predicted), published_choice_sums(["a", "b"], [None, None])
        expected = as_published(truth, predicted)
        assert expected is not None
        figures = sums.statistic(sums.columns.sum(axis=0, keepdims=True))[0]
        assert figures == pytest.approx([expected["macro_f1"], expected["weighted_f1"]])
        assert np.isnan(none_parsed.statistic(none_parsed.columns.sum(axis=0, keepdims=True))).all()


def results_of(root: Path, rights: dict[str, list[bool]]) -> list[Result]:
    return [Result(a_run(root, "base-0", right, task=task), "base-0", {}) for task, right in rights.items()]


class TestRows:
    def test_reproduced_task_scores_and_group_means_stand_beside_the_published_ones(self, tmp_path: Path) -> None:
        rights = {"tau": [True] * 8, "gtzan": [True] * 4 + [False] * 4, "desed": [False] * 8}
        rows = {row["scope"]: row for row in reproduced(results_of(tmp_path, rights), "qwen2.5-omni-7b")}
        assert rows["tau"]["mine"] == 1.0
        assert rows["tau"]["difference"] == pytest.approx(1 - 0.722)
        group = rows["audio classification"]
        assert group["mine"] == pytest.approx(sum(rows[task]["mine"] for task in rights) / 3)
        assert group["published"] == pytest.approx((0.722 + 1.0 + 0.784) / 3)
        assert group["interval"][0] < group["mine"] < group["interval"][1]
        assert "overall" not in rows

    def test_the_bootstrap_resamples_each_task_of_a_mean_independently(self, tmp_path: Path) -> None:
        """The mean of three similar tasks has an interval √3 times narrower. Common draws would not narrow it."""
        rights = {task: [True, True, False, True] * 15 for task in ("tau", "gtzan", "desed")}
        rows = reproduced(results_of(tmp_path, rights), "embedded")
        widths = [row["interval"][1] - row["interval"][0] for row in rows]
        assert widths[3] == pytest.approx(sum(widths[:3]) / 3 / 3**0.5, rel=0.1)

    def test_an_unparsed_reply_is_left_out_of_f1_as_in_the_original_code(self, tmp_path: Path) -> None:
        (result,) = results_of(tmp_path, {"tau": [True] * 8})
        first, *rest = records_in(result.folder)
        write_records(result.folder, [first | {"reply": "hard to say"}, *rest])
        (row,) = reproduced([result], "embedded")
        assert (row["mine"], row["samples"], row["unparsed"]) == (1.0, 8, 1)
        assert row["published"] is None

    def test_a_reproduced_score_agrees_if_the_published_score_lies_in_its_interval(self) -> None:
        for told, agrees in ((0.5, True), (0.7, False), (None, None)):
            assert row_of("tau", 9, 0, 0.5, (0.4, 0.6), None, told)["agrees"] is agrees


class TestProtocol:
    def test_the_paper_protocol_selects_the_data_subsets_of_the_published_runs(self) -> None:
        settings = protocol_settings(RunSettings(), "paper")
        assert (settings.balance, settings.skip_persons, settings.skip_emotion) == (True, ("2", "10"), "happy")

    def test_the_full_protocol_takes_every_sample_even_if_settings_would_select_fewer(self) -> None:
        narrowed = RunSettings(balance=True, skip_persons=("3",), skip_emotion="sad", seed=7)
        assert protocol_settings(narrowed, "full") == RunSettings(seed=7)

    def test_settings_that_contradict_the_chosen_protocol_are_refused(self) -> None:
        dart, seven = RunSettings(method="dart"), RunSettings(seed=7)
        for protocol, settings in (("paper", dart), ("full", dart), ("paper", seven), ("short", RunSettings())):
            with pytest.raises(SettingsError, match=r"base|seed 42|allowed: paper, full"):
                protocol_settings(settings, protocol)


class TestCommand:
    def test_a_failed_task_does_not_stop_the_others_and_is_named_in_the_files(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("RACE_DATA_PATH", str(tmp_path / "nowhere"))
        monkeypatch.setenv("TAU_DATA_PATH", str(task_folders.build_tau(tmp_path / "TAU")))
        result = CliRunner().invoke(
            app, ["reproduce", "race", "tau", "ASC", "--model", "embedded", "--limit", "2", "--results", str(tmp_path)]
        )
        assert result.exit_code == 1
        content = json.loads((tmp_path / "reproduce-paper" / "embedded.json").read_text())
        assert [(row["scope"], row["samples"]) for row in content["rows"]] == [("tau", 2)]
        assert "embedded, protocol paper, not in the published table" in result.output
        told = (tmp_path / "reproduce-paper" / "embedded.md").read_text()
        for line in ("race was not run: ", "2 samples per task only", "tau: the data has 10 samples, the whole task"):
            assert f"\n- {line}" in told

    def test_known_gaps_of_the_data_are_reported_with_the_number_of_samples_scored(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setenv("SLUE_DATA_PATH", str(task_folders.build_slue(tmp_path / "SLUE")))
        gap = {"path": "dev/mixed_concatenated_audio_0061.wav", "uniq_id": 61}
        task_folders.edit_rows(tmp_path / "SLUE" / "merged_audio_data.json", lambda rows: rows[2].update(gap))
        result = CliRunner().invoke(app, ["reproduce", "slue", "--model", "embedded", "--results", str(tmp_path)])
        assert result.output.count("left out 1 sample (known gaps of the published data)") == 2  # first and last
        told = (tmp_path / "reproduce-paper" / "embedded.md").read_text()
        assert "\n- slue: known gaps of the published data left out: 1, so n is 2" in told

    def test_a_task_outside_the_paper_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        theirs = type("Theirs", (Tau,), {"key": "theirs", "aliases": ()})()
        monkeypatch.setattr("audiomarathon.benchmarks.registry.plugins", lambda group, *_: [theirs][: group == TASKS])
        result = CliRunner().invoke(app, ["reproduce", "theirs"])
        assert result.exit_code == 2
        assert "not a task of the paper" in result.output
