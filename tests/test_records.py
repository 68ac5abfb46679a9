"""A run folder survives crashes, full disks and second processes."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from builders import a_failed_record, a_record, records_in, typed

from audiomarathon.errors import RecordError
from audiomarathon.files import Appending, append_line, write_json
from audiomarathon.runs.folder import RunFolder, checkpoint_of, identity_hash, read_records, read_run, read_summary

IDENTITY = {"method": "frame", "ratio": 0.5, "checkpoint": "abc"}
BROKEN_DISK = OSError(errno.EIO, "Input/output error")


def fill(path: Path, ids: str, identity: dict = IDENTITY) -> RunFolder:
    with RunFolder(path, identity) as folder:
        folder.write_run({"task": "tau"})
        for id_ in ids:
            folder.append(typed(a_record(id_)))
    return folder


def read_ids(path: Path) -> list[str]:
    return [record["id"] for record in records_in(path)]


class TestResume:
    def test_a_resumed_run_continues_after_the_records_on_disk(self, tmp_path: Path) -> None:
        fill(tmp_path, "ab")
        with RunFolder(tmp_path, IDENTITY) as folder:
            assert folder.done() == {"a", "b"}
            folder.append(typed(a_record("c")))
        assert read_ids(tmp_path) == ["a", "b", "c"]

    def test_failed_samples_are_retried_when_a_run_is_resumed(self, tmp_path: Path) -> None:
        for done, record in ((set(), a_failed_record("a")), (set(), a_record("a", reply="B"))):
            with RunFolder(tmp_path, IDENTITY) as folder:
                folder.write_run({})
                assert folder.done() == done
                folder.append(typed(record))
        with RunFolder(tmp_path, IDENTITY) as folder:
            assert folder.records["a"].reply == "B"

    @pytest.mark.parametrize("cut", [1, 5, 17])
    def test_a_half_written_last_line_is_dropped_on_resuming(self, tmp_path: Path, cut: int) -> None:
        fill(tmp_path, "abc")
        file = tmp_path / "samples.jsonl"
        file.write_bytes(file.read_bytes()[:-cut])
        fill(tmp_path, "")
        assert read_ids(tmp_path) == ["a", "b"]

    def test_unreadable_record_lines_are_added_to_the_file_of_lines_set_aside_earlier(self, tmp_path: Path) -> None:
        fill(tmp_path, "abc")
        file = tmp_path / "samples.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(lines[0] + b"\x00garbage\xff\n" + b'{"id": "b", "error": null}\n' + lines[2])
        with pytest.warns(UserWarning, match=r"\b2 .*lines set aside .*samples\.rejected"):
            fill(tmp_path, "")
        assert read_ids(tmp_path) == ["a", "c"]
        with file.open("ab") as stream:
            stream.write(b"two\n")
        with pytest.warns(UserWarning, match="set aside"):
            fill(tmp_path, "")
        rejected = b"\x00garbage\xff\n" + b'{"id": "b", "error": null}\n' + b"two\n"
        assert (tmp_path / "samples.rejected").read_bytes() == rejected

    def test_records_that_the_task_rejects_are_set_aside_when_a_run_is_resumed(self, tmp_path: Path) -> None:
        fill(tmp_path, "ab")
        folder = RunFolder(tmp_path, IDENTITY, lambda record: record.id != "b")
        folder.peek()
        assert folder.done() == {"a"}
        assert read_ids(tmp_path) == ["a", "b"]
        with pytest.warns(UserWarning, match="set aside"), folder:
            assert folder.done() == {"a"}
        assert read_ids(tmp_path) == ["a"]


class TestReading:
    def test_reading_records_leaves_out_unreadable_lines_and_changes_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match=r"samples\.jsonl: .*No such file"):
            read_records(tmp_path)
        fill(tmp_path, "abc")
        file = tmp_path / "samples.jsonl"
        content = b'{"no": "id"}\n\x00garbage\xff\n' + file.read_bytes()[:-3]
        file.write_bytes(content)
        with pytest.warns(UserWarning, match=r"samples\.jsonl: 2 .*lines left out"):
            assert list(read_records(tmp_path)) == ["a", "b"]
        assert file.read_bytes() == content


def test_append_line_drops_an_incomplete_last_line(tmp_path: Path) -> None:
    file = tmp_path / "new" / "index.jsonl"
    append_line(file, {"a": 1})
    with file.open("ab") as stream:
        stream.write(b'{"b": "ha')
    append_line(file, {"c": "ü"})
    assert file.read_bytes() == '{"a": 1}\n{"c": "ü"}\n'.encode()


class Disk:
    """The disk after a power cut: each file and each folder as it was at its last sync."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.folders: dict[Path, dict[str, int]] = {}
        self.syncs = 0

    def fsync(self, number: int) -> None:
        path, facts = Path(f"/proc/self/fd/{number}").readlink(), os.fstat(number)
        if stat.S_ISDIR(facts.st_mode):
            self.folders[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.syncs += 1
            self.files[facts.st_ino] = path.read_bytes()

    def left(self, folder: Path, to: Path) -> Path:
        to.mkdir(parents=True)
        for name, inode in self.folders.get(folder, {}).items():
            if (folder / name).is_dir():
                self.left(folder / name, to / name)
            else:
                (to / name).write_bytes(self.files.get(inode, b""))
        return to


@pytest.mark.skipif(sys.platform != "linux", reason="a descriptor's path is read from /proc")
class TestPowerCut:
    """A simulated power cut: the disk contains only the data of the last fsync."""

    @pytest.fixture
    def disk(self, monkeypatch: pytest.MonkeyPatch) -> Disk:
        monkeypatch.setattr("os.fsync", (disk := Disk()).fsync)
        return disk

    def held(self, disk: Disk, results: Path, to: Path) -> str:
        with RunFolder(disk.left(results.parent, to) / results.name / "tau" / "frame", IDENTITY) as again:
            return "".join(again.records)

    def test_no_record_is_lost_in_a_power_cut_if_samples_take_longer_than_the_sync_interval(
        self, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("audiomarathon.files.SYNC_SECONDS", 0)  # as if each sample took longer
        results = tmp_path / "results"
        with RunFolder(results / "tau" / "frame", IDENTITY) as folder:
            folder.write_run({"task": "tau"})
            for number, id_ in enumerate("abc", 1):
                folder.append(typed(a_record(id_)))
                folder._file._threads.submit(int).result()  # the sync that began with the record has ended
                assert self.held(disk, results, tmp_path.with_name(f"cut{number}")) == "abc"[:number]
        assert read_run(tmp_path.with_name("cut1") / "results" / "tau" / "frame")["task"] == "tau"

    def test_no_record_of_a_finished_run_of_fast_samples_is_lost_in_a_power_cut(
        self, disk, tmp_path, monkeypatch
    ) -> None:
        """Records of fast samples are synced together."""
        monkeypatch.setattr("audiomarathon.files.SYNC_SECONDS", 1e9)
        fill(tmp_path / "results" / "tau" / "frame", "abcdefgh")
        assert disk.syncs == 3  # run.json, the first record, the end
        assert self.held(disk, tmp_path / "results", tmp_path.with_name("cut")) == "abcdefgh"

    @pytest.mark.parametrize(("ids", "failures"), [("", 99), ("ab", 99), ("a", 1)])
    def test_a_run_whose_records_cannot_be_synced_to_disk_ends_with_a_one_line_error(
        self, ids: str, failures: int, tmp_path: Path, monkeypatch
    ) -> None:
        """The system reports an error only once: a later sync of the same file succeeds, though a record is lost."""
        fill(tmp_path, "x")
        monkeypatch.setattr("os.fsync", Mock(side_effect=[BROKEN_DISK] * failures + [None] * 99))
        refused = pytest.raises(RecordError, match=r"samples\.jsonl: cannot be written: Input/output error")
        with refused, RunFolder(tmp_path, IDENTITY) as folder:
            for id_ in ids:
                folder.append(typed(a_record(id_)))

    def test_an_error_of_a_background_sync_is_reported_before_the_next_sync(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr("audiomarathon.files.SYNC_SECONDS", 0)
        growing = Appending(tmp_path / "lines")
        monkeypatch.setattr("os.fsync", Mock(side_effect=[BROKEN_DISK, None]))
        growing.add(b"a\n")
        growing._threads.submit(int).result()  # the sync has ended
        with pytest.raises(OSError, match="Input/output error"):
            growing.add(b"b\n")

    def test_records_are_written_on_a_file_system_without_fsync(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(errno.EINVAL, "Invalid argument")))
        fill(tmp_path, "ab")
        assert read_ids(tmp_path) == ["a", "b"]


class TestIdentity:
    @pytest.mark.parametrize(
        ("there", "now", "difference"),
        [
            (IDENTITY, IDENTITY | {"ratio": 0.7}, r"ratio: 0\.5 there, 0\.7 now"),
            (IDENTITY, IDENTITY | {"control": {"kind": "silence"}}, "control"),
            (IDENTITY | {"control": {"kind": "silence"}}, IDENTITY, "control"),
        ],
    )
    def test_a_folder_of_another_run_is_refused_and_the_differing_field_is_named(
        self, tmp_path: Path, there: dict, now: dict, difference: str
    ) -> None:
        fill(tmp_path, "a", there)
        with pytest.raises(RecordError, match=rf"another run .*{difference}"):
            fill(tmp_path, "b", now)
        assert read_ids(tmp_path) == ["a"]

    def test_writing_run_json_never_replaces_the_identity_of_the_run(self, tmp_path: Path) -> None:
        with RunFolder(tmp_path, IDENTITY) as folder:
            folder.write_run({"task": "tau", "identity": {"ratio": 0.9}, "identity_hash": "x", "schema_version": 1})
        facts = read_run(tmp_path)
        assert (facts["task"], facts["identity"], facts["schema_version"]) == ("tau", IDENTITY, 2)
        assert facts["identity_hash"] == identity_hash(IDENTITY)

    def test_a_resumed_run_still_says_that_its_checkpoint_fingerprint_is_weak(self, tmp_path: Path) -> None:
        fill(tmp_path, "a")
        write_json(tmp_path / "run.json", {**read_run(tmp_path), "weak_fingerprint": True})
        for ids in "bc":
            assert fill(tmp_path, ids).weak
            assert read_run(tmp_path)["weak_fingerprint"] is True

    def test_the_identity_hash_depends_on_values_and_not_on_key_order(self) -> None:
        assert identity_hash({"a": 1, "b": 2}) == identity_hash({"b": 2, "a": 1}) != identity_hash({"a": 1, "b": 3})

    def test_a_run_folder_without_records_accepts_any_run_identity(self, tmp_path: Path) -> None:
        fill(tmp_path, "")
        fill(tmp_path, "a", {**IDENTITY, "ratio": 0.7})
        assert read_ids(tmp_path) == ["a"]

    @pytest.mark.parametrize(("content", "message"), [(None, r"no run\.json"), ("{", r"run\.json: cannot be read")])
    def test_records_without_a_readable_run_json_are_refused(self, tmp_path: Path, content, message: str) -> None:
        fill(tmp_path, "a")
        (tmp_path / "run.json").unlink()
        if content:
            (tmp_path / "run.json").write_text(content)
        with pytest.raises(RecordError, match=message):
            fill(tmp_path, "")

    def test_a_summary_with_an_interval_that_is_not_two_numbers_is_refused(self, tmp_path: Path) -> None:
        write_json(tmp_path / "summary.json", {"intervals": {"score": [0.1, 0.2], "wer": None}})
        assert read_summary(tmp_path)["intervals"]["score"] == [0.1, 0.2]
        for interval in ([0.1], [0.1, 0.2, 0.3], ["low", "high"], {"low": 0.1}):
            write_json(tmp_path / "summary.json", {"intervals": {"score": interval}})
            with pytest.raises(RecordError, match="'intervals'"):
                read_summary(tmp_path)

    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("/m/tiny", "tiny"),
            ("/hub/models--Qwen--Qwen2.5-Omni-3B/snapshots/0123abc", "Qwen2.5-Omni-3B"),
            ("/lib/audiomarathon/embedded/checkpoint", "embedded"),
        ],
    )
    def test_the_checkpoint_name_of_a_run_is_the_given_one_or_derived_from_path_or_hub_name(
        self, path: str, name: str
    ) -> None:
        assert checkpoint_of({"checkpoint": path}) == name
        assert checkpoint_of({"checkpoint": path, "checkpoint_name": "tiny-30s"}) == "tiny-30s"


class TestLock:
    def test_a_run_folder_that_another_process_is_writing_is_refused(self, tmp_path: Path) -> None:
        with RunFolder(tmp_path, IDENTITY), pytest.raises(RecordError, match="another process"):
            fill(tmp_path, "a")
        fill(tmp_path, "a")


class TestFullDisk:
    def test_a_full_disk_loses_no_earlier_record_and_leaves_no_half_written_line(self, tmp_path: Path) -> None:
        class Full(io.FileIO):
            def write(self, text: Any) -> int:
                super().write(text[: len(text) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")

        with RunFolder(tmp_path, IDENTITY) as folder:
            folder.write_run({})
            folder.append(typed(a_record("a")))
            folder._file._stream.close()
            folder._file._stream = Full(tmp_path / "samples.jsonl", "ab")
            with pytest.raises(RecordError, match=r"No space left on device.*safe .*\b1 record"):
                folder.append(typed(a_record("b")))
        assert read_ids(tmp_path) == ["a"]
        fill(tmp_path, "b")
        assert read_ids(tmp_path) == ["a", "b"]

    def test_json_files_are_replaced_completely_or_not_at_all(self, tmp_path: Path, monkeypatch) -> None:
        file = tmp_path / "summary.json"
        write_json(file, {"n": 1})
        monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(RecordError, match="No space left"):
            write_json(file, {"n": 2})
        assert json.loads(file.read_text()) == {"n": 1}
        assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]

    def test_a_run_folder_below_a_file_is_a_one_line_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(RecordError, match=r"cannot be used .*folder"), RunFolder(tmp_path / "file" / "x", {}):
            pass


class TestOddNames:
    def test_ids_that_are_not_utf8_are_read_back(self, tmp_path: Path) -> None:
        with RunFolder(tmp_path, IDENTITY) as folder:
            folder.write_run({"samples": ["a\udcff"]})
            folder.append(typed(a_record("a\udcff")))
        with RunFolder(tmp_path, IDENTITY) as folder:
            assert folder.done() == {"a\udcff"}

    def test_a_run_identity_still_matches_after_json_turned_its_tuples_into_lists(self, tmp_path: Path) -> None:
        fill(tmp_path, "a", {"widths": (1, 2)})
        fill(tmp_path, "b", {"widths": (1, 2)})
        assert read_ids(tmp_path) == ["a", "b"]
