"""A file that one process holds while it is at work. The lock goes with the process, however that ends (flock)."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from audiomarathon.errors import RecordError
from audiomarathon.plain_file import open_plain

_TRIES = 4  # `is_held` holds it for an instant, which means nothing


def hold(file: Path) -> IO[bytes]:
    """Lock a file, which is made where it is missing, with its folder; to close it is to let go.

    Raises
    ------
    BlockingIOError
        When another process holds it.
    OSError
        When it cannot be made, or locked on this file system; when it is a link or no plain file.
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
    raise BlockingIOError(f"{file} comes and goes")


def hold_run(folder: Path) -> IO[bytes]:
    """Lock a run's folder, as :func:`hold` does.

    Raises
    ------
    RecordError
        When another process is at work in it, or it cannot be locked.
    """
    try:
        return hold(folder / ".lock")
    except BlockingIOError:
        raise RecordError(f"{folder}: another process is writing this run; wait for it, or stop it") from None
    except OSError as error:
        reason = error.strerror or error
        raise RecordError(f"{folder}: cannot be used as results folder: its .lock: {reason}") from error


def _is_in_place(stream: IO[bytes], file: Path) -> bool:
    """Whether a locked file is the one of that name; who held it before may have removed it."""
    return file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat())


def is_held(file: Path) -> bool | None:
    """Return whether a process holds a file; None where it cannot be told."""
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
