"""Locks: for one process at a time, released when it ends, and safe if the lock file is removed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from audiomarathon import lock
from audiomarathon.lock import hold, is_held

HOLDER = """
import pathlib, sys, audiomarathon.lock
held = audiomarathon.lock.hold(pathlib.Path(sys.argv[1]))
print("held", flush=True)
input()
"""


def test_a_lock_held_by_another_process_is_free_once_that_process_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "new" / "lock"
    assert is_held(file) is False
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert is_held(file) is True
        with pytest.raises(BlockingIOError):
            hold(file)
        other.kill()
    assert is_held(file) is False
    hold(file).close()


def test_a_lock_file_that_its_last_holder_has_removed_is_not_mistaken_for_the_current_lock(
    tmp_path: Path, monkeypatch
) -> None:
    """A file that was opened before its holder removed it, and locked afterwards, blocks nobody."""
    file, real = tmp_path / "lock", lock.fcntl.flock
    first = hold(file)

    def late(stream: object, how: int) -> None:
        monkeypatch.setattr(lock.fcntl, "flock", real)
        file.unlink()
        first.close()
        real(stream, how)

    monkeypatch.setattr(lock.fcntl, "flock", late)
    with hold(file):
        assert is_held(file) is True


def test_taking_an_exclusive_lock_waits_for_a_short_shared_lock_of_another_process(tmp_path: Path) -> None:
    glance = (tmp_path / "lock").open("w")
    lock.fcntl.flock(glance, lock.fcntl.LOCK_SH)
    threading.Timer(0.07, glance.close).start()
    hold(tmp_path / "lock").close()


def test_a_file_system_error_while_locking_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(37, "No locks available")

    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        hold(tmp_path / "file" / "lock")
    monkeypatch.setattr(lock.fcntl, "flock", refused)
    with pytest.raises(OSError, match="No locks available"):
        hold(tmp_path / "lock")
    assert is_held(tmp_path / "lock") is None
