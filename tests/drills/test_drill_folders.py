"""Faults in a results folder: kills, full or read-only disks, damaged lines, concurrent sweeps, a clock set back."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import killed_sweep
import pytest
import task_folders
from builders import lines_of, one_load, steady  # noqa: F401 (a fixture)
from hanging import no_hang

from audiomarathon.errors import AudioMarathonError, RecordError
from audiomarathon.results.status import read_status
from audiomarathon.runs.folder import RunFolder, read_records
from audiomarathon.runs.record_line import from_line

pytestmark = pytest.mark.usefixtures("one_load")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    task_folders.build_tau(root / "TAU")
    task_folders.build_librispeech(root / "LibriSpeech")
    return root


@pytest.fixture(scope="module")
def undisturbed(data: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of an undisturbed sweep."""
    results = tmp_path_factory.mktemp("whole")
    assert killed_sweep.go(str(data), str(tiny_checkpoint), str(results)) == 0
    return results


@pytest.fixture(scope="module")
def whole(undisturbed: Path) -> dict[str, Any]:
    """The records of the undisturbed sweep."""
    return on_record(undisturbed)


@pytest.fixture(scope="module")
def said(undisturbed: Path) -> dict[str, Any]:
    """The verdicts of that sweep."""
    verdicts = verdicts_on(undisturbed)
    assert verdicts.keys() == on_record(undisturbed).keys()
    return verdicts


def on_record(results: Path, name: str = "samples.jsonl") -> dict[str, Any]:
    """Return the steady fields of all records by task, setting and id. Fail on partial lines and repeated samples."""
    recorded = {}
    for file in results.rglob(name):
        lines = lines_of(file)
        assert len({line["id"] for line in lines}) == len(lines)
        recorded |= {
            f"{file.parent.parent.parent.name}/{file.parent.name}/{line['id']}": steady(line) for line in lines
        }
    return recorded


def verdicts_on(results: Path) -> dict[str, Any]:
    """Return all stored verdicts by task, setting and id."""
    return on_record(results, "verdicts-*.jsonl")


def disturbed(what: str, count: int, data: Path, model: Path, results: Path) -> dict[str, Any]:
    command = [killed_sweep.__file__, what, str(count), str(data), str(model), str(results)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=1200, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_sweep_killed_at_random_moments_resumes_to_the_records_of_an_undisturbed_sweep(
    whole, said, data: Path, tiny_checkpoint: Path, tmp_path: Path, times, tell
) -> None:
    count = times(8, 200)
    outcome = disturbed("kill", count, data, tiny_checkpoint, tmp_path)
    assert (outcome["codes"], outcome["killed"]) == ([0], count)
    for n in range(outcome["rounds"]):
        assert but_for_sharing(on_record(tmp_path / str(n))) == but_for_sharing(whole)
        assert verdicts_on(tmp_path / str(n)) == said
    assert not list(tmp_path.rglob("*.new"))
    tell(f"{count} kills -9 of {outcome['rounds']} sweeps, each run to its end: all {len(whole)} records as before")


def but_for_sharing(records: dict[str, Any]) -> dict[str, Any]:
    """Blank `encoder_shared`: after a kill, a setting may run alone and then shares no encoder output."""
    return {key: record | {"encoder_shared": None} for key, record in records.items()}


@pytest.mark.long
def test_concurrent_sweeps_of_one_folder_record_each_sample_once(
    whole, said, data: Path, tiny_checkpoint: Path, tmp_path: Path, times, tell
) -> None:
    outcome, results = disturbed("race", times(2, 6), data, tiny_checkpoint, tmp_path), tmp_path / "0"
    assert outcome["codes"][-1] == 0
    assert (on_record(results), verdicts_on(results)) == (whole, said)
    assert json.loads((results / "summary.json").read_text())["complete"] is True
    tell(f"{len(outcome['codes']) - 1} at once ended with {outcome['codes'][:-1]}: each record once, none mixed")


@contextmanager
def small_disk(path: Path, kilobytes: int) -> Iterator[Callable[[], object]]:
    """Mount a small disk at a path and yield a function that enlarges it. Skip if mounting is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=8m", str(path)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def small_files(_path: Path, kilobytes: int) -> Iterator[Callable[[], object]]:
    """Limit the size of all files, and yield a function that lifts the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * kilobytes, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("limited", "kilobytes"),
    [
        (small_disk, 32),
        (small_files, 2),
        *(pytest.param(small_disk, size, marks=pytest.mark.long) for size in (4, 24, 60)),
        *(pytest.param(small_files, size, marks=pytest.mark.long) for size in (0, 6)),
    ],
)
def test_a_sweep_keeps_its_records_on_a_full_disk_and_resumes(
    whole, said, limited, kilobytes: int, data: Path, tiny_checkpoint: Path, tmp_path: Path, tell
) -> None:
    disk = tmp_path / "disk"
    given = (str(data), str(tiny_checkpoint), str(disk / "out"))
    with limited(disk, kilobytes) as enlarge:
        with suppress(AudioMarathonError):  # raised if not even the summary can be written
            assert killed_sweep.go(*given, logs=disk / "logs") == 1
        for file in disk.rglob("samples.jsonl"):
            assert file.read_bytes()[-1:] in (b"\n", b"")
        survived = on_record(disk)
        assert survived.items() <= whole.items()
        assert verdicts_on(disk).items() <= said.items()
        enlarge()
        assert killed_sweep.go(*given, logs=disk / "logs") == 0
        assert (on_record(disk), verdicts_on(disk)) == (whole, said)
    tell(f"{kilobytes} kB: {len(survived)} of {len(whole)} records before it was full, all kept; the rest after")


@pytest.mark.long
def test_a_read_only_results_disk_ends_a_sweep_with_a_one_line_error_and_no_lost_record(
    whole, said, data: Path, tiny_checkpoint: Path, tmp_path: Path, tell
) -> None:
    """Read-only before the first record, and after the last."""
    disk, model = tmp_path / "disk", str(tiny_checkpoint)
    with small_disk(disk, 4096):
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(RecordError, match="Read-only file system") as raised:
            killed_sweep.go(str(data), model, str(disk / "out"))
        assert "\n" not in str(raised.value)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        killed_sweep.go(str(data), model, str(disk / "out"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert {run.state for run in read_status([disk])} == {"complete"}  # `status` writes nothing
        assert (on_record(disk), verdicts_on(disk)) == (whole, said)
    tell(str(raised.value).replace(str(tmp_path), ""))


def test_a_results_folder_without_write_access_is_refused(data: Path, tiny_checkpoint: Path, tell) -> None:
    with pytest.raises(RecordError, match="cannot be") as raised:
        killed_sweep.go(str(data), str(tiny_checkpoint), "/proc/audiomarathon")
    tell(str(raised.value))


def damage(content: bytes, chance: random.Random) -> bytes:
    """Damage a file of lines as crashes, editors and disks do."""
    at, length = chance.randrange(len(content)), chance.randrange(1, 400)
    kinds = (
        lambda: content[:at] + b"\0" * length + content[at + length :],
        lambda: content[:at] + chance.randbytes(length) + content[at:],
        lambda: content[:at] + content[at + length :],
        lambda: content[:at] + b"\n" + content[at:],
        lambda: content[:at],
        lambda: content[:at] + b"<<<<<<< HEAD\n" + content[at:],
        lambda: content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :],
        lambda: content.replace(chance.choice([b'"reply"', b'"reference"', b'"error"', b'"id"']), b'"gone"', 1),
    )
    return chance.choice(kinds)()


def test_damage_to_a_samples_file_loses_only_the_damaged_lines(
    undisturbed: Path, whole, said, data: Path, tiny_checkpoint: Path, tmp_path: Path, times, tell
) -> None:
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    chance, count, undetected = random.Random(1), times(80, 20_000), 0
    folder = tmp_path / "tau" / tiny_checkpoint.name / "base-0"
    facts, file = json.loads((folder / "run.json").read_text()), folder / "samples.jsonl"
    content = file.read_bytes()
    lines = {json.loads(line)["id"]: line for line in content.splitlines()}
    for _ in range(count):
        spoilt = damage(content, chance)
        file.write_bytes(spoilt)
        intact = {id_ for id_, line in lines.items() if line in spoilt.split(b"\n")[:-1]}
        with no_hang(), RunFolder(folder, facts["identity"]) as run:
            assert intact <= run.done()
            undetected += sum(run.records[id_] != from_line(lines[id_]) for id_ in run.done() & set(lines))
        assert not (folder / ".samples.jsonl.new").exists()
    file.write_bytes(content.replace(b'"reply"', b'"gone"', 2))
    assert killed_sweep.go(str(data), str(tiny_checkpoint), str(tmp_path)) == 0
    assert but_for_sharing(on_record(tmp_path)) == but_for_sharing(whole)
    assert verdicts_on(tmp_path) == said
    assert undetected == 0
    tell(f"{count} kinds of damage: every whole line kept; no other was taken for a record")


@pytest.mark.long
def test_a_clock_that_goes_backwards_changes_no_record(
    whole, said, data: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch, tell
) -> None:
    chance, real = random.Random(0), {name: getattr(time, name) for name in ("time", "monotonic")}
    with monkeypatch.context() as patch:
        for name, clock in real.items():
            patch.setattr(time, name, lambda clock=clock: clock() - chance.choice([0, 1, 3600, 1e9]))
        assert killed_sweep.go(str(data), str(tiny_checkpoint), str(tmp_path)) == 0
        assert all(run.complete for run in read_status([tmp_path]))
    assert (on_record(tmp_path), verdicts_on(tmp_path)) == (whole, said)
    for file in tmp_path.rglob("samples.jsonl"):
        assert all(min((r.time or {}).values()) >= 0 for r in read_records(file.parent).values())
    tell(f"set back by up to 30 years again and again: all {len(whole)} records as undisturbed, no negative time")
