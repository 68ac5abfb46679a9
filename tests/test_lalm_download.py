"""Download Clotho and MMAU-Pro, tables beside archives, from local folders and from a fake hub."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from archive_makers import packed
from caption_folders import CAPTIONS, clotho_folder, table
from conftest import call, succeed
from huggingface_hub.errors import HfHubHTTPError
from lalm_folders import ROWS, mmau_pro_folder
from task_folders import tree, write_clip
from test_data_download import Hub as SmallHub

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.task import Filters
from audiomarathon.data.archive import UnpackedSource, open_source

ROOT = Path(__file__).parent.parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def mmau_pro(tmp_path: Path) -> Path:
    """MMAU-Pro as on the hub: the table beside `data.zip`."""
    folder = mmau_pro_folder(tmp_path / "mmau")
    with zipfile.ZipFile(folder / "data.zip", "w") as out:
        for clip in sorted((folder / "data").iterdir()):
            out.write(clip, f"data/{clip.name}")
    shutil.rmtree(folder / "data")
    return folder


@pytest.fixture
def clotho(tmp_path: Path) -> Path:
    """Clotho as on Zenodo: for each split, a table and an archive."""
    py7zr = pytest.importorskip("py7zr")
    made = tmp_path / "made"
    clotho_folder(made)
    clotho_folder(made, dict.fromkeys(("x.wav", "y.wav"), CAPTIONS["Café, evening.wav"]), split="validation")
    (made / "evaluation" / "Café, evening.wav").chmod(0)
    folder = tmp_path / "zenodo"
    folder.mkdir()
    for split in ("evaluation", "validation"):
        with py7zr.SevenZipFile(folder / f"clotho_audio_{split}.7z", "w") as out:
            out.writeall(made / split, split)
        shutil.copy(made / f"clotho_captions_{split}.csv", folder)
    return folder


def test_clotho_is_unpacked_from_archives_in_a_folder(clotho: Path, root: Path, tmp_path: Path) -> None:
    output = succeed("data", "download", "clotho", "--from", clotho, "--data", root)
    assert "captions not for commercial use" in output
    tables = {"clotho/clotho_captions_evaluation.csv", "clotho/audiomarathon.json"}
    assert tree(root).keys() == tables | {f"clotho/evaluation/{name}" for name in CAPTIONS}
    for name in CAPTIONS:
        clip = root / "clotho" / "evaluation" / name
        assert clip.read_bytes() == (tmp_path / "made" / "evaluation" / name).read_bytes()
        assert clip.stat().st_mode & 0o600 == 0o600
    code, output = call("data", "verify", "clotho", "--data", root)
    assert (code, output.count("expected 1,045")) == (1, 1)  # no other problem is reported
    assert "1 more problem" not in output
    manifest, task = (root / "clotho" / "audiomarathon.json").read_text(), get_task("clotho")
    for limit in (0, 1):  # a limit removes no stored clips
        flags = ("--from", clotho, "--data", root, "--split", "validation", "--limit", limit)
        succeed("data", "download", "clotho", *flags)
        loaded = task.load(task.find(root), Filters(split="validation"))
        assert [sample.id for sample in loaded.samples] == ["x.wav", "y.wav"]
        assert (root / "clotho" / "audiomarathon.json").read_text() == manifest


def test_the_sample_count_of_a_limited_download_is_not_recorded_as_that_of_the_whole_task(
    clotho: Path, root: Path
) -> None:
    flags = ("--from", clotho, "--data", root, "--split", "validation", "--limit", 1)
    assert call("data", "download", "clotho", *flags)[0] == 0
    assert json.loads((root / "clotho" / "audiomarathon.json").read_text())["tasks"] == {}


def test_a_limited_download_and_a_copy_of_it_keep_the_captions_of_all_clips(
    clotho: Path, root: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    for source, place, limit in ((clotho, root, 2), (root / "clotho", again, 1)):
        succeed("data", "download", "clotho", "--from", source, "--data", place, "--limit", limit)
        task = get_task("clotho")
        loaded = task.load(task.find(place))
        assert (len(loaded.samples), len(task.corpus(loaded)), len(loaded.bad_rows)) == (limit, 3, 0)
        assert call("data", "verify", "clotho", "--data", place)[0] == 1  # only for the clips' lengths
        assert call("data", "verify", "clotho", "--data", place, "--tolerance", 15)[0] == 0


def test_archives_nested_up_to_two_levels_deep_are_unpacked(tmp_path: Path) -> None:
    def unpacked(place: str) -> list[bytes]:
        source = UnpackedSource(open_source(tmp_path / place))
        wanted = [entry for entry in source.entries() if entry.path == "x.wav"]
        return [file.read_bytes() for _entry, file in source.fetch(wanted, tmp_path)]

    for number in range(4):
        (tmp_path / f"{number}").mkdir()
    (tmp_path / "0" / "x.wav").write_bytes(b"packed")
    for number, name in enumerate(("c.zip", "b.zip", "a.zip")):
        packed(tmp_path / f"{number}", tmp_path / f"{number + 1}" / name)
    entries = UnpackedSource(open_source(tmp_path / "3")).entries()
    assert {entry.path for entry in entries} == {"a.zip", "b.zip", "c.zip"}
    assert unpacked("1") == [b"packed"]
    (tmp_path / "1" / "x.wav").write_bytes(b"my own")
    assert unpacked("1") == [b"my own"]


def test_a_7z_with_a_link_is_refused(clotho: Path, root: Path, tmp_path: Path) -> None:
    import py7zr

    (tmp_path / "link").symlink_to("/etc/passwd")
    with py7zr.SevenZipFile(clotho / "clotho_audio_evaluation.7z", "w") as out:
        out.write(tmp_path / "link", "evaluation/link.wav")
    code, output = call("data", "download", "clotho", "--from", clotho, "--data", root)
    assert (code, "'evaluation/link.wav' is a link" in output) == (2, True), output


def test_audiocaps_is_copied_from_a_local_folder_and_not_downloaded(tmp_path: Path, root: Path) -> None:
    table(tmp_path / "mine" / "test.csv", get_task("audiocaps").columns, [("1", "v", "30", "Rain.")])
    write_clip(tmp_path / "mine" / "v_30.wav")
    assert call("data", "download", "audiocaps", "--from", tmp_path / "mine", "--data", root)[0] == 0
    assert {"audiocaps/test.csv", "audiocaps/v_30.wav"} <= tree(root).keys()
    code, output = call("data", "download", "audiocaps", "--data", root)
    assert code == 2
    assert "lalm/audiocaps: no public copy" in output


def test_wrong_download_arguments_give_a_one_line_error(root: Path) -> None:
    for arguments, message in {
        "clotho --split test": "--split=test: allowed for lalm/clotho: evaluation, validation, development",
        "mmau_pro --split test": "--split=test: allowed for lalm/mmau_pro: none",
        "clotho tau": "audiomarathon and lalm are downloaded from different places",
    }.items():
        code, output = call("data", "download", *arguments.split(), "--data", root)
        assert code == 2
        assert message in output
        assert output.count("\n") == 1


def test_a_7z_archive_without_py7zr_gives_an_error_with_the_pip_command(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "clotho_audio_evaluation.7z").write_bytes(b"7z\xbc\xaf\x27\x1c")
    monkeypatch.setitem(sys.modules, "py7zr", None)
    code, output = call("data", "download", "clotho", "--from", tmp_path / "a", "--data", root)
    told = "clotho_audio_evaluation.7z: reading .7z needs py7zr: pip install 'audiomarathon[lalm]'"
    assert code == 2
    assert told in output


def test_a_damaged_7z_gives_a_one_line_error(clotho: Path, root: Path) -> None:
    file = clotho / "clotho_audio_evaluation.7z"
    whole = file.read_bytes()
    for content in (whole[:50] + b"?" * 20 + whole[70:], whole[:-40], b"7z"):
        file.write_bytes(content)
        code, output = call("data", "download", "clotho", "--from", clotho, "--data", root)
        assert (code, "damaged" in output, "Traceback" in output) == (2, True, False), output
        assert not list((root / "clotho" / "evaluation").glob("*"))


# The hub --------------------------------------------------------------------------------------------------------


class Hub(SmallHub):
    """A fake hub client and file system over a folder, which count the bytes read."""

    read, fails = 0, None

    def open(self, path: str, *, revision: str, block_size: int) -> Any:
        assert (path, revision) == ("datasets/gamma-lab-umd/MMAU-Pro/data.zip", "abc123")
        hub = self

        class File(io.FileIO):
            def readinto(self, buffer: Any) -> int:
                if hub.fails:
                    raise hub.fails
                hub.read += (count := super().readinto(buffer) or 0)
                return count

        return File(self.folder / "data.zip")


@pytest.fixture
def hub(mmau_pro: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(mmau_pro)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", lambda: made)
    return made


def test_only_the_needed_parts_of_a_hub_archive_are_downloaded(hub: Hub, root: Path) -> None:
    output = succeed("data", "download", "mmau_pro", "--data", root, "--dry-run")
    assert "23 clips to download" in output
    size = (hub.folder / "data.zip").stat().st_size
    assert (tree(root).keys(), hub.read < size / 20, hub.fetched) == (set(), True, ["test.parquet"])
    output = succeed("data", "download", "mmau_pro", "--data", root, "--limit", 2)
    assert "as its page on the hub says" in output
    assert 0 < hub.read < size / 2  # two of 19 samples
    task = get_task("mmau_pro")
    assert len(task.load(task.find(root)).samples) == 2
    assert call("data", "verify", "mmau_pro", "--data", root)[0] == 0
    assert "gamma-lab-umd/MMAU-Pro@abc123" in (root / "mmau_pro" / "audiomarathon.json").read_text()
    succeed("data", "download", "mmau_pro", "--data", root)
    loaded = task.load(task.find(root))
    assert (len(loaded.samples), len(loaded.bad_rows)) == (len(ROWS), 0)
    clips = {clip.relative_to(root / "mmau_pro").as_posix() for sample in loaded.samples for clip in sample.clips}
    assert tree(root / "mmau_pro", manifest=False).keys() == {"test.parquet", *clips}
    before = hub.read
    code, output = call("data", "download", "mmau_pro", "--data", root)
    assert code == 0
    assert "0 clips to download" in output
    assert hub.read - before < size / 20


def test_a_damaged_hub_archive_or_an_unreachable_hub_is_a_one_line_error(hub: Hub, root: Path) -> None:
    content = bytearray((hub.folder / "data.zip").read_bytes())
    content[5000] ^= 255
    (hub.folder / "data.zip").write_bytes(content)
    code, output = call("data", "download", "mmau_pro", "--data", root)
    assert (code, "data.zip: damaged" in output, "Traceback" in output) == (2, True, False), output
    hub.fails = HfHubHTTPError.__mro__[1]("no route")
    code, output = call("data", "download", "mmau_pro", "--data", root)
    assert code == 2
    assert "the hub cannot be reached" in output
    assert "--from FOLDER or ARCHIVE" in output


@pytest.mark.long
def test_the_download_script_gets_both_tasks_and_fails_if_either_fails(
    mmau_pro: Path, clotho: Path, root: Path, tmp_path: Path
) -> None:
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": os.getenv("PYTHONPATH", "")}
    shutil.copytree(mmau_pro, tmp_path / "both")
    env |= {"AUDIOMARATHON_DATA": str(root), "FROM": str(tmp_path / "both"), "LIMIT": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(ROOT / "LALM_Bench" / "scripts" / "download_datasets.sh")]  # calls the script in scripts/
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "lalm/clotho: is not in" in done.stderr  # the second task was tried anyway
    assert (root / "mmau_pro" / "test.parquet").is_file()
    shutil.copytree(clotho, tmp_path / "both", dirs_exist_ok=True)
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    assert (root / "clotho" / "clotho_captions_evaluation.csv").is_file()
