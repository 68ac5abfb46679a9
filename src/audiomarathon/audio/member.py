"""A clip inside a tar, read where it lies: nothing is unpacked."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Member:
    """A file inside an uncompressed tar, with what decoding asks of a path.

    Attributes
    ----------
    archive, name
        The tar, and the file's path in it.
    offset, size
        Where its bytes lie in the tar, and how many.
    """

    archive: Path
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    def read_bytes(self) -> bytes:
        """Return the file's content; fewer bytes where the tar was cut."""
        with self.archive.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)

    def open(self, _mode: str = "rb") -> BinaryIO:
        """Open the content, which is read at once."""
        return io.BytesIO(self.read_bytes())

    def stat(self) -> os.stat_result:
        """Return the status of a plain file of this size."""
        return os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, self.size, 0, 0, 0))

    def is_file(self) -> bool:
        """Return whether the tar is there."""
        return self.archive.is_file()

    def is_dir(self) -> bool:
        """Return False."""
        return False


Clip = Path | Member
"""What is decoded: a file, or one inside a tar."""
