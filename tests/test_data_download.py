"""Downloading tasks from folders, archives and a fake hub, and everything that can go wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from archive_makers import packed
from conftest import call, succeed
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile, RepoFolder
from task_folders import BUILDERS, COUNTS, build_all, tree, write_json

from audiomarathon.benchmarks import get_task, select
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.data import archive, download
from audiomarathon.data.archive import open_source
from audiomarathon.data.hub import HubSource
from audiomarathon.errors import DataError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build all ten tasks in a subfolder, with a manifest of their sample counts."""
    top = tmp_path_factory.mktemp("source")
    build_all(top / "set")
    entries = {key: {"count": count, "min_seconds": 1, "max_seconds": 1} for key, count in COUNTS.items()}
    write_json(top / "set" / "audiomarathon.json", {"name": "test", "licence": "CC0-1.0", "tasks": entries})
    (top / "set" / "TAU" / "not-needed.bin").write_bytes(b"x")
    return top


def fetch(source: Path, root: Path, *keys: str, **more: object) -> list[download.Wanted]:
    tasks = [get_task(key) for key in keys] or list(AUDIOMARATHON.tasks)
    return download.download(tasks, open_source(source), root, **more)


def needed(source: Path) -> dict[str, str]:
    return {name: content for name, content in tree(source, manifest=False).items() if "not-needed" not in name}


@pytest.mark.parametrize("name", ["folder", "a.zip", "a.tar.gz"])
def test_all_tasks_can_be_copied_from_a_folder_or_an_archive(name: str, source: Path, tmp_path: Path) -> None:
    taken = source if name == "folder" else packed(source, tmp_path / name)
    output = succeed("data", "download", "all", "--from", taken, "--data", tmp_path / "root")
    assert "licence: CC0-1.0" in output
    assert tree(tmp_path / "root", manifest=False) == needed(source)
    assert call("data", "verify", "all", "--data", tmp_path / "root")[0] == 0


def test_a_download_with_a_limit_fetches_exactly_the_samples_of_a_run_with_that_limit(
    source: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    fetch(source, root, limit=2)
    for task in AUDIOMARATHON.tasks:
        whole = task.load(task.find(source))
        loaded = task.load(task.find(root))
        assert {s.id for s in loaded.samples} == {s.id for s in select(whole.samples, 2, 42)}
        assert not loaded.bad_rows
        by_id = {sample.id: sample for sample in whole.samples}
        assert all((s.answer, s.labels) == (by_id[s.id].answer, by_id[s.id].labels) for s in loaded.samples)
    stated = json.loads((root / "audiomarathon.json").read_text())["tasks"]["tau"]
    assert (stated["count"], stated["subset"]) == (2, {"of": 10, "limit": 2, "seed": 42})
    assert len(list(root.rglob("*.wav"))) in (17, 18)  # the questions of race may share their passage
    assert call("data", "verify", "all", "--data", root)[0] == 0
    fetch(source, root)
    assert tree(root, manifest=False) == needed(source)
    assert call("data", "verify", "all", "--data", root)[0] == 0


def test_a_later_download_with_a_smaller_limit_deletes_no_clip(source: Path, tmp_path: Path) -> None:
    keys = ("had", "librispeech", "tau")
    fetch(source, tmp_path, *keys, limit=3)
    before = tree(tmp_path, manifest=False)
    fetch(source, tmp_path, *keys, limit=1)
    assert tree(tmp_path, manifest=False) == before
    fetch(source, tmp_path, "tau", limit=3, seed=7)
    tau = get_task("tau").load(get_task("tau").find(source)).samples
    wanted = {sample.id for seed in (42, 7) for sample in select(tau, 3, seed)}
    assert {sample.id for sample in get_task("tau").load(get_task("tau").find(tmp_path)).samples} == wanted
    assert call("data", "verify", *keys, "--data", tmp_path)[0] == 0


def test_a_second_download_fetches_only_what_is_missing(source: Path, tmp_path: Path) -> None:
    fetch(source, tmp_path, "tau")
    clip = next(tmp_path.rglob("bus-*.wav"))
    clip.unlink()
    said: list[str] = []
    fetch(source, tmp_path, "tau", say=said.append)
    assert said[0].startswith("1 clip to download")
    assert clip.is_file()


def test_a_download_works_if_temporary_and_data_folder_are_on_different_file_systems(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, root, elsewhere = (tmp_path / name for name in ("scratch", "root", "elsewhere"))
    for folder in (scratch, root / "set", elsewhere):
        folder.mkdir(parents=True)
    (root / "set" / "VESUS").symlink_to(elsewhere)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    rename, crossed = os.rename, set[str]()

    def across(start: Path, end: Path) -> None:
        places = [Path(path).parent.resolve().relative_to(tmp_path.resolve()).parts[0] for path in (start, end)]
        if len(set(places)) > 1:
            crossed.add(places[1])
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(start, end)

    monkeypatch.setattr(os, "rename", across)
    fetch(source, root, "vesus")
    assert "elsewhere" in crossed
    assert {path.name for path in elsewhere.iterdir()} == {"wav", "audio_emotion_dataset.json"}  # and nothing hidden
    assert call("data", "verify", "vesus", "--data", root)[0] == 0


def test_a_folder_in_place_of_a_data_file_is_one_error_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "set" / "VESUS" / "wav" / "1_sad.wav" / "folder").mkdir(parents=True)
    code, output = call("data", "download", "vesus", "--from", source, "--data", tmp_path)
    assert (code, output.count("cannot be written")) == (2, 1)


def test_a_dry_run_of_a_download_writes_nothing(source: Path, tmp_path: Path) -> None:
    fetch(source, tmp_path / "root", "vesus", dry_run=True)
    assert tree(tmp_path / "root") == {}


@pytest.mark.parametrize(("name", "moments"), [("a.zip", [5]), ("a.tar.gz", [1, 5, 14])])
def test_a_download_killed_midway_is_finished_by_the_next_command(
    name: str, moments: list[int], source: Path, tmp_path: Path
) -> None:
    taken = packed(source, tmp_path / name)
    fetch(taken, tmp_path / "whole", "vesus", "gtzan")
    for chunks in moments:
        root = tmp_path / f"killed-{chunks}"
        if (child := os.fork()) == 0:
            left = iter(range(chunks))
            copied = archive.copied

            def torn(stream, entry, stage, left=left, copied=copied):  # writes half a file, then dies
                if next(left, None) is None:
                    (stage / "partial").write_bytes(stream.read(entry.size // 2))
                    os.kill(os.getpid(), signal.SIGKILL)
                return copied(stream, entry, stage)

            archive.copied = torn
            fetch(taken, root, "vesus", "gtzan")
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]) == (chunks < 10)
        assert all(path.stat().st_size for path in root.rglob("*.wav") if ".download" not in path.parts)
        fetch(taken, root, "vesus", "gtzan")
        assert tree(root) == tree(tmp_path / "whole")


def test_a_zip_that_understates_a_file_size_is_refused(source: Path, tmp_path: Path) -> None:
    """A zip bomb states a small file size and unpacks to many bytes."""
    taken = packed(source, tmp_path / "a.zip")
    lying = open_source(taken)
    entries = [archive.Entry(e.path, e.size - 100 if e.path.endswith("2_sad.wav") else e.size) for e in lying.entries()]
    stub = SimpleNamespace(name="lying", entries=lambda: entries, fetch=lying.fetch)
    with pytest.raises(DataError, match=r"2_sad\.wav: .*\b3\d+ bytes.*more"):
        download.download([get_task("vesus")], stub, tmp_path / "root")


# Obstacles ------------------------------------------------------------------------------------------------------


def test_too_little_space_stops_a_download(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "SPARE_BYTES", 10**18)
    with pytest.raises(DataError, match=r"GB .*needed.* GB .*free"):
        fetch(source, tmp_path / "root", "tau")
    assert not list((tmp_path / "root").rglob("*.wav"))


def test_download_of_a_task_that_is_missing_in_the_source_or_already_present_is_refused(tmp_path: Path) -> None:
    BUILDERS["vesus"](tmp_path / "set")
    with pytest.raises(DataError, match=r"tau: is not in .*set$"):
        fetch(tmp_path / "set", tmp_path / "root", "tau")
    BUILDERS["vesus"](tmp_path / "root" / "mine")
    with pytest.raises(DataError, match=r"vesus: is already in .*mine"):
        fetch(tmp_path / "set", tmp_path / "root", "vesus")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all", "--from", "nowhere"], "--from nowhere: no such folder or archive"),
        (["vesos", "--from", "."], "unknown task 'vesos' (did you mean 'vesus'?)"),
        ([], "at least one task"),
    ],
)
def test_an_unknown_source_or_task_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    code, output = call("data", "download", *arguments, "--data", tmp_path)
    assert code == 2
    assert message in output


# The hub --------------------------------------------------------------------------------------------------------


class Hub:
    """A hub client over a folder: small files have a git hash, others an LFS hash."""

    def __init__(self, folder: Path, spoilt: str = "") -> None:
        self.folder, self.spoilt, self.fetched = folder, spoilt, []

    def dataset_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(sha="abc123")

    def list_repo_tree(self, name: str, *, recursive: bool, repo_type: str, revision: str) -> list:
        assert (recursive, repo_type, revision) == (True, "dataset", "abc123")
        entries: list = [RepoFolder(path="set", oid="0", type="directory")]
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            content = path.read_bytes()
            oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            lfs = {"size": len(content), "oid": hashlib.sha256(content).hexdigest(), "pointerSize": 1}
            facts = {"path": path.relative_to(self.folder).as_posix(), "size": len(content), "oid": oid}
            entries.append(RepoFile(**facts, lfs=lfs if path.suffix == ".wav" else None))
        return entries

    def hf_hub_download(self, name: str, path: str, *, repo_type: str, revision: str, local_dir: Path) -> str:
        assert (repo_type, revision) == ("dataset", "abc123")
        self.fetched.append(path)
        target = Path(local_dir) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = (self.folder / path).read_bytes()
        target.write_bytes(content[:-1] + b"?" if self.spoilt and self.spoilt in path else content)
        return str(target)


def test_only_the_requested_files_are_downloaded_from_the_hub(source: Path, tmp_path: Path) -> None:
    hub = Hub(source)
    download.download([get_task("tau")], HubSource(api=hub), tmp_path, limit=3)
    assert len([path for path in hub.fetched if path.endswith(".wav")]) == 3
    assert sum(path.endswith(".json") for path in hub.fetched) == 2
    assert "Hezep/AudioMarathon@abc123" in (tmp_path / "audiomarathon.json").read_text()
    assert call("data", "verify", "tau", "--data", tmp_path)[0] == 0


@pytest.mark.parametrize("spoilt", ["10_sad.wav", "audio_emotion_dataset.json"])
def test_a_file_whose_hash_differs_from_that_of_the_hub_is_not_kept(spoilt: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{spoilt} arrived damaged"):
        download.download([get_task("vesus")], HubSource(api=Hub(source, spoilt)), tmp_path)
    assert not list(tmp_path.rglob(spoilt))


def test_a_hub_failure_is_one_error_line(source: Path, tmp_path: Path) -> None:
    error = HfHubHTTPError.__new__(HfHubHTTPError)  # its arguments change from version to version
    error.response = SimpleNamespace(status_code=429)

    def fails(*_: object, **__: object) -> str:
        raise error

    hub = Hub(source)
    hub.hf_hub_download = fails  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"429: .*HF_TOKEN") as caught:
        download.download([get_task("vesus")], HubSource(api=hub), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [("m/a", "m/a/b"), ("m/" + "x" * 300,)])
def test_archives_whose_members_have_names_that_cannot_be_paths_are_refused(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        for name in ("m/audio_emotion_dataset.json", *names):
            archive.writestr(name, "[]")
    with pytest.raises(DataError, match=r"odd\.zip: 'm/.*' cannot be .*path"):
        fetch(tmp_path / "odd.zip", tmp_path / "root", "vesus")
