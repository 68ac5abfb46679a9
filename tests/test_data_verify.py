"""Verifying and measuring a data root."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import call, succeed
from lalm_folders import ROWS, edit_table, mmau_pro_folder
from task_folders import BUILDERS, COUNTS, build_all, edit_rows, write_clip, write_json

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.benchmarks.rows import Row
from audiomarathon.data.durations import Durations
from audiomarathon.data.verify import verify
from audiomarathon.embedded import mini_benchmark as mini

ROOT = Path(__file__).parent.parent


def expect(root: Path, **tasks: tuple[float, float]) -> Path:
    """Write the expected content of a root's tasks: their sample counts and a range of clip lengths."""
    bounds = {key: {"min_seconds": low, "max_seconds": high} for key, (low, high) in tasks.items()}
    entries = {key: {"count": COUNTS[key], **of} for key, of in bounds.items()}
    return write_json(root / "audiomarathon.json", {"name": "test", "licence": "CC0-1.0", "tasks": entries})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return expect(build_all(tmp_path), **dict.fromkeys(COUNTS, (1.0, 1.0))).parent


def test_data_verify_finds_no_problem_in_intact_data_of_every_task(root: Path) -> None:
    for task in AUDIOMARATHON.tasks:
        report = verify(task, root, {}, deep=True, tolerance=0)
        assert (report.state, report.samples, report.problems) == ("ok", COUNTS[task.key], ())
    succeed("data", "verify", "all", "--data", root)


def test_samples_missing_from_the_published_data_are_reported_as_a_note_not_as_a_problem(root: Path) -> None:
    gap = {"path": "dev/mixed_concatenated_audio_0061.wav", "uniq_id": 61}
    edit_rows(root / "SLUE" / "merged_audio_data.json", lambda rows: rows[2].update(gap))
    output = succeed("data", "verify", "slue", "--data", root)
    assert "slue: note: 1 sample left out: known gaps of the published data" in output
    assert "mixed_concatenated_audio_0061" in output


CLIP = "TAU/concatenated_resampled/bus-lisbon-1000-0-a.wav"


def cut_short(root: Path) -> None:
    (root / CLIP).write_bytes((root / CLIP).read_bytes()[:1000])


def unscaled(root: Path) -> None:
    samples, rate = soundfile.read(root / CLIP, dtype="int16")
    soundfile.write(root / CLIP, samples.astype(np.float32), rate, subtype="FLOAT")


def edited(edit: Callable[[list], object]) -> Callable[[Path], None]:
    return lambda root: edit_rows(root / "TAU" / "acoustic_scene_task_meta.json", edit)


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "cut": (cut_short, "clip", "bus-lisbon-1000-0-a.wav: truncated"),
    "unscaled": (unscaled, "clip", "bus-lisbon-1000-0-a.wav: holds samples far outside"),
    "long": (lambda root: write_clip(root / CLIP, seconds=2.6), "duration", "2.60 s, expected 1 to 1 s"),
    "short": (lambda root: expect(root, tau=(2.5, 3.0), vesus=(1.0, 1.0)), "duration", "1.00 s, expected 2.5 to 3 s"),
    "gone": (lambda root: next((root / "TAU").rglob("tram*.wav")).unlink(), "row", "tram-lisbon.* is missing"),
    "answer": (edited(lambda rows: rows[3].update(answer_gt="Q")), "row", "row 4: answer 'Q' is none of"),
    "twice": (edited(lambda rows: rows.append(rows[0])), "row", "row 11: duplicate id"),
    "fewer": (edited(lambda rows: rows.pop()), "count", "9 samples .*, expected 10"),
    "torn": (lambda root: (root / "TAU" / "acoustic_scene_task_meta.json").write_text("[{"), "task", "not JSON"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_data_verify_reports_each_kind_of_damage_with_exit_code_1(root: Path, name: str, tmp_path: Path) -> None:
    damage, kind, text = DAMAGE[name]
    damage(root)
    code, _ = call("data", "verify", "tau", "vesus", "--data", root, "--json", tmp_path / "out" / "report.json")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (code, report["good"]) == (1, False)
    by_task = {task["task"]: task for task in report["tasks"]}
    assert (by_task["tau"]["state"], by_task["vesus"]["state"]) == ("wrong", "ok")
    problem = next(problem for problem in by_task["tau"]["problems"] if problem["kind"] == kind)
    assert re.search(text, problem["text"]), problem


def test_damage_inside_a_clip_is_found_by_data_verify_only_with_its_deep_option(root: Path) -> None:
    clip = next((root / "LIBRISPEECH").rglob("*.flac"))
    data = clip.read_bytes()
    place = data.index(b"\xff\xf8") + 20  # within the first frame
    clip.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    assert call("data", "verify", "librispeech", "--data", root)[0] == 0
    code, output = call("data", "verify", "librispeech", "--data", root, "--deep")
    assert code == 1
    assert f"{clip}: damaged or truncated" in output


def test_data_verify_gives_exit_code_1_for_missing_tasks_only_if_they_were_named(tmp_path: Path) -> None:
    BUILDERS["vesus"](tmp_path / "VESUS")
    expect(tmp_path, vesus=(0.5, 1.5))
    assert call("data", "verify", "--data", tmp_path)[0] == 0
    code, output = call("data", "verify", "vesus", "tau", "--data", tmp_path)
    assert code == 1
    assert "missing: tau." in output
    assert "audiomarathon data download tau" in output
    assert call("data", "verify", "all", "--data", tmp_path)[0] == 1
    (tmp_path / "nothing").mkdir()
    assert call("data", "verify", "--data", tmp_path / "nothing")[0] == 1


def test_the_data_option_overrides_a_tasks_environment_variable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VESUS_DATA_PATH", str(root / "nowhere"))
    assert call("data", "verify", "vesus", "--data", root)[0] == 0
    assert call("data", "verify", "vesus")[0] == 1


def test_the_word_mini_in_place_of_a_data_folder_stands_for_the_mini_benchmark(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini, "mini_benchmark", lambda: root)
    for command in ("verify", "durations"):
        succeed("data", command, "vesus", "--data", "mini")
    monkeypatch.setenv("AUDIOMARATHON_DATA", "mini")
    succeed("data", "verify", "vesus")


# Durations -----------------------------------------------------------------------------------------------------------


def test_duration_statistics_equal_those_of_numpy() -> None:
    seconds = np.random.default_rng(0).uniform(90, 300, 37)
    durations_ = Durations(get_task("tau"), tuple(seconds.tolist()), 40)
    figures = durations_.statistics()
    assert (figures["clips"], figures["samples"]) == (37, 40)
    assert figures["total_hours"] == pytest.approx(seconds.sum() / 3600, abs=1e-4)
    assert figures["p95"] == pytest.approx(np.percentile(seconds, 95), abs=1e-3)
    assert sum(durations_.histogram()["counts"]) == 37
    assert durations_.histogram()["edges"][0] == figures["min"]
    assert durations_.tokens()["25"]["max"] == round(seconds.max() * 25)
    assert "qwen2.5-omni-7b" in durations_.tokens()["25"]["models"]
    none = Durations(get_task("tau"), (), 0)
    assert [none.tokens()["25"][name] for name in ("median", "max", "total")] == [0, 0, 0]


def test_data_durations_lists_broken_clips_and_measures_the_other_clips(root: Path, tmp_path: Path) -> None:
    cut_short(root)
    out = tmp_path / "measured"
    code, output = call("data", "durations", "tau", "gtzan", "--data", root, "-o", out)
    assert code == 1
    assert "tau: broken: " in output
    with (out / "durations.csv").open() as stream:
        rows = {row["task"]: row for row in csv.DictReader(stream)}
    assert (rows["tau"]["clips"], rows["tau"]["broken"], rows["gtzan"]["p50"]) == ("9", "1", "1.0")
    written = {entry["task"]: entry for entry in json.loads((out / "durations.json").read_text())}
    assert "truncated" in written["tau"]["broken"][0]["reason"]
    assert written["gtzan"]["audio_tokens_by_tokens_per_second"]["25"]["total"] == 50
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in ("tau.png", "gtzan.png", "all.png"))


def test_a_task_with_only_broken_clips_has_a_measured_duration_of_zero_hours(root: Path, tmp_path: Path) -> None:
    for clip in (root / "GTZAN").rglob("*.wav"):
        clip.write_bytes(b"RIFF")
    assert call("data", "durations", "gtzan", "--data", root, "-o", tmp_path / "out")[0] == 1
    assert json.loads((tmp_path / "out" / "gtzan.json").read_text())[0]["total_hours"] == 0


def test_each_duration_script_measures_the_task_in_its_file_name(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Any, undrawn: None
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, name, keys in (("Vox_age", "vox_age", ["vox_age"]), ("analyse_all", "durations", [*COUNTS])):
        code, out, _err = script(ROOT / "analyse_audio_duration" / f"{file}.py", "--data", root)
        assert (code, keys[0] in out, (tmp_path / "durations" / f"{name}.csv").is_file()) == (0, True, True), out
        assert [entry["task"] for entry in json.loads((tmp_path / "durations" / f"{name}.json").read_text())] == keys


def test_data_docs_list_every_metadata_field_that_a_task_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    common = page.partition("Rows of metadata files")[2].partition("## Verify")[0]
    read: dict[str, set[str]] = {}

    class Noting(dict[str, object]):
        def get(self, name: str, default: object = None) -> object:
            read[key].add(name)
            return super().get(name, default)

    made = Row.__init__
    monkeypatch.setattr(Row, "__init__", lambda self, folder, fields: made(self, folder, Noting(fields)))
    for task in AUDIOMARATHON.tasks:
        key = task.key
        read[key] = set()
        task.load(task.find(root))
        named = {name for name in read[key] if not name.startswith("choice_")} if key != "had" else set()
        assert {name for name in named if f"`{name}`" not in rows[key] + common} == set()
        assert getattr(task, "metadata_file", "") in rows[key]
    assert {"question_idx", "answer"} <= read["race"]


def test_a_clip_shared_by_samples_is_measured_once(tmp_path: Path) -> None:
    mmau_pro_folder(tmp_path / "data")
    edit_table(tmp_path / "data", lambda rows: rows[1].update(audio_path=rows[0]["audio_path"]))
    succeed("data", "durations", "mmau_pro", "--data", tmp_path / "data", "-o", tmp_path / "out")
    (figures,) = json.loads((tmp_path / "out" / "lalm-mmau_pro.json").read_text())
    assert (figures["samples"], figures["clips"]) == (len(ROWS), 22)  # one of 19 shares its clip, three have 2, 3 and 2
    assert figures["total_hours"] == round((18 + 2 + 2 + 3 + 2) / 3600, 4)
    assert (tmp_path / "out" / "lalm-mmau_pro.png").is_file()
