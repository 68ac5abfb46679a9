"""Grids, sweeps and plans: which settings run, the summary, and a failed task that leaves the others unaffected."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import task_folders
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.cli.app import app
from audiomarathon.compression.registry import all_methods
from audiomarathon.engine import calibration
from audiomarathon.engine import sweep as sweep_module
from audiomarathon.engine.sweep import grid, parse_ratios
from audiomarathon.errors import SettingsError
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni

CONFIGS = Path(__file__).parent.parent / "docs" / "configs"


def test_ratios_default_to_the_last_ratio_of_a_prune_schedule() -> None:
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
def test_ratios_are_parsed_as_exact_decimals(text: str, ratios: list[float]) -> None:
    assert parse_ratios(text) == ratios


@pytest.mark.parametrize(
    "text",
    ["", "a", "1", "-0.1", "0.1:0.9", "0.1:0.9:0", "0.9:0.1:0.1", "0.1:1:0.1", "nan", "inf", "0:nan:0.1", "0.1,,0.2"],
)
def test_malformed_ratios_give_a_one_line_error(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^--ratios=.*not allowed.*0\.1:0\.9:0\.1") as raised:
        parse_ratios(text)
    assert "\n" not in str(raised.value)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 30))
def test_a_range_of_ratios_gives_exact_hundredths(first: int, length: int, step: int) -> None:
    last = min(99, first + length)
    expected = [n / 100 for n in range(first, last + 1, step)]
    assert parse_ratios(f"{first / 100}:{last / 100}:{step / 100}") == expected


def labels(*names: str, ratios: tuple[float, ...] = (0.3, 0.5), **more: Any) -> list[str]:
    return [method.label for method in grid(names, ratios, **more)]


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (
            "base random fast_v",
            {},
            "base-0 random-0.3-layer2 random-0.5-layer2 fast_v-0.3-layer2 fast_v-0.5-layer2",
        ),
        ("random fast_v", {"ratios": (0.0, 0.5)}, "base-0 random-0.5-layer2 fast_v-0.5-layer2"),
        ("random", {"ratios": (0.0,), "base": False}, "base-0"),
        ("random", {"ratios": (0.5,), "base": False}, "random-0.5-layer2"),
        ("frame", {"ratios": (0.0, 0.7), "schedule": "1:0.3,3:0.7"}, "base-0 frame-0.7-layer1=0.3-3=0.7"),
        ("fast_v:0.7 knorm", {"layer": 3}, "base-0 fast_v-0.7-layer3 knorm-0.3 knorm-0.5"),
        ("fast_v:0.5+snapkv:0.3", {"layer": 3}, "base-0 fast_v-0.5-layer3+snapkv-0.3"),
        ("random random:0.5 random", {}, "base-0 random-0.3-layer2 random-0.5-layer2"),
    ],
)
def test_the_grid_of_a_sweep_holds_each_setting_once(names: str, options: dict[str, Any], expected: str) -> None:
    assert labels(*names.split(), **options) == expected.split()


def test_the_method_name_all_stands_for_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audiomarathon.engine.sweep.find_spec", lambda _package: True)
    keys = {method.key for method in all_methods()} - {"base", "a_tome_like"}  # a_tome_like works only in the tower
    assert {label.partition("-")[0] for label in labels("all", ratios=(0.5,))} == {"base", *keys}


@pytest.mark.parametrize(
    ("places", "taken", "not_taken"),
    [
        ({"at": "input"}, "frame-0.5-input", "knorm"),
        ({"scope": "all"}, "knorm-0.5-all", "frame"),
        ({"at": "tower"}, "a_tome_like-0.5", "dart"),
    ],
    ids=str,
)
def test_the_method_name_all_leaves_out_methods_that_do_not_support_the_given_at_or_scope(
    places: dict[str, str], taken: str, not_taken: str
) -> None:
    chosen = labels("all", ratios=(0.5,), **places)
    assert any(label.startswith(taken) for label in chosen)
    assert not any(label.startswith(not_taken) for label in chosen)


def test_the_method_name_all_leaves_out_methods_whose_package_is_missing_with_a_warning(monkeypatch) -> None:
    monkeypatch.setattr("audiomarathon.engine.sweep.find_spec", lambda _package: None)
    with pytest.warns(UserWarning, match=r"keep_speech.*pip install .audiomarathon\[vad\]"):
        chosen = labels("all", ratios=(0.5,))
    assert "keep_loud-0.5-layer2" in chosen
    assert "keep_speech-0.5-layer2" not in chosen
    assert "keep_speech-0.5-layer2" in labels("keep_speech", ratios=(0.5,))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fast_v+snapkv", "own ratio"),
        ("fast_v:0.5+snapkv", "own ratio"),
        ("dort", "unknown method"),
        ("base:0.5", "base drops nothing"),
    ],
)
def test_unknown_methods_and_missing_or_excess_ratios_are_refused(name: str, message: str) -> None:
    for ratios in ((0.5,), (0.0,)):
        with pytest.raises(SettingsError, match=message):
            labels(name, ratios=ratios)


@pytest.fixture
def command(no_env, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_checkpoint: Path):
    """Run the sweep command on the tiny checkpoint; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL_PATH", str(tiny_checkpoint))
    for seconds in ("_PRODUCT_S", "_PREFILL_S"):  # seconds of measuring this machine for a plan
        monkeypatch.setattr(calibration, seconds, 0.01)
    task_folders.build_tau(tmp_path / "data" / "TAU")
    task_folders.build_gtzan(tmp_path / "data" / "GTZAN")

    def call(*arguments: object) -> tuple[int, str, str]:
        settings = ["--data", "data", "--max-new-tokens", "2", "--limit", "2"]
        result = CliRunner().invoke(app, ["sweep", *settings, *map(str, arguments)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


def csv_rows() -> list[dict[str, str]]:
    return list(csv.DictReader(Path("results/summary.csv").read_text().splitlines()))


def summary() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("results/summary.json").read_text())
    return content


def results() -> list[tuple[str, str]]:
    return [(result["task"], result["setting"]) for result in summary()["results"]]


def test_all_shipped_config_files_can_share_one_results_folder(command) -> None:
    for file in sorted(CONFIGS.glob("*.yaml")):
        code, out, err = command("tau", "--config", file, "--methods", "base")
        assert code == 0, out + err


def test_a_sweep_writes_the_results_of_every_setting_and_of_base(command) -> None:
    code, out, err = command(
        "tau", "gtzan", "tau", "--methods", "random,snapkv", "--ratios", "0.0,0.5", "--decode-tokens", "4"
    )
    assert code == 0
    last = "audiomarathon report results"
    assert err.splitlines()[-1].endswith(last)
    content = summary()
    assert content["complete"] is True
    assert content["failures"] == {}
    settings = ["base-0", "random-0.5-layer2", "snapkv-0.5"]
    assert results() == [(task, setting) for task in ("tau", "gtzan") for setting in settings]
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


def test_a_sweep_notes_that_the_ratio_of_pyramidkv_is_an_average_over_layers(command) -> None:
    said = "the ratio holds on average over layers"
    command("gtzan", "--methods", "pyramidkv:0.5,snapkv:0.5")
    notes = {path.parent.name: json.loads(path.read_text())["note"] for path in Path("results").rglob("run.json")}
    assert said in notes.pop("pyramidkv-0.5")
    assert not any(said in note for note in notes.values())
    assert f"pyramidkv in gtzan: {said}" in " ".join(Path("results/summary.txt").read_text().split())


def test_without_base_no_speed_up_is_measured(command) -> None:
    assert command("gtzan", "--methods", "frame:0.5", "--no-base")[0] == 0
    (result,) = summary()["results"]
    assert result["savings"]["llm_prefill"]["measured"] is None
    assert result["savings"]["llm_prefill"]["ideal"] > 1
    text = " ".join(Path("results/summary.txt").read_text().split())
    assert "no speed-ups for frame-0.5-layer2 in gtzan: base was not run under the same conditions" in text


def test_a_task_without_data_does_not_stop_the_other_tasks(command) -> None:
    code, out, err = command("had", "gtzan", "--methods", "frame", "--ratios", "0.5", "--logs")
    assert code == 1
    assert "error: had: no folder" in err
    assert "FAILED had: no folder" in out
    content = summary()
    assert content["complete"] is False
    assert list(content["failures"]) == ["had"]
    assert [result["task"] for result in content["results"]] == ["gtzan", "gtzan"]
    assert [row["task"] for row in csv_rows() if row["error"]] == ["had"]
    assert "no folder" in Path("results/logs/had.log").read_text()
    assert "frame-0.5-layer2: score" in Path("results/logs/gtzan.log").read_text()


def test_a_bug_in_one_task_does_not_stop_the_other_tasks(command, monkeypatch: pytest.MonkeyPatch) -> None:
    run_task = sweep_module.run_task

    def broken(setup, engine, task, *rest):
        if task.key == "tau":
            raise ZeroDivisionError("a bug")
        return run_task(setup, engine, task, *rest)

    monkeypatch.setattr(sweep_module, "run_task", broken)
    code, _out, err = command("tau", "gtzan", "--methods", "frame:0.5", "--logs")
    assert code == 1
    assert "error: tau: ZeroDivisionError: a bug" in err
    assert summary()["failures"] == {"tau": "ZeroDivisionError: a bug"}
    assert "Traceback" in Path("results/logs/tau.log").read_text()


def test_a_failed_sample_shows_in_summary_and_exit_code(command) -> None:
    clip = sorted(Path("data/GTZAN/wav").iterdir())[0]
    clip.write_bytes(clip.read_bytes()[:100])
    code, out, err = command("gtzan", "--methods", "frame:0.5")
    assert code == 1
    assert f"{clip.name}: truncated" in err
    assert "FAILED gtzan frame-0.5-layer2: 1 sample" in out
    assert summary()["complete"] is False


def test_when_no_task_can_run_only_errors_are_printed(command, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_error_common_to_all_tasks_is_one_line_with_exit_code_2(command, arguments: list[str], message: str) -> None:
    code, _out, err = command(*arguments)
    assert code == 2
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [err.splitlines()[-1]]
    assert message in err
    assert not Path("results").exists()


def test_a_layer_refused_by_the_model_is_named_in_the_logs_and_the_summary(command) -> None:
    reason = "frame: layer 4 is not one of this model's layers 0–3"
    code, _out, err = command("tau", "had", "gtzan", "--methods", "frame", "--layer", "4", "--logs")
    assert code == 2
    assert [reason in line for line in err.splitlines() if line.startswith("error: ")] == [False, True]
    failures = summary()["failures"]
    assert "no folder" in failures.pop("had")
    assert set(failures) == {"tau", "gtzan"}
    for task, message in failures.items():
        assert reason in message
        assert reason in Path(f"results/logs/{task}.log").read_text()


def test_a_second_sweep_adds_rows_to_the_existing_summary(command) -> None:
    command("tau", "--methods", "snapkv:0.5")
    command("tau", "gtzan", "--methods", "frame:0.5", "--no-base")
    assert results() == [
        ("tau", "base-0"), ("tau", "frame-0.5-layer2"), ("tau", "snapkv-0.5"), ("gtzan", "frame-0.5-layer2"),
    ]  # fmt: skip
    assert [row["against_base_samples"] for row in csv_rows()] == ["2", "2", "2", ""]
    assert "no base" in Path("results/summary.txt").read_text()


def test_the_summary_lists_settings_that_another_process_finished_during_the_sweep(
    command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_task = sweep_module.run_task

    def with_another_process(setup, engine, task, *rest):
        yield from run_task(setup, engine, task, *rest)
        if task.key == "gtzan":
            monkeypatch.setattr(sweep_module, "run_task", run_task)
            command("tau", "--methods", "snapkv:0.5", "--no-base")

    monkeypatch.setattr(sweep_module, "run_task", with_another_process)
    command("tau", "gtzan", "--methods", "base")
    assert results() == [("tau", "base-0"), ("tau", "snapkv-0.5"), ("gtzan", "base-0")]


def test_repeating_a_complete_sweep_loads_no_model(command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("tau", "gtzan", "--methods", "frame:0.5")
    first = command(*arguments)
    monkeypatch.setattr(Qwen2_5Omni, "load", None)
    code, out, err = command(*arguments)
    assert (code, out) == (0, first[1])
    assert err.count("complete; nothing to do") == 4
    code, _out, err = command(*arguments, "--seed", "7")
    assert code == 1
    assert err.count("seed: 42 there, 7 now") == 2


def test_the_summary_leaves_out_folders_without_a_valid_run(command) -> None:
    command("tau", "--methods", "frame:0.5")
    for name, content in (("torn", '{"schema_ver'), ("other", '{"schema_version": 1, "task": "had"}')):
        folder = Path("results/tau/tiny-omni") / name
        folder.mkdir()
        for file in ("run.json", "summary.json"):
            (folder / file).write_text(content)
        (folder / "samples.jsonl").write_text("")
    assert command("tau", "--methods", "frame:0.5")[0] == 0
    assert results() == [("tau", "base-0"), ("tau", "frame-0.5-layer2")]


class TestPlanWithRecords:
    @pytest.fixture(autouse=True)
    def base_of_tau(self, command) -> None:
        command("tau", "--methods", "base")

    def test_a_plan_takes_its_speed_from_existing_records_and_skips_their_samples(self, command) -> None:
        before = {path: path.stat().st_mtime_ns for path in Path("results").rglob("*")}
        _code, out, _err = command("tau", "gtzan", "--methods", "frame:0.5", "--plan")
        assert re.search(r"tau: 2 samples .*0\.00 h .* x 2 settings, 2 replies on record, 2 to do", out)
        assert "from 2 base samples on record in results/tau/tiny-omni/base-0" in out
        assert re.search(r"gtzan: 2 samples .* x 2 settings: .*from FLOPs", out)
        assert "total: 6 replies" in out
        code, out, _err = command("tau", "gtzan", "--methods", "frame:0.5", "--plan", "--seed", "7")
        assert code == 1
        assert re.search(r"tau: cannot be run: results/tau/\S+/base-0: .*another run .*seed: 42 there, 7 now", out)
        assert "total: 4 replies" in out
        assert {path: path.stat().st_mtime_ns for path in Path("results").rglob("*")} == before

    def test_a_plan_estimates_from_flops_if_the_records_are_damaged(self, command) -> None:
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

    def test_a_sweep_plan_states_counts_and_estimated_times_without_running_anything(self, command) -> None:
        code, out, _err = command(
            "tau", "gtzan", "--methods", "frame,snapkv", "--ratios", "0.3,0.5", "--plan", "--limit", "3"
        )
        assert code == 0
        facts = ("2 tasks x 5 settings", "tau: 3 samples", "gtzan: 2 samples", "total: 25 replies", "from FLOPs")
        assert [words for words in (*facts, "memory: about", "These are estimates") if words not in out] == []
        assert re.search(r" TFLOP/s \(measured here in a short prefill; a matrix product reaches \d", out)
        assert not Path("results").exists()

    @pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
    def test_a_plan_counts_as_many_runs_as_each_shipped_config_file_states(self, command, file: Path) -> None:
        code, out, _err = command("tau", "gtzan", "--config", file, "--plan")
        assert code == 0
        (settings,) = re.findall(r"2 tasks x (\d+) settings", out)
        text = file.read_text(encoding="utf-8")
        assert yaml.safe_load(text)["tasks"] == "all"
        assert f"; {len(AUDIOMARATHON.tasks) * int(settings)} runs." in text
        assert f"audiomarathon sweep --config docs/configs/{file.name}" in text

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["frame:0.5", "--tflops", "40"], 0, ["40 TFLOP/s (given"]),
            (["frame:0.5", "--model", "gemma3n"], 0, ["config.json says model type"]),
            (
                ["frame:0.5", "--model-path", "nobody/nothing"],
                0,
                [
                    "total: 4 replies",
                    "x 2 settings: time unknown",
                    "no estimate of memory",
                    "No time estimate",
                    "--tflops",
                ],
            ),
            (["fast_v:0.5+snapkv:0.5", "--layer", "4"], 2, ["error: fast_v: layer 4", "layers 1–3"]),
        ],
        ids=["given speed", "config of another model type", "no checkpoint", "layer beyond the model"],
    )
    def test_a_sweep_plan_says_which_information_is_missing_for_its_estimates(
        self, command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: list[str]
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        got, out, err = command("tau", "--methods", *arguments, "--plan")
        assert (got, [word for word in words if word not in out + err]) == (code, [])
        assert "config is missing" not in out

    def test_a_plan_names_tasks_that_cannot_be_run_with_the_reason(self, command) -> None:
        code, out, _err = command("had", "gtzan", "--methods", "frame:0.5", "--plan")
        assert code == 1
        assert "had: cannot be run: no folder" in out
        assert "config" not in command("had", "--methods", "frame:0.5", "--plan")[1]
