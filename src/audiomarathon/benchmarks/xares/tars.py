"""Read the index of a webdataset tar: the position of each clip's audio, and its JSON."""

from __future__ import annotations

import json
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from audiomarathon.audio.member import Member
from audiomarathon.benchmarks.task import BadRow, storable
from audiomarathon.errors import told

AUDIO = ("flac", "mp3", "sox", "wav", "m4a", "ogg", "wma")
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_BLOCK = 512
_DAMAGE = (tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError, LookupError, RuntimeError)


@dataclass(frozen=True)
class Entry:
    """One clip of a webdataset tar: the place of its audio, and its JSON.

    Attributes
    ----------
    row
        Number of the audio among the tar's members, from 1.
    meta
        The clip's parsed JSON.
    """

    key: str
    row: int
    audio: Member
    meta: Any


def read_tar(tar: Path) -> tuple[list[Entry], list[BadRow]]:
    """Return the clips of an uncompressed tar in stored order, and its unusable members as bad rows.

    A clip is `<key>.<flac|mp3|sox|wav|m4a|ogg|wma>` and `<key>.json`; the key ends at the first dot of the base name,
    as webdataset cuts it. Members with another extension, or with a name that begins with a dot, are ignored, since
    webdataset never puts them into a clip. Of several members for one key, the first counts.
    """
    audio: dict[str, tuple[int, Member]] = {}
    metas: dict[str, tuple[int, Any]] = {}
    bad: list[BadRow] = []
    number = 0
    try:
        with tar.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            length = tar.stat().st_size
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # else every header stays in memory
                number += 1
                found = _NAME.fullmatch(str(PurePosixPath(member.name)))
                key, kind = found.groups() if found else ("", "")
                kind = kind.lower()
                if member.isdir() or kind not in (*AUDIO, "json"):
                    continue
                held: dict[str, tuple[int, Any]] = metas if kind == "json" else audio
                flaw = _flaw(member, length) or (f"{key!r} has a second {kind} file" if key in held else "")
                if not flaw:
                    try:
                        held[key] = (number, _parsed(stream, member) if kind == "json" else _placed(tar, member))
                    except (ValueError, RecursionError) as error:
                        flaw = f"{member.name!r} is not JSON ({told(error)})"
                if flaw:
                    held.setdefault(key, (number, None))
                    bad.append(BadRow(tar, number, flaw))
            stream.seek(archive.offset)
            if (end := stream.read(_BLOCK)) != bytes(_BLOCK):
                raise tarfile.ReadError("bytes that are not a header" if end else "no end mark")
    except _DAMAGE as error:
        bad.append(BadRow(tar, 0, f"cut off, damaged or not a plain tar after {number} members ({told(error)})"))
    for key in audio.keys() ^ metas.keys():
        have, lack = ("audio", "JSON") if key in audio else ("JSON", "audio")
        bad.append(BadRow(tar, (audio.get(key) or metas[key])[0], f"{key!r} has {have} but no {lack}"))
    pairs = [(key, *audio[key], metas[key][1]) for key in audio if key in metas]
    entries = [Entry(*pair) for pair in pairs if None not in pair[2:]]
    return entries, sorted(bad, key=lambda one: one.row or number + 1)


def _flaw(member: tarfile.TarInfo, length: int) -> str:
    """Return the reason why a member of a tar cannot be read; "" if it can."""
    if not member.isreg() or member.issparse():
        return f"{member.name!r} is not a plain file; allowed: no links, devices or sparse files"
    if member.name.startswith("/") or ".." in member.name.split("/") or storable(member.name) != member.name:
        return f"{member.name!r} is not allowed as a name: absolute, with .. or not UTF-8"
    return f"{member.name!r} is cut off" if member.offset_data + member.size > length else ""


def _placed(tar: Path, member: tarfile.TarInfo) -> Member:
    return Member(tar, member.name, member.offset_data, member.size)


def _parsed(stream: IO[bytes], member: tarfile.TarInfo) -> Any:
    stream.seek(member.offset_data)
    if (value := json.loads(stream.read(member.size))) is None:
        raise ValueError("null")
    return value
