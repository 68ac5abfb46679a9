"""Writing files so that readers, and whoever comes after a crash, see the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from audiomarathon.errors import RecordError

ESCAPED = "backslashreplace"  # a lone surrogate (an undecodable file name) becomes \\udcXX, which is valid JSON


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


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as :func:`write_text` does."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
