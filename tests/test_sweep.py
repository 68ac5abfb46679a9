"""Grids, sweeps and plans: which settings run, what stands in the summary, and that one task's failure is its own."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import task_folders
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.cli.app import app
from audiomarathon.compression.registry import all_methods
from audiomarathon.engine import sweep as sweep_module
from audiomarathon.engine.sweep import grid, parse_ratios
from audiomarathon.errors import SettingsError
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni

CONFIGS = Path(__file__).parent.parent / "docs" / "configs"


class TestRatios:
    def test_default_to_the_last_ratio_of_a_prune_schedule(self) -> None:
        assert parse_ratios(None, "1:0.3,3:0.7") == [0.7]
        assert parse_ratios(None, default="0.5") == [0.5]
        assert parse_ratios("0.5", "1:0.3,3:0.7") == [0.5]

    @pytest.mark.parametrize(
        ("text", "ratios"),
        [
            ("0.1:0.9:0.1", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
            ("0.5", [0.5]),
            ("0.5,0.1", [0.1, 0.5]),
            ("0,0.25:0.75:0.25", [0.0, 0.25, 0.5, 0.75]),
            ("0.1:0.35:0.1", [0.1, 0.2, 0.3]),
            ("0.3, 0.30 ,.3", [0.3]),
            ("0.9:0.9:0.1", [0.9]),
        ],
    )
    def test_are_parsed_as_exact_decimals(self, text: str, ratios: list[float]) -> None:
        assert parse_ratios(text) == ratios

    @pytest.mark.parametrize(
        "text",
        [
            "",
            *[
                "a", "1", "-0.1", "0.1:0.9", "0.1:0.9:0", "0.9:0.1:0.1", "0.1:1:0.1", "nan", "inf", "0:nan:0.1",
                "0.1,,0.2",
            ],
        ],
    )  # fmt: skip
    def test_malformed_ratios_give_a_one_line_error(self, text: str) -> None:
        with pytest.raises(SettingsError, match=r"^--ratios=.*not allowed.*0\.1:0\.9:0\.1") as raised:
            parse_ratios(text)
        assert "\n" not in str(raised.value)

    @given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 30))
    def test_a_range_of_ratios_gives_exact_hundredths(self, first: int, length: int, step: int) -> None:
        last = min(99, first + length)
        expected = [n / 100 for n in range(first, last + 1, step)]
        assert parse_ratios(f"{first / 100}:{last / 100}:{step / 100}") == expected


class TestGrid:
    def labels(self, *names: str, ratios: tuple[float, ...] = (0.3, 0.5), **more) -> list[str]:
        return [method.label for method in grid(names, ratios, **more)]

    def test_contains_every_method_at_every_ratio_and_base_once(self) -> None:
        assert self.labels("base", "random", "fast_v") == [
            "base-0", "random-0.3-layer2", "random-0.5-layer2", "fast_v-0.3-layer2", "fast_v-0.5-layer2",
        ]  # fmt: skip

    def test_ratio_0_of_every_method_becomes_a_single_base_setting(self) -> None:
        assert self.labels("random", "fast_v", ratios=(0.0, 0.5)) == [
            "base-0",
            "random-0.5-layer2",
            "fast_v-0.5-layer2",
        ]
        assert self.labels("random", ratios=(0.0,), base=False) == ["base-0"]

    def test_the_method_name_all_stands_for_every_method(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("audiomarathon.engine.sweep.find_spec", lambda _package: True)
        keys = {method.key for method in all_methods()} - {"base", "a_tome_like"}  # the last is for the tower alone
        assert {label.partition("-")[0] for label in self.labels("all", ratios=(0.5,))} == {"base", *keys}

    @pytest.mark.parametrize(
        ("places", "taken", "not_taken"),
        [
            ({"at": "input"}, "frame-0.5-input", "knorm"),
            ({"scope": "all"}, "knorm-0.5-all", "frame"),
            ({"at": "tower"}, "a_tome_like-0.5", "dart"),
        ],
        ids=str,
    )
    def test_all_leaves_out_methods_that_cannot_prune_at_the_chosen_place(
        self, places: dict[str, str], taken: str, not_taken: str
    ) -> None:
        labels = self.labels("all", ratios=(0.5,), **places)
        assert any(label.startswith(taken) for label in labels)
        assert not any(label.startswith(not_taken) for label in labels)

    def test_all_leaves_out_methods_of_missing_packages_unless_they_are_named(self, monkeypatch) -> None:
        monkeypatch.setattr("audiomarathon.engine.sweep.find_spec", lambda _package: None)
        with pytest.warns(UserWarning, match=r"keep_speech.*pip install .audiomarathon\[vad\]"):
            labels = self.labels("all", ratios=(0.5,))
        assert "keep_loud-0.5-layer2" in labels
        assert "keep_speech-0.5-layer2" not in labels
        assert "keep_speech-0.5-layer2" in self.labels("keep_speech", ratios=(0.5,))

    def test_base_can_be_left_out_of_the_grid(self) -> None:
        assert self.labels("random", ratios=(0.5,), base=False) == ["random-0.5-layer2"]

    def test_ratio_0_is_base_with_a_schedule_too(self) -> None:
        labels = self.labels("frame", ratios=(0.0, 0.7), schedule="1:0.3,3:0.7")
        assert labels == ["base-0", "frame-0.7-layer1=0.3-3=0.7"]

    def test_methods_with_a_ratio_in_the_name_are_not_multiplied_by_the_ratio_grid(self) -> None:
        assert self.labels("fast_v:0.7", "fast_v:0.5+snapkv:0.3", "knorm", layer=3) == [
            "base-0", "fast_v-0.7-layer3", "fast_v-0.5-layer3+snapkv-0.3", "knorm-0.3", "knorm-0.5",
        ]  # fmt: skip

    def test_one_setting_named_twice_runs_once(self) -> None:
        assert self.labels("random", "random:0.5", "random") == ["base-0", "random-0.3-layer2", "random-0.5-layer2"]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("fast_v+snapkv", "own ratio"),
            ("fast_v:0.5+snapkv", "own ratio"),
            ("dort", "unknown method"),
            ("base:0.5", "base drops nothing"),
        ],
    )
    def test_unknown_methods_and_missing_or_excess_ratios_are_refused(self, name: str, message: str) -> None:
        for ratios in ((0.5,), (0.0,)):
            with pytest.raises(SettingsError, match=message):
                self.labels(name, ratios=ratios)


@pytest.fixture
def command(no_env, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_checkpoint: Path):
    """Run the sweep command on the tiny checkpoint; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL_PATH", str(tiny_checkpoint))
    task_folders.build_tau(tmp_path / "data" / "TAU")
    task_folders.build_gtzan(tmp_path / "data" / "GTZAN")

    def call(*arguments: object) -> tuple[int, str, str]:
        settings = ["--data", "data", "--max-new-tokens", "2", "--limit", "2"]
        result = CliRunner().invoke(app, ["sweep", *settings, *map(str, arguments)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


def csv_rows() -> list[dict[str, str]]:
    with Path("results/summary.csv").open() as stream:
        return list(csv.DictReader(stream))


class TestSweep:
    def test_every_shipped_config_file_runs_in_one_results_folder(self, command) -> None:
        for file in sorted(CONFIGS.glob("*.yaml")):
            code, out, err = command("tau", "--config", file, "--methods", "base")
            assert code == 0, out + err

    def test_writes_the_results_of_every_setting_and_of_base(self, command) -> None:
        code, out, err = command(
            "tau", "gtzan", "tau", "--methods", "random,snapkv", "--ratios", "0.0,0.5", "--decode-tokens", "4"
        )
        assert code == 0
        last = "audiomarathon report results"
        assert err.splitlines()[-1].endswith(last)
        content = json.loads(Path("results/summary.json").read_text())
        assert content["complete"] is True
        assert content["failures"] == {}
        settings = ["base-0", "random-0.5-layer2", "snapkv-0.5"]
        assert [(r["task"], r["setting"]) for r in content["results"]] == [
            (t, s) for t in ("tau", "gtzan") for s in settings
        ]
        base, random, snapkv = (result["savings"] for result in content["results"][:3])
        assert base["llm_prefill"]["measured"] == base["llm_prefill"]["ideal"] == 1.0
        assert random["llm_prefill"]["ideal"] > random["first_token"]["ideal"] > 1.0
        assert snapkv["llm_prefill"]["ideal"] == snapkv["first_token"]["ideal"] == 1.0
        for saved in (random, snapkv):
            assert saved["compared_samples"] == 2
            assert saved["llm_prefill"]["measured"] > 0
            assert saved["decode_per_token"]["measured"] > 0
            assert saved["kept_ratio"] == 12 / 25
            assert saved["kv_bytes_ratio"] > 1.0
        text = Path("results/summary.txt").read_text()
        for shown in (out, text):
            for word in ("accuracy", "LLM prefill ms", "(ideal ", "random-0.5-layer2", "gtzan"):
                assert word in shown
        rows = csv_rows()
        assert len(rows) == 6
        first = json.loads((Path("results") / content["results"][1]["folder"] / "summary.json").read_text())
        assert rows[1]["setting"] == "random-0.5-layer2"
        assert float(rows[1]["accuracy"]) == first["accuracy"]
        assert float(rows[1]["llm_prefill_s"]) == first["timing"]["llm_prefill_s"]["p50"]
        assert float(rows[1]["llm_prefill_speedup"]) == random["llm_prefill"]["measured"]
        assert rows[1]["kv_lengths"].split()[0] != rows[1]["kv_lengths"].split()[3]

    def test_notes_that_the_ratio_of_pyramidkv_is_an_average_over_layers(self, command) -> None:
        said = "the ratio holds on average over layers"
        command("gtzan", "--methods", "pyramidkv:0.5,snapkv:0.5")
        notes = {path.parent.name: json.loads(path.read_text())["note"] for path in Path("results").rglob("run.json")}
        assert said in notes.pop("pyramidkv-0.5")
        assert not any(said in note for note in notes.values())
        assert f"pyramidkv in gtzan: {said}" in " ".join(Path("results/summary.txt").read_text().split())

    def test_without_base_no_speed_up_is_measured(self, command) -> None:
        assert command("gtzan", "--methods", "frame:0.5", "--no-base")[0] == 0
        (result,) = json.loads(Path("results/summary.json").read_text())["results"]
        assert result["savings"]["llm_prefill"]["measured"] is None
        assert result["savings"]["llm_prefill"]["ideal"] > 1
        text = " ".join(Path("results/summary.txt").read_text().split())
        assert "no speed-ups for frame-0.5-layer2 in gtzan: base was not run under the same conditions" in text


class TestFailures:
    def test_a_task_without_data_does_not_stop_the_other_tasks(self, command) -> None:
        code, out, err = command("had", "gtzan", "--methods", "frame", "--ratios", "0.5", "--logs")
        assert code == 1
        assert "error: had: no folder" in err
        assert "FAILED had: no folder" in out
        content = json.loads(Path("results/summary.json").read_text())
        assert content["complete"] is False
        assert list(content["failures"]) == ["had"]
        assert [result["task"] for result in content["results"]] == ["gtzan", "gtzan"]
        assert [row["task"] for row in csv_rows() if row["error"]] == ["had"]
        assert "no folder" in Path("results/logs/had.log").read_text()
        assert "frame-0.5-layer2: score" in Path("results/logs/gtzan.log").read_text()

    def test_a_bug_in_one_task_does_not_stop_the_other_tasks(self, command, monkeypatch: pytest.MonkeyPatch) -> None:
        run_task = sweep_module.run_task

        def broken(setup, engine, task, *rest):
            if task.key == "tau":
                raise ZeroDivisionError("a bug")
            return run_task(setup, engine, task, *rest)

        monkeypatch.setattr(sweep_module, "run_task", broken)
        code, _out, err = command("tau", "gtzan", "--methods", "frame:0.5", "--logs")
        assert code == 1
        assert "error: tau: ZeroDivisionError: a bug" in err
        assert json.loads(Path("results/summary.json").read_text())["failures"] == {"tau": "ZeroDivisionError: a bug"}
        assert "Traceback" in Path("results/logs/tau.log").read_text()

    def test_a_failed_sample_shows_in_summary_and_exit_code(self, command) -> None:
        clip = sorted(Path("data/GTZAN/wav").iterdir())[0]
        clip.write_bytes(clip.read_bytes()[:100])
        code, out, err = command("gtzan", "--methods", "frame:0.5")
        assert code == 1
        assert f"{clip.name}: truncated" in err
        assert "FAILED gtzan frame-0.5-layer2: 1 sample" in out
        assert json.loads(Path("results/summary.json").read_text())["complete"] is False

    def test_when_no_task_can_run_only_errors_are_printed(self, command, monkeypatch: pytest.MonkeyPatch) -> None:
        command("gtzan", "--methods", "base")
        before = [Path(f"results/summary.{kind}").read_bytes() for kind in ("txt", "csv", "json")]
        monkeypatch.setattr(Qwen2_5Omni, "load", None)
        code, out, err = command("had", "vesus", "--methods", "frame:0.5")
        assert (code, out) == (1, "")
        assert [line[:12] for line in err.splitlines()] == ["error: had: ", "error: vesus"]
        assert [Path(f"results/summary.{kind}").read_bytes() for kind in ("txt", "csv", "json")] == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["tauu"], "unknown task 'tauu'"),
            (["tau", "--ratios", "2"], "--ratios=2: not allowed"),
            (["tau", "--methods", "dort"], "unknown method 'dort' (did you mean 'dart'?)"),
            (["tau", "--methods", "frame", "--scope", "all"], "frame drops audio tokens only"),
            (["tau", "--methods", ",", "--no-base"], "no settings to run"),
            (["tau", "--methods", "tova", "--batch-size", "2"], "BATCH_SIZE=2: needs --no-timing"),
            (["tau", "--methods", "tova", "--batch-size", "2", "--plan"], "BATCH_SIZE=2: needs --no-timing"),
        ],
    )
    def test_an_error_common_to_all_tasks_is_one_line_with_exit_code_2(
        self, command, arguments: list[str], message: str
    ) -> None:
        code, _out, err = command(*arguments)
        assert code == 2
        assert [line for line in err.splitlines() if line.startswith("error: ")] == [err.splitlines()[-1]]
        assert message in err
        assert not Path("results").exists()

    def test_a_layer_refused_by_the_model_is_named_in_the_logs_and_the_summary(self, command) -> None:
        reason = "frame: layer 4 is not one of this model's layers 0–3"
        code, _out, err = command("tau", "had", "gtzan", "--methods", "frame", "--layer", "4", "--logs")
        assert code == 2
        assert [reason in line for line in err.splitlines() if line.startswith("error: ")] == [False, True]
        failures = json.loads(Path("results/summary.json").read_text())["failures"]
        assert "no folder" in failures.pop("had")
        assert set(failures) == {"tau", "gtzan"}
        for task, message in failures.items():
            assert reason in message
            assert reason in Path(f"results/logs/{task}.log").read_text()


class TestSecondSweep:
    """Into the same folder: what the first one found stays in the summary."""

    def results(self) -> list[tuple[str, str]]:
        content = json.loads(Path("results/summary.json").read_text())
        return [(result["task"], result["setting"]) for result in content["results"]]

    def test_adds_rows_to_the_existing_summary(self, command) -> None:
        command("tau", "--methods", "snapkv:0.5")
        command("tau", "gtzan", "--methods", "frame:0.5", "--no-base")
        assert self.results() == [
            ("tau", "base-0"), ("tau", "frame-0.5-layer2"), ("tau", "snapkv-0.5"), ("gtzan", "frame-0.5-layer2"),
        ]  # fmt: skip
        rows = csv_rows()
        assert [row["against_base_samples"] for row in rows] == ["2", "2", "2", ""]
        assert "no base" in Path("results/summary.txt").read_text()

    def test_lists_settings_that_another_process_finished_during_the_sweep(
        self, command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process finishes a setting of a task that this sweep is done with."""
        import audiomarathon.engine.sweep as module

        real = module.run_task

        def and_another_one_finishes(setup, engine, task, *rest):
            yield from real(setup, engine, task, *rest)
            if task.key == "gtzan":
                monkeypatch.setattr(module, "run_task", real)
                command("tau", "--methods", "snapkv:0.5", "--no-base")

        monkeypatch.setattr(module, "run_task", and_another_one_finishes)
        command("tau", "gtzan", "--methods", "base")
        assert self.results() == [("tau", "base-0"), ("tau", "snapkv-0.5"), ("gtzan", "base-0")]

    def test_of_finished_runs_or_runs_of_another_seed_loads_no_model(
        self, command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ("tau", "gtzan", "--methods", "frame:0.5")
        first = command(*arguments)
        monkeypatch.setattr(Qwen2_5Omni, "load", None)
        code, out, err = command(*arguments)
        assert (code, out) == (0, first[1])
        assert err.count("complete; nothing to do") == 4
        code, _out, err = command(*arguments, "--seed", "7")
        assert code == 1
        assert err.count("seed: 42 there, 7 now") == 2

    def test_ignores_folders_without_a_valid_run(self, command) -> None:
        command("tau", "--methods", "frame:0.5")
        for name, content in (("torn", '{"schema_ver'), ("other", '{"schema_version": 1, "task": "had"}')):
            folder = Path("results/tau/tiny-omni") / name
            folder.mkdir()
            for file in ("run.json", "summary.json"):
                (folder / file).write_text(content)
            (folder / "samples.jsonl").write_text("")
        assert command("tau", "--methods", "frame:0.5")[0] == 0
        assert self.results() == [("tau", "base-0"), ("tau", "frame-0.5-layer2")]


class TestPlanWithRecords:
    def test_existing_records_give_the_speed_and_are_not_planned_again(self, command) -> None:
        command("tau", "--methods", "base")
        before = {path: path.stat().st_mtime_ns for path in Path("results").rglob("*")}
        _code, out, _err = command("tau", "gtzan", "--methods", "frame:0.5", "--plan")
        assert re.search(r"tau: 2 samples .*0\.00 h .* x 2 settings, 2 replies on record, 2 to do", out)
        assert "from 2 base samples on record in results/tau/tiny-omni/base-0" in out
        assert re.search(r"gtzan: 2 samples .* x 2 settings: .*from FLOPs", out)
        assert "total: 6 replies" in out
        assert {path: path.stat().st_mtime_ns for path in Path("results").rglob("*")} == before

    def test_existing_records_of_another_seed_are_reported_as_a_clash(self, command) -> None:
        command("tau", "--methods", "base")
        code, out, _err = command("tau", "gtzan", "--methods", "frame:0.5", "--plan", "--seed", "7")
        assert code == 1
        assert re.search(
            r"tau: cannot be run: results/tau/tiny-omni/base-0: .*another run .*seed: 42 there, 7 now", out
        )
        assert "total: 4 replies" in out

    def test_with_damaged_records_estimates_from_flops(self, command) -> None:
        command("tau", "--methods", "base")
        records = Path("results/tau/tiny-omni/base-0/samples.jsonl")
        first, *_others = records.read_text().splitlines(keepends=True)
        for damaged in ("[]\n{}\n", '{"id": "x"', first.replace('"load"', '"lod"')):
            records.write_text(damaged)
            code, out, _err = command("tau", "--methods", "frame:0.5", "--plan")
            assert code == 0
            assert "from FLOPs" in out


class TestPlan:
    @pytest.fixture(autouse=True)
    def no_model(self, command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Qwen2_5Omni, "load", None)

    def test_states_counts_and_how_times_were_estimated_and_runs_nothing(self, command) -> None:
        code, out, _err = command(
            "tau", "gtzan", "--methods", "frame,snapkv", "--ratios", "0.3,0.5", "--plan", "--limit", "3"
        )
        assert code == 0
        assert "2 tasks x 5 settings" in out
        assert "tau: 3 samples" in out
        assert "gtzan: 2 samples" in out
        assert "total: 25 replies" in out
        assert "from FLOPs" in out
        assert re.search(r" TFLOP/s \(measured here in a short prefill; a matrix product reaches \d", out)
        assert "memory: about" in out
        assert "These are estimates" in out
        assert not Path("results").exists()

    @pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
    def test_counts_as_many_runs_as_each_shipped_config_file_states(self, command, file: Path) -> None:
        code, out, _err = command("tau", "gtzan", "--config", file, "--plan")
        assert code == 0
        (settings,) = re.findall(r"2 tasks x (\d+) settings", out)
        text = file.read_text(encoding="utf-8")
        assert yaml.safe_load(text)["tasks"] == "all"
        assert f"; {len(AUDIOMARATHON.tasks) * int(settings)} runs." in text
        assert f"audiomarathon sweep --config docs/configs/{file.name}" in text

    def test_uses_the_speed_given_with_tflops(self, command) -> None:
        _code, out, _err = command("tau", "--methods", "frame:0.5", "--plan", "--tflops", "40")
        assert "40 TFLOP/s (given" in out

    def test_refuses_a_layer_beyond_the_model(self, command) -> None:
        code, _out, err = command("tau", "--methods", "fast_v:0.5+snapkv:0.5", "--layer", "4", "--plan")
        assert code == 2
        assert re.search("error: fast_v: layer 4 .*layers 1–3", err)

    def test_names_tasks_that_cannot_be_run_with_the_reason(self, command) -> None:
        code, out, _err = command("had", "gtzan", "--methods", "frame:0.5", "--plan")
        assert code == 1
        assert "had: cannot be run: no folder" in out
        assert "config" not in command("had", "--methods", "frame:0.5", "--plan")[1]

    def test_the_config_of_another_model_type_is_not_reported_as_missing(self, command) -> None:
        out = command("tau", "--methods", "frame:0.5", "--plan", "--model", "gemma3n")[1]
        assert "config.json says model type" in out
        assert "config is missing" not in out

    def test_without_the_checkpoint_counts_replies_but_estimates_no_time(
        self, command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        code, out, _err = command("tau", "--methods", "frame:0.5", "--plan", "--model-path", "nobody/nothing")
        assert code == 0
        assert "total: 4 replies" in out
        assert re.search(r"tau: 2 samples .* x 2 settings: time unknown", out)
        assert "no estimate of memory" in out
        assert "No time estimate" in out
        assert "--tflops" in out
