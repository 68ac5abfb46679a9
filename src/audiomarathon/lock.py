"""Lock files with `flock`. The system releases a lock when its process ends, for whatever reason."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from audiomarathon.errors import AudioMarathonError, DataError, RecordError
from audiomarathon.files import open_plain

_TRIES = 4  # try again: `is_held` in another process locks the file for an instant


def hold(file: Path) -> IO[bytes]:
    """Lock a file, and create it if it is missing. The lock ends when the returned file is closed.

    Raises
    ------
    BlockingIOError
        When another process holds the lock.
    OSError
        When the file cannot be created or locked, or is a link or not a plain file.
    """
    for left in reversed(range(_TRIES)):
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = open_plain(file, "r+b")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_in_place(stream, file):
                return stream
        except BlockingIOError:
            if not left:
                stream.close()
                raise
            time.sleep(0.05)
        except OSError:
            stream.close()
            raise
        stream.close()
    raise BlockingIOError(f"{file} is deleted and created again by another process")


@contextmanager
def holding(file: Path, busy: str) -> Iterator[None]:
    """Inside the block, hold the lock on a file.

    Parameters
    ----------
    busy
        Words for the error if another process holds the lock.

    Raises
    ------
    DataError
        Another process holds the lock, or the file cannot be created.
    """
    with _held(file, DataError, f"{file.parent}: {busy}", f"{file.parent}: cannot be written"):
        yield


def hold_run(folder: Path) -> IO[bytes]:
    """Lock a run's folder, so that no other process writes to it. The lock ends when the returned file is closed.

    Raises
    ------
    RecordError
        When another process is writing this run, or the folder cannot be locked.
    """
    busy = "another process is writing this run"
    unusable = "cannot be used as results folder, since its .lock cannot be locked"
    return _held(folder / ".lock", RecordError, f"{folder}: {busy}", f"{folder}: {unusable}")


def _held(file: Path, kind: type[AudioMarathonError], busy: str, unusable: str) -> IO[bytes]:
    try:
        return hold(file)
    except BlockingIOError:
        raise kind(f"{busy}; wait for it, or stop it") from None
    except OSError as error:
        raise kind(f"{unusable}: {error.strerror or error}") from error


def _is_in_place(stream: IO[bytes], file: Path) -> bool:
    """Tell whether an open, locked file is still the file at its path: another process may have replaced it."""
    return file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat())


def is_held(file: Path) -> bool | None:
    """Tell whether a process holds the lock on a file; None if unknown.

    The lock is not disturbed, and no file is created.
    """
    try:
        with open_plain(file) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
