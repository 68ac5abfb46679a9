"""A clip inside a tar, read in place without unpacking."""

from __future__ import annotations

import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from audiomarathon.files import open_plain


@dataclass(frozen=True)
class Member:
    """A file inside an uncompressed tar, or a part of a file, which can be decoded in place like a file on disk.

    The class has those methods of `Path` that decoding uses.

    Attributes
    ----------
    archive, name
        The tar, and the file's path in it; "" for a part of the file `archive`.
    offset, size
        Position of the first byte in the tar or file, and number of bytes.
    """

    archive: Path
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}" if self.name else str(self.archive)

    def read_bytes(self) -> bytes:
        """Return the file's content; fewer bytes if the tar was truncated."""
        with open_plain(self.archive) as file:
            file.seek(self.offset)
            return file.read(self.size)

    def open(self, _mode: str = "rb", _buffering: int = -1) -> BinaryIO:
        """Return a stream of the file's content, which is read into memory as a whole."""
        return io.BytesIO(self.read_bytes())

    def stat(self) -> os.stat_result:
        """Return a status like that of a plain file of this size, as `Path.stat` does."""
        return os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, self.size, 0, 0, 0))

    def is_file(self) -> bool:
        """Tell whether the tar exists; the member itself is not looked up."""
        return self.archive.is_file()

    def is_dir(self) -> bool:
        """Return False: a member stands for a file, never for a folder."""
        return False


Clip = Path | Member
"""A file to decode, on disk or inside a tar."""
