"""Decide which members of an untrusted archive may be unpacked, and limit their number and size."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from audiomarathon import untrusted
from audiomarathon.untrusted import RefusedError, beyond

MAX_BYTES = 200 * 10**9
"""Limit on the unpacked bytes of an archive: three times the benchmark's size."""

MAX_MEMBERS = 100_000
"""Limit on a source's number of files and folders; the benchmark has 7,000."""

MAX_PATH = 1_000


@dataclass(frozen=True)
class Entry:
    """A file that a source of data (folder, archive or repository) lists: its path, size in bytes, and hash if known.

    Attributes
    ----------
    digest
        `sha256:…`, `md5:…`, or `git:…` for the SHA-1 of a git blob; "" if unknown.
    """

    path: str
    size: int
    digest: str = ""


class Member(NamedTuple):
    """A member (file, folder, link, …) of an archive.

    Attributes
    ----------
    kind
        File type as in the module `stat`.
    header
        Number of bytes of the member's extended headers.
    open
        Function that opens the member; None if it cannot be read alone.
    """

    name: str
    kind: int
    size: int
    header: int = 0
    open: Any = None


def vetted(members: Iterable[Member]) -> list[Entry]:
    """Check that all members of an archive may be unpacked, and return those that are files.

    Raises
    ------
    RefusedError
        A member is not allowed (such as a link, or a path out of the folder), or there are too many members, or they
        are too large.
    """
    files: dict[str, Entry] = {}
    folders: set[str] = {""}
    total = headers = 0
    for number, (name, kind, size, header, _) in enumerate(members, start=1):
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise RefusedError(f"{name[:MAX_PATH]!r} is a link or a device (links: pack with tar --dereference)")
        if len(name) > MAX_PATH:
            raise RefusedError(beyond(MAX_PATH, f"characters in the path {name[:40]!r}…"))
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or parts[0].endswith(":"):
            raise RefusedError(f"{name!r} would leave the folder it is unpacked into")
        path = normal(name)
        if path in files:
            raise RefusedError(f"{path!r} occurs twice")
        if kind == stat.S_IFREG:
            files[path] = Entry(path, size)
        folder = path if kind == stat.S_IFDIR else path.rpartition("/")[0]
        while folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        total, headers = total + size, headers + len(name) + header
        for amount, allowed, what in (
            (max(number, len(files) + len(folders)), MAX_MEMBERS, "files and folders"),
            (headers, untrusted.MAX_HEADERS, "bytes of headers"),
            (total, MAX_BYTES, "bytes to unpack"),
        ):
            if amount > allowed:
                raise RefusedError(beyond(allowed, what))
    return list(files.values())


def normal(name: str) -> str:
    """Simplify a member's path: remove "./" and doubled slashes. The caller must refuse ".."."""
    return PurePosixPath(name).as_posix()
