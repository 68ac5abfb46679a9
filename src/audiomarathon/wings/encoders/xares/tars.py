"""Read which clips an uncompressed webdataset tar contains: the position of each clip's audio, and its JSON."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from audiomarathon.audio.member import Member
from audiomarathon.benchmarks.rows import shown, unique_fields
from audiomarathon.benchmarks.task import BadRow, storable
from audiomarathon.errors import told
from audiomarathon.files import MAX_CLIP_BYTES, MAX_METADATA_BYTES, MAX_OBJECT_BYTES, open_plain
from audiomarathon.untrusted import DAMAGE, RefusedError, TarHeader, beyond

AUDIO = ("flac", "mp3", "sox", "wav", "m4a", "ogg", "wma")
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_BLOCK = 512
_LONGEST_NAME = 1_000
CUT = "cut off, damaged or not a plain tar"
"""Start of the reason given in the bad row that stands for all lost members of a damaged tar."""


@dataclass(frozen=True)
class Entry:
    """One clip of a webdataset tar: the position of its audio in the file, and its JSON.

    Attributes
    ----------
    row
        Number of the audio among the tar's members, from 1.
    text
        The clip's JSON as bytes, already checked to be valid.
    """

    key: str
    row: int
    audio: Member
    text: bytes

    @property
    def meta(self) -> Any:
        """The clip's JSON, parsed at each call, since the parsed value takes many times the memory of its text."""
        return parsed(self.text)


def read_tar(tar: Path) -> tuple[list[Entry], list[BadRow]]:
    """Return (clips of an uncompressed tar in stored order, its unusable members as bad rows).

    A clip is `<key>.<flac|mp3|sox|wav|m4a|ogg|wma>` and `<key>.json`; the key ends at the first dot of the base name,
    as webdataset cuts it. Members with another extension, or with a name that begins with a dot, are ignored, since
    webdataset never puts them into a clip. If a key has several such members, the first counts.
    """
    audio: dict[str, tuple[int, Member | None]] = {}
    texts: dict[str, tuple[int, bytes | None]] = {}
    bad: list[BadRow] = []
    number = total = 0
    for number, member, fault in members_of(tar, bad):
        match = _NAME.fullmatch(str(PurePosixPath(member.name)))
        key, kind = match.groups() if match else ("", "")
        kind, why = kind.lower(), fault
        if kind not in (*AUDIO, "json"):
            continue
        if key in (texts if kind == "json" else audio):
            why = f"{key!r} has a second {kind} file"
        elif kind == "json":
            total += member.size if member.size <= MAX_OBJECT_BYTES else 0
            text, why = (None, why) if why else _read(member, MAX_METADATA_BYTES - total)
            texts[key] = number, text
        else:
            why = why or _too_large(member, MAX_CLIP_BYTES)
            audio[key] = number, None if why else member
        if why:
            bad.append(BadRow(tar, number, why))
    for key in audio.keys() ^ texts.keys():
        have, lack = ("audio", "JSON") if key in audio else ("JSON", "audio")
        bad.append(BadRow(tar, (audio.get(key) or texts[key])[0], f"{key!r} has {have} but no {lack}"))
    entries = [
        Entry(key, row, clip, text)
        for key, (row, clip) in audio.items()
        if clip is not None and (text := texts.get(key, (0, None))[1]) is not None
    ]
    return entries, sorted(bad, key=lambda row: row.row or number + 1)


def members_of(tar: Path, bad: list[BadRow]) -> Iterator[tuple[int, Member, str]]:
    """Yield (number from 1, member, fault) for each member of an uncompressed tar.

    `fault` is the reason why the member cannot be read, or "".

    Folders are counted, but not yielded. If the tar is damaged or hostile, the iterator ends, and the reason is added
    to `bad`.
    """
    number = 0
    try:
        with open_plain(tar) as stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=TarHeader) as archive:
            length = stream.seek(0, 2)
            stream.seek(0)
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # otherwise every header stays in memory
                number += 1
                if not member.isdir():
                    place = Member(tar, member.name, member.offset_data, member.size)
                    yield number, place, _flaw(member, length)
            stream.seek(archive.offset)
            if (end := stream.read(_BLOCK)) != bytes(_BLOCK):
                raise tarfile.ReadError("bytes that are not a header" if end else "no end mark")
    except (*DAMAGE, OSError, RefusedError) as error:
        bad.append(BadRow(tar, 0, f"{CUT} after {number} members ({told(error)})"))


def parsed(text: bytes) -> Any:
    """Parse the JSON about a clip.

    Raises
    ------
    ValueError
        The text is not JSON, is null or nested too deeply, or has a field twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=unique_fields)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if value is None:
        raise ValueError("null")
    return value


def _read(member: Member, left: int) -> tuple[bytes | None, str]:
    """Return (text, "") of a JSON member, or (None, reason why it is unusable).

    `left` is how many bytes of JSON the tar may still have after this member; if it is negative, the member is refused.
    """
    if why := _too_large(member, MAX_OBJECT_BYTES):
        return None, why
    if left < 0:
        return None, f"the JSON up to {member.name!r} has {beyond(MAX_METADATA_BYTES, 'bytes')}"
    try:
        parsed(text := member.read_bytes())
    except (OSError, ValueError) as error:
        return None, f"{member.name!r} is not JSON ({told(error)})"
    return text, ""


def _too_large(member: Member, most: int) -> str:
    return f"{member.name!r} has {member.size:,} bytes; allowed: up to {most:,}" if member.size > most else ""


def _flaw(member: tarfile.TarInfo, length: int) -> str:
    """Return the reason why a member of a tar must not be read; "" if it can be read."""
    if not member.isreg():
        return f"{shown(member.name)} is not a plain file; allowed: no links, devices or sparse files"
    if len(member.name) > _LONGEST_NAME or not member.name.isprintable():
        why = f"over {_LONGEST_NAME:,} characters, not UTF-8 or not printable"
        return f"{shown(member.name)} is not allowed as a name: {why}"
    if member.name.startswith("/") or ".." in member.name.split("/") or storable(member.name) != member.name:
        return f"{member.name!r} is not allowed as a name: absolute, with .. or not UTF-8"
    return f"{member.name!r} is cut off" if member.offset_data + member.size > length else ""
