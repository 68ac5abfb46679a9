"""Read tars, zips and arrays that somebody else made, and refuse headers, members and arrays above a size limit."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from audiomarathon.files import MAX_METADATA_BYTES, read_plain

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]

MAX_HEADER = 1 << 16
"""Limit on the bytes of one member's extended header (long name, pax)."""

MAX_HEADERS = 32 << 20
"""Limit on the bytes of all members' names and headers together; for 100,000 members, 335 bytes each."""

DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError,
    ArithmeticError, LookupError, AssertionError, RuntimeError, MemoryError,
)  # fmt: skip
"""Errors, besides OSError, that Python's readers raise on a damaged or hostile archive."""


_MOST_HEADER = 1 << 14  # limit of a .npy file's header; numpy itself reads at most 10,000 bytes


class RefusedError(Exception):
    """An archive is refused; the message is the reason. The reader adds the archive's name."""


def beyond(allowed: int, what: str) -> str:
    """Return an error text such as "more than 20,000 files", from the limit `allowed` and the plural noun `what`."""
    return f"more than {allowed:,} {what}"


class TarHeader(tarfile.TarInfo):
    """Header of a tar archive's member; reading it refuses long extended headers, negative sizes and sparse files."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.size < 0:
            raise tarfile.ReadError("a negative size")
        if not (self.isreg() or self.isdir()) and self.size > MAX_HEADER:
            raise RefusedError(beyond(MAX_HEADER, "bytes in one header"))
        return super()._proc_member(tar)  # type: ignore[misc]  # tarfile's own hook for subclasses

    def _apply_pax_info(self, *given: Any) -> None:
        super()._apply_pax_info(*given)  # type: ignore[misc]
        if self.size < 0:  # else the next header would be a header that was read before, in an endless loop
            raise tarfile.ReadError("a negative size")

    def _refuse_sparse(self, *_: object) -> NoReturn:
        raise RefusedError("holds a sparse file (pack without --sparse)")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class ZipStream(io.BufferedReader):
    """Stream of a zip archive that limits the size of its list of members, which zipfile reads in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes; raise :class:`RefusedError` if that is more than a list of members may have."""
        if size is not None and size > MAX_HEADERS:
            raise RefusedError(beyond(MAX_HEADERS, "bytes of headers"))
        return super().read(size)


def array_of(content: bytes | Array) -> Array:
    """Return the array of numbers that the bytes of a `.npy` file hold; refuse arrays of objects or records.

    The array shares the memory of `content`, so a memory-mapped file stays mapped.

    Raises
    ------
    ValueError
        The bytes are not a `.npy` file, or their length contradicts the header. In this case, no memory is allocated.
    """
    import numpy as np

    start = content[:_MOST_HEADER]
    stream = io.BytesIO(start if isinstance(start, bytes) else start.tobytes())
    try:
        version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the format")
        of_version = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = of_version(stream)  # type: ignore[no-untyped-call]
    except Exception as error:  # numpy parses the header as Python code, which fails in many ways
        raise ValueError(f"not an array of NumPy ({type(error).__name__})") from None
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of {dtype}; allowed: real numbers")
    there = len(content) - stream.tell()
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != there:
        raise ValueError(f"its header promises the shape {str(shape)[:60]} of {dtype}, but {there:,} bytes follow")
    flat = np.frombuffer(content, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if by_column else "C")


def arrays_of(file: Path, names: Sequence[str]) -> dict[str, Array]:
    """Return the named arrays of a `.npz` file, as {name: array}.

    Raises
    ------
    OSError
        The file is not plain, too large, or cannot be read.
    ValueError
        The file is not a `.npz` file, lacks an array, or holds arrays that are too large.
    """
    members = unzipped(read_plain(file), {f"{name}.npy" for name in names}.__contains__)
    if lacking := [name for name in names if f"{name}.npy" not in members]:
        raise ValueError(f"holds no {lacking[0]}.npy")
    return {name: array_of(members[f"{name}.npy"]) for name in names}


def unzipped(content: bytes, chosen: Callable[[str], bool], *codecs: int) -> dict[str, bytes]:
    """Return the content of chosen members of a zip archive, as {member's name: bytes}, in the archive's order.

    Parameters
    ----------
    chosen
        Function that tells, from a member's name, whether to unpack it.
    codecs
        Compression methods to allow besides stored and deflated. Others are refused, since they allocate as much memory
        as the file says.

    Raises
    ------
    ValueError
        The content is not a zip archive or is damaged, or the chosen members are too large or share a name.
    """
    try:
        with ZipStream(io.BytesIO(content)) as stream, zipfile.ZipFile(stream) as opened:
            members = [member for member in opened.infolist() if chosen(member.filename)]
            if len({member.filename for member in members}) < len(members):
                raise RefusedError("holds two members of one name")
            if sum(member.file_size for member in members) > MAX_METADATA_BYTES:
                raise RefusedError(beyond(MAX_METADATA_BYTES, "bytes to unpack"))
            allowed = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, *codecs)
            if odd := [member for member in members if member.compress_type not in allowed]:
                raise RefusedError(f"neither stored nor deflated (compression {odd[0].compress_type})")
            return {member.filename: opened.read(member) for member in members}
    except (*DAMAGE, RefusedError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
