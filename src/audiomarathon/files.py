"""Files: written so that whoever reads them, after a crash too, sees the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from audiomarathon.errors import DataError, RecordError

ESCAPED = "backslashreplace"  # a lone surrogate (an undecodable file name) becomes \\udcXX, which is valid JSON
_CRC = b', "crc": "%08x"}'  # the last key; over the line as it would be without it
_LENGTH = len(_CRC % 0)
_UNSAFE = re.compile(r"[^\w .+@=,()-]")
_LONGEST_NAME, _LONGEST_BYTES = 120, 230  # of a name that we give: an ending has to fit behind it
_LONGEST_PART = 255  # bytes of a name that file systems take
_SHOWN_NAME = 60


def file_name(text: str) -> str:
    """Return a file's name for a name that a results folder gives: never a path, a hidden file, or another's name."""
    safe = _UNSAFE.sub("_", text).lstrip(".")[:_LONGEST_NAME]
    while len(safe.encode(errors=ESCAPED)) > _LONGEST_BYTES:
        safe = safe[:-1]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode(errors=ESCAPED)).hexdigest()[:8]}"


def named_folder(text: str | Path) -> Path:
    """Return the folder that a user names, `~` resolved; it need not be there.

    Raises
    ------
    DataError
        When it cannot be there: `~nobody`, or a name longer than file systems take.
    """
    try:
        folder = Path(text).expanduser()
    except RuntimeError:
        raise DataError(f"{text}: there is no such user") from None
    if max((len(os.fsencode(part)) for part in folder.parts), default=0) > _LONGEST_PART:
        raise DataError(f"{str(text)[:_SHOWN_NAME]}…: no folder can have so long a name")
    return folder


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what a disk or a file system refuses into one line."""
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_writable(folder: Path) -> None:
    """Refuse a folder in which nothing can be written, or which cannot be made; nothing stays of the attempt.

    Raises
    ------
    RecordError
        Saying what the system says.
    """
    with writing(folder):
        place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=place):
            pass


def write_json(path: Path, content: object) -> None:
    """Write a JSON file as :func:`write_text` does."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines as :func:`write_text` does."""
    write_bytes(path, b"".join(map(json_line, rows)))


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as one line of JSON."""
    return (json.dumps(row, ensure_ascii=False) + "\n").encode(errors=ESCAPED)


def json_object(text: bytes, *, strict: bool = False) -> dict[str, Any] | None:
    """Return the JSON object of a line or a file, or None; `strict` refuses NaN and infinities."""
    try:
        found = json.loads(text, parse_constant=_refuse if strict else None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return an object as a line of JSON with a checksum as its last field."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False).encode(errors=ESCAPED)
    return text[:-1] + _CRC % zlib.crc32(text) + b"\n"


def unsealed(line: bytes, *, always: bool = False) -> dict[str, Any] | None:
    """Return the object of a line, its checksum looked at and taken off; None for a damaged line.

    Parameters
    ----------
    always
        Whether a line without a checksum is damaged too.
    """
    line = line.rstrip(b"\r\n")
    text, end = line[:-_LENGTH] + b"}", line[-_LENGTH:]
    if end.startswith(_CRC[:10]):
        if end != _CRC % zlib.crc32(text):
            return None
        line = text
    elif always:
        return None
    return json_object(line, strict=True)


def _refuse(name: str) -> None:
    raise ValueError(name)


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines, made where it is missing; a torn last line is cut off first.

    Raises
    ------
    RecordError
        When it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as stream:
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                if stream.read() != b"\n":
                    stream.seek(0)
                    stream.truncate(stream.read().rfind(b"\n") + 1)
            stream.write(json_line(row))


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, its folder made where it is missing.

    Raises
    ------
    RecordError
        When it cannot be written; what was there before stays.
    """
    write_bytes(path, text.encode(errors=ESCAPED))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file as :func:`write_text` does."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


def replace_file(path: Path, content: bytes) -> None:
    """Put a whole file in another's place in one step; what was there stays when that fails."""
    temporary = path.with_name(f".{path.name}.new")
    with writing(path):
        try:
            temporary.unlink(missing_ok=True)  # a link or a FIFO of that name would be written to
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def link(source: Path, target: Path) -> None:
    """Put a file at a second place in one step: as a hard link, or where the file system has none, as a copy."""
    temporary = target.with_name(f".{target.name}.new")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(target)
