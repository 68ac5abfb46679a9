"""Metadata: which files it may name, which kinds of file are refused, and linear loading time."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from conftest import call
from task_folders import BUILDERS, edit_rows, write_clip

from audiomarathon.benchmarks import Sample, get_task, select
from audiomarathon.benchmarks.fingerprint import clip_hashes, fingerprint
from audiomarathon.data.archive import open_source
from audiomarathon.errors import DataError

METADATA = "acoustic_scene_task_meta.json"


@pytest.mark.parametrize(
    "name", [".bashrc", "Makefile", ".git/hooks/pre-commit", "a.wav/../.x.wav", ".git/a.wav", "a.py"]
)
def test_a_clip_path_that_is_not_an_audio_file_is_a_bad_row(name: str, tmp_path: Path) -> None:
    BUILDERS["tau"](tmp_path)
    (tmp_path / "a.wav").mkdir()
    written = write_clip(tmp_path / "clip.wav").rename(tmp_path / "clip")
    target = tmp_path / name
    target.parent.mkdir(parents=True, exist_ok=True)
    written.rename(target)
    edit_rows(tmp_path / METADATA, lambda rows: rows[0].update(path=name))
    loaded = get_task("tau").load(tmp_path)
    assert [row.row for row in loaded.bad_rows] == [1]
    assert "is not an audio file; allowed: .wav, .flac" in loaded.bad_rows[0].reason


def test_hidden_files_of_a_source_archive_are_not_extracted(tmp_path: Path) -> None:
    source, clip = tmp_path / "a.zip", ".git/hooks/a.wav"
    BUILDERS["tau"](tmp_path / "set")
    write_clip(tmp_path / "set" / clip)
    edit_rows(tmp_path / "set" / METADATA, lambda rows: rows[0].update(path=clip))
    with zipfile.ZipFile(source, "w") as zipped:
        for path in (tmp_path / "set").rglob("*.*"):
            zipped.write(path, path.relative_to(tmp_path).as_posix())
    call("data", "download", "tau", "--from", source, "--data", tmp_path / "root")
    assert len(list((tmp_path / "root").rglob("*.wav"))) == 9
    assert not list((tmp_path / "root").rglob(".git"))


def test_looping_links_in_a_source_folder_are_not_followed(tmp_path: Path) -> None:
    BUILDERS["tau"](tmp_path / "set")
    for number in range(3):  # if followed, 3 branches at each of 40 levels
        (tmp_path / "set" / f"again-{number}").symlink_to(tmp_path, target_is_directory=True)
    entries = open_source(tmp_path).entries()
    assert len(entries) == 11
    assert len({Path(entry.path).name for entry in entries}) == 11


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
@pytest.mark.parametrize("task", ["tau", "librispeech"])
def test_metadata_that_is_not_a_regular_file_is_refused_before_opening(
    task: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BUILDERS[task](tmp_path)
    file = next(folder.rglob("84-121123.trans.txt" if task == "librispeech" else METADATA))
    file.unlink()
    {"fifo": os.mkfifo, "device": lambda place: place.symlink_to("/dev/zero"), "folder": Path.mkdir}[kind](file)
    opened = Path.open

    def guarded(path: Path, *arguments: Any, **more: Any) -> Any:
        assert path != file, "opened"
        return opened(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", guarded)
    if task == "tau":
        with pytest.raises(DataError, match="not a plain file"):
            get_task(task).load(folder)
    elif kind != "folder":  # a folder is not a transcript: its clips merely lack one
        assert any("not a plain file" in str(row) for row in get_task(task).load(folder).bad_rows)


def test_a_clip_that_is_a_named_pipe_is_refused_before_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = next(BUILDERS["librispeech"](tmp_path).rglob("*.flac"))
    clip.unlink()
    os.mkfifo(clip)
    samples = [sample for sample in get_task("librispeech").load(tmp_path).samples if sample.clips == (clip,)]
    monkeypatch.setattr(Path, "open", None)
    with pytest.raises(DataError, match="not a plain file"):
        clip_hashes(samples)


def lines_run(work: Callable[[], object]) -> int:
    """Count the lines of audiomarathon that are run. The count is the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if "audiomarathon" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def many_rows(folder: Path, count: int) -> Path:
    file = BUILDERS["tau"](folder) / METADATA
    rows = json.loads(file.read_text())
    file.write_text(json.dumps([rows[n % 10] | {"uniq_id": n, "choice_d": f"Scene {n}"} for n in range(count)]))
    return folder


def test_the_work_of_loading_grows_linearly_with_the_number_of_rows(tmp_path: Path) -> None:
    def work(count: int) -> int:
        folder = many_rows(tmp_path / str(count), count)

        def load() -> None:
            loaded = get_task("tau").load(folder)
            fingerprint(loaded)
            assert len(loaded.samples) > count // 2
            select(loaded.samples, 0, 42)

        return lines_run(load)

    work(20)  # warm up one-time work
    few, many = work(50), work(400)
    assert many < 9 * few
    assert many < 400 * 400  # 265 lines a row


def test_the_work_of_selecting_grows_linearly_with_the_number_of_classes(tmp_path: Path) -> None:
    def work(count: int) -> int:
        clips, names = (tmp_path / "a.wav",), [f"class {n}" for n in range(count)]
        samples = [Sample(name, clips, "?", "A", name, (name, "other"), (name, "other")) for name in names]
        return lines_run(lambda: select(samples, 0, 42))

    assert work(800) < 9 * work(100)
