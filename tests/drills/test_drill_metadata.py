"""Hostile metadata is loaded or refused without a traceback: path escapes, megabytes, wrong types, odd Unicode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import task_folders
from conftest import call
from hanging import no_hang

from audiomarathon.benchmarks import get_task

HUGE = "x" * 2_000_000
ESCAPES = [
    "../../secret.wav", "/etc/passwd", "..\\..\\secret.wav", "a/../../secret.wav", "....//secret.wav", "~/secret.wav",
    "file:///etc/passwd", "//host/share", "C:\\x.wav", "a\0.wav", "con", "%2e%2e/secret.wav", ".", "", " ", "x" * 5000,
]  # fmt: skip
TEXTS = ["\0", HUGE, "\ud800", "\u202eA", "\x1b[31m", "Z" + "\u0301" * 10_000, "\u200b", "\ufeff", "A\nB", "😀" * 5000]
VALUES = [None, [], {}, True, -0.0, 1e308, float("inf"), 10**400, [[]], {"a": {}}, ["A"] * 100_000]
FIELDS = ("path", "question", "choice_a", "answer_gt", "scene_label", "uniq_id")


def spoilt(tmp_path: Path, field: str, value: object) -> Path:
    """Write a TAU folder whose second metadata row has this value, and clips outside it that no path may reach."""
    folder = tmp_path / "data" / "TAU"
    if not folder.exists():
        task_folders.build_tau(folder)
        (folder / "acoustic_scene_task_meta.json").rename(tmp_path / "rows.json")
    task_folders.write_clip(tmp_path / "secret.wav")
    task_folders.write_clip(tmp_path / "data" / "secret.wav")
    rows = json.loads((tmp_path / "rows.json").read_text())
    rows[1][field] = value
    (folder / "acoustic_scene_task_meta.json").write_text(json.dumps(rows))
    return folder


def load(folder: Path) -> tuple[int, int]:
    """Load a TAU folder and check that no path leaves it and no reason is long; count samples and bad rows."""
    loaded = get_task("tau").load(folder)
    for sample in loaded.samples:
        assert all(clip.is_relative_to(folder) and ".." not in clip.parts for clip in sample.clips)
        assert len(get_task("tau").prompt(sample)) < 1_000_000
        json.dumps(sample.id).encode()
    for row in loaded.bad_rows:
        assert len(str(row)) < 2000
        str(row).encode()
    return len(loaded.samples), len(loaded.bad_rows)


@pytest.mark.parametrize("field", FIELDS)
def test_hostile_metadata_values_are_loaded_or_make_a_bad_row(field: str, tmp_path: Path, times, tell) -> None:
    values: list[object] = [*(ESCAPES if field == "path" else []), *VALUES, *TEXTS]
    bad = 0
    if field not in ("path", "question"):
        values = values[:: times(2, 1)]  # the largest values make files of megabytes
    for value in values:
        with no_hang():
            counts = load(spoilt(tmp_path, field, value))
        assert sum(counts) == 10
        assert field not in ("path", "answer_gt") or counts == (9, 1), value
        bad += counts[1]
    tell(f"{len(values)} hostile values: {bad} rows refused with a reason, {len(values) - bad} harmless, none lost")


def test_control_characters_in_a_clip_path_are_not_printed_to_the_terminal(tmp_path: Path, no_env, tell) -> None:
    spoilt(tmp_path, "path", "\x1b[31mred\x07.wav")
    for command in (["data", "verify", "tau"], ["run", "tau", "--model", "embedded", "--results", str(tmp_path / "r")]):
        code, said = call(*command, "--data", tmp_path / "data")
        assert (code > 0, "\x1b" in said, "red" in said) == (True, False, True), said
    tell("escapes in a path are written out by verify and run")
