"""Open plain files only: opening a FIFO in a foreign folder would block forever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, Literal

_FLAGS = {"rb": os.O_RDONLY, "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT, "r+b": os.O_RDWR | os.O_CREAT}


def open_plain(path: Path, mode: Literal["rb", "ab", "r+b"] = "rb") -> IO[bytes]:
    """Open a plain file. For writing, create a missing file, and follow no link.

    Raises
    ------
    OSError
        When it is a FIFO, a device, a folder or (for writing) a link; or when the system refuses.
    """
    follow = 0 if mode == "rb" else os.O_NOFOLLOW
    try:
        number = os.open(path, _FLAGS[mode] | os.O_NONBLOCK | os.O_CLOEXEC | follow, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise OSError(error.errno, f"{_kind(path)}, not a plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, f"{_kind(path)}, not a plain file")
    return os.fdopen(number, mode)


def read_plain(path: Path) -> bytes:
    """Read a plain file, see :func:`open_plain`."""
    with open_plain(path) as stream:
        return stream.read()


def _kind(path: Path) -> str:
    kinds = {"a link": stat.S_ISLNK, "a FIFO": stat.S_ISFIFO, "a folder": stat.S_ISDIR, "a socket": stat.S_ISSOCK}
    mode = path.lstat().st_mode
    return next((kind for kind, is_kind in kinds.items() if is_kind(mode)), "a device")
