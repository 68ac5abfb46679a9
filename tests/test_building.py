"""The builders of `Segment/`: every raw corpus in its published layout becomes a folder that its task loads."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from raw_corpora import MAKERS, Noise, built, left_out, manifest
from task_folders import tree

from audiomarathon.audio.decode import pcm_blocks
from audiomarathon.benchmarks import get_task
from audiomarathon.segment.build_log import BuildLog

SPOKEN = {"race"}  # its source is a text


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], Path]]:
    """Return each task's raw corpus and the folder built from it."""
    root = tmp_path_factory.mktemp("corpora")
    raws = {task: make(root / "raw" / task, Noise()) for task, make in MAKERS.items()}
    return {task: (raw, built(task, raw, root / "built" / task)) for task, raw in raws.items()}


@pytest.mark.parametrize("task", MAKERS)
def test_a_built_corpus_loads_as_data_of_its_task(task: str, corpora: dict[str, tuple[list[str], Path]]) -> None:
    folder = corpora[task][1]
    loaded = get_task(task).load(get_task(task).find(folder))
    assert loaded.bad_rows == ()
    clips = {clip.relative_to(folder).as_posix() for sample in loaded.samples for clip in sample.clips}
    assert clips == {row["path"] for row in manifest(folder)}
    for row in manifest(folder):
        info = soundfile.info(folder / row["path"])
        assert (info.frames, info.samplerate, info.channels, info.subtype) == (row["frames"], row["rate"], 1, "PCM_16")
        assert 3 <= info.duration <= 5


@pytest.mark.parametrize("task", sorted(MAKERS.keys() - SPOKEN))
def test_manifest_offsets_locate_the_source_clips_in_the_built_clips(
    task: str, corpora: dict[str, tuple[list[str], Path]]
) -> None:
    (raw, *_), folder = corpora[task]
    for row in manifest(folder):
        joined, rate = soundfile.read(folder / row["path"], dtype="int16")
        silent = np.ones(len(joined), bool)
        for source in row["sources"]:
            span = slice(source["offset"], source["offset"] + source["frames"])
            original = np.concatenate(list(pcm_blocks(Path(raw) / source["path"], rate)))
            np.testing.assert_array_equal(joined[span], original[: source["frames"]])
            silent[span] = False
        assert not joined[silent].any()


@pytest.mark.parametrize("task", MAKERS)
def test_every_source_clip_is_used_once_or_listed_as_left_out(
    task: str, corpora: dict[str, tuple[list[str], Path]]
) -> None:
    (raw, *_), folder = corpora[task]
    used = [source["path"] for row in manifest(folder) for source in row["sources"]]
    assert len(used) == len(set(used))
    suffixes = (".txt",) if task in SPOKEN else (".wav", ".flac", ".ogg", ".au")
    there = {str(file.relative_to(raw)) for file in Path(raw).rglob("*") if file.name.endswith(suffixes)}
    there -= {name for name in there if "label" in name or "trans" in name}
    speakers = {name for name in left_out(folder) if (Path(raw) / name).is_dir()}
    unaccounted = there - set(used) - left_out(folder).keys()
    assert {name for name in unaccounted if name.split("/")[0] not in speakers} == set()


@pytest.mark.parametrize("task", MAKERS)
def test_two_builds_of_a_corpus_with_the_same_settings_write_the_same_bytes(
    task: str, corpora: dict[str, tuple[list[str], Path]], tmp_path: Path
) -> None:
    raw, folder = corpora[task]
    assert tree(built(task, raw, tmp_path / "again", "--jobs", "3")) == tree(folder)


def test_manifest_offsets_of_clips_joined_by_crossfade_locate_all_audio_outside_the_fades(tmp_path: Path) -> None:
    raw = MAKERS["vox"](tmp_path / "raw", Noise())
    folder = built("vox", raw, tmp_path / "vox", "--crossfade", "0.1")
    fade = 1600
    for row in manifest(folder):
        joined = soundfile.read(folder / row["path"], dtype="int16")[0]
        ends = [source["offset"] + source["frames"] for source in row["sources"]]
        assert [source["offset"] for source in row["sources"][1:]] == [end - fade for end in ends[:-1]]
        for source in row["sources"]:
            original = soundfile.read(Path(raw[0]) / source["path"], dtype="int16")[0]
            inner = slice(source["offset"] + fade, source["offset"] + source["frames"] - fade)
            np.testing.assert_array_equal(joined[inner], original[fade:-fade])


def test_building_with_another_seed_gives_other_clips(
    corpora: dict[str, tuple[list[str], Path]], tmp_path: Path
) -> None:
    raw, folder = corpora["desed"]
    assert tree(built("desed", raw, tmp_path / "other", "--seed", "1")) != tree(folder)


# --- interrupted and continued ----------------------------------------------------------------------------------------


def killed(work: Callable[[], object]) -> None:
    """Run work in a child process and expect that SIGKILL ends it."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.fixture(scope="module")
def tau(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """TAU's raw corpus; tests only read it."""
    return MAKERS["tau"](tmp_path_factory.mktemp("tau") / "raw", Noise())


@pytest.fixture(scope="module")
def whole(tau: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder built from TAU; tests only read it."""
    return built("tau", tau, tmp_path_factory.mktemp("whole") / "tau")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of the folder built from TAU; tests change it."""
    return Path(shutil.copytree(whole, tmp_path / "tau"))


@pytest.mark.parametrize("moment", ["while writing", "before naming", "before noting", "while noting", "at the end"])
def test_a_killed_corpus_build_resumes_to_the_bytes_of_an_uninterrupted_build(
    moment: str, tau: list[str], whole: Path, tmp_path: Path
) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        real, calls = BuildLog.add, []

        def add(self: BuildLog, path: str, partial: Path, row: dict[str, Any]) -> None:
            calls.append(path)
            if len(calls) < 3:
                return real(self, path, partial, row)
            if moment == "while writing":
                partial.write_bytes(partial.read_bytes()[:5000])
            elif moment == "before noting":
                partial.replace(self.folder / path)
            elif moment == "while noting":
                real(self, path, partial, row)
                log = self.folder / "manifest.jsonl"
                log.write_bytes(log.read_bytes()[:-20])
            return die()

        if moment == "at the end":
            BuildLog.finish = die  # type: ignore[method-assign]
        else:
            BuildLog.add = add  # type: ignore[method-assign]
        built("tau", tau, tmp_path / "killed")

    killed(work)
    assert tree(tmp_path / "killed") != tree(whole)
    assert tree(built("tau", tau, tmp_path / "killed")) == tree(whole)


def test_a_repeated_build_writes_only_damaged_clips_again(tau: list[str], folder: Path, capsys: Any) -> None:
    before = tree(folder)
    first, second, *_ = (folder / row["path"] for row in manifest(folder))
    written = second.stat().st_mtime_ns
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    capsys.readouterr()
    built("tau", tau, folder)
    assert "(1 new)" in capsys.readouterr().out
    assert (tree(folder), second.stat().st_mtime_ns) == (before, written)


@pytest.mark.parametrize("change", [("--seed", "1"), ("--gap", "0.5"), ("--crossfade", "0.1"), ("--rate", "8000")])
def test_a_build_with_changed_settings_is_refused_and_names_the_setting(
    change: tuple[str, str], tau: list[str], folder: Path, capsys: Any
) -> None:
    before = tree(folder)
    built("tau", tau, folder, *change, code=2)
    assert f"{change[0][2:]}" in capsys.readouterr().err.partition("other settings: ")[2]
    assert tree(folder) == before


def test_a_corpus_build_into_a_folder_with_unrelated_files_or_into_the_raw_corpus_is_refused(
    tau: list[str], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for folder, told in ((tmp_path, "holds other files"), (Path(tau[0]) / "out", "lies within the raw corpus")):
        built("tau", tau, folder, code=2)
        assert told in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
    assert not (Path(tau[0]) / "out").exists()


def test_a_limit_on_built_clips_is_spread_over_groups_and_cannot_be_lowered_later(
    tau: list[str], whole: Path, tmp_path: Path
) -> None:
    folder = built("tau", tau, tmp_path / "few", "--limit", "3")
    assert len({row["group"] for row in manifest(folder)}) == 3
    built("tau", tau, folder, "--limit", "2", code=2)
    assert tree(built("tau", tau, folder)) == tree(whole)


# --- broken sources ---------------------------------------------------------------------------------------------------


def damaged_within(file: Path) -> None:
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = bytes(2000)
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_text("this is not audio"),
        lambda file: file.write_bytes(file.read_bytes()[:3000]),
        damaged_within,
        Path.unlink,
        lambda file: (file.unlink(), file.symlink_to("nowhere")),
    ],
    ids=["text", "truncated", "damaged within", "missing", "link to nowhere"],
)
def test_a_broken_source_clip_is_reported_and_left_out_of_the_build(
    damage: Callable[[Path], object], tmp_path: Path, capsys: Any
) -> None:
    """Damage inside a FLAC shows only when it is decoded. The build then plans that clip again without it."""
    raw = MAKERS["librispeech"](tmp_path / "raw", Noise())
    broken = sorted(Path(raw[0]).rglob("*.flac"))[4]
    damage(broken)
    folder = built("librispeech", raw, tmp_path / "built")
    name = broken.stem if damage is Path.unlink else broken.relative_to(raw[0]).as_posix()
    assert any(name in path or name in reason for path, reason in left_out(folder).items())
    texts = "".join(sample.answer for sample in get_task("librispeech").load(folder).samples)
    assert "WORD3 OF 121123" in texts
    assert "WORD4 OF 121123" not in texts
    assert f"{broken.stem}" in capsys.readouterr().out
    if damage is damaged_within:
        assert tree(built("librispeech", raw, folder)) == tree(built("librispeech", raw, tmp_path / "again"))


def test_a_build_killed_after_a_broken_source_clip_resumes_to_the_bytes_of_a_whole_build(tmp_path: Path) -> None:
    raw = MAKERS["librispeech"](tmp_path / "raw", Noise())
    damaged_within(sorted(Path(raw[0]).rglob("*.flac"))[2])
    whole = tree(built("librispeech", raw, tmp_path / "whole"))

    def work() -> None:
        real = BuildLog.add

        def add(*row: Any) -> None:
            real(*row)
            os.kill(os.getpid(), signal.SIGKILL)

        BuildLog.add = add  # type: ignore[method-assign]
        built("librispeech", raw, tmp_path / "killed")

    killed(work)
    assert "84-121123-0002" in (tmp_path / "killed" / "left_out.jsonl").read_text()
    assert tree(built("librispeech", raw, tmp_path / "killed")) == whole


def test_a_corpus_build_that_made_no_clip_can_be_repeated_with_other_settings(
    tau: list[str], whole: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = built("tau", tau, tmp_path / "tau", "--min", "100", "--max", "200", code=2)
    assert "no clip could be made; 28 sources left out" in capsys.readouterr().err
    assert tree(built("tau", tau, folder)) == tree(whole)


@pytest.mark.parametrize("wrong", ["--gap=nan", "--gap=inf", "--crossfade=nan", "--max=inf", "--min=nan"])
def test_clip_lengths_that_are_not_numbers_are_refused(wrong: str, tau: list[str], tmp_path: Path, capsys: Any) -> None:
    built("tau", tau, tmp_path / "tau", wrong, code=2)
    assert wrong.replace("=", " ") in capsys.readouterr().err


def test_a_symbolic_link_loop_in_the_corpus_uses_no_clip_twice(tmp_path: Path) -> None:
    raw = MAKERS["vox"](tmp_path / "raw", Noise())
    before = built("vox", raw, tmp_path / "before")
    (Path(raw[0]) / "id00012" / "again").symlink_to("..")
    assert manifest(built("vox", raw, tmp_path / "after")) == manifest(before)


def test_a_file_name_that_is_not_utf8_is_refused(tau: list[str], tmp_path: Path, capsys: Any) -> None:
    raw = shutil.copytree(tau[0], tmp_path / "raw")
    try:
        (raw / "meta.csv").rename(raw / os.fsdecode(b"\xffmeta.csv"))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    built("tau", [str(raw)], tmp_path / "tau", code=2)
    assert "is not UTF-8; rename it" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["manifest.jsonl", "left_out.jsonl"])
@pytest.mark.parametrize("damage", ["[]\n", '{"path"\n', "{}\n"])
def test_a_damaged_build_log_is_rebuilt(file: str, damage: str, tau: list[str], folder: Path) -> None:
    before = tree(folder)
    (folder / file).write_text(damage + (folder / file).read_text())
    assert tree(built("tau", tau, folder)) == before


def test_a_damaged_build_json_is_refused(tau: list[str], tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "tau"
    folder.mkdir()
    (folder / ".build.json.new").touch()
    (built("tau", tau, folder) / "build.json").write_text("[]")
    built("tau", tau, folder, code=2)
    assert "build.json: does not hold the settings of a build" in capsys.readouterr().err
