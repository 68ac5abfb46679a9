"""Write files atomically. Read only plain files, and only up to a size limit.

A reader sees either the whole old file or the whole new file, also after a crash. Opening a FIFO in somebody else's
folder would block forever, and a huge file would fill the memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Literal

from audiomarathon.errors import DataError, RecordError

MAX_METADATA_BYTES = 256 << 20  # limit of any file that is read whole: real metadata has a few MB
MAX_RECORD_BYTES = 4 << 30  # limit of a run's files of JSON lines, which have some kB a sample
MAX_CLIP_BYTES = 1 << 30  # limit of a clip that is read whole: an hour of stereo audio has 0.7 GB
MAX_OBJECT_BYTES = 16 << 20  # limit of the JSON about one clip or sample, which takes 30 times as much memory parsed
ESCAPED = "backslashreplace"  # a lone surrogate (an undecodable file name) becomes \\udcXX, which is valid JSON
_CRC = b', "crc": "%08x"}'  # the last key: checksum of the line without this key
_LENGTH = len(_CRC % 0)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # json.dumps would make one for each line
_UNSAFE = re.compile(r"[^\w .+@=,()-]")
_LONGEST_NAME, _LONGEST_BYTES = 120, 230  # characters and bytes of a name that we choose; leaves room for a suffix
_LONGEST_PART = 255  # longest name in bytes on common file systems
_SHOWN_NAME = 60
SYNC_SECONDS = 0.05  # shortest time between two syncs of a file that grows
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # errors of file systems that cannot sync
_TICK_NS = 50_000_000  # two changes of a file this close may get the same time
_COARSE_TICK_NS = 2_000_000_000  # the same on file systems (ext3, FAT, some network ones) that keep whole seconds
_FLAGS = {"rb": os.O_RDONLY, "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT, "r+b": os.O_RDWR | os.O_CREAT}


def file_name(text: str) -> str:
    """Turn a name, such as a sample's id, into a safe file name: no folder in it, not hidden, unique to the name."""
    safe = _UNSAFE.sub("_", text).lstrip(".")[:_LONGEST_NAME]
    while len(safe.encode(errors=ESCAPED)) > _LONGEST_BYTES:
        safe = safe[:-1]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode(errors=ESCAPED)).hexdigest()[:8]}"


def named_folder(text: str | Path) -> Path:
    """Return a folder named by a user, with `~` expanded; it need not exist.

    Raises
    ------
    DataError
        When the folder cannot exist: its `~user` is unknown, or a name is too long for file systems.
    """
    try:
        folder = Path(text).expanduser()
    except RuntimeError:
        raise DataError(f"{text}: there is no such user") from None
    if max((len(os.fsencode(part)) for part in folder.parts), default=0) > _LONGEST_PART:
        raise DataError(f"{str(text)[:_SHOWN_NAME]}…: too long for a folder's name; allowed: {_LONGEST_PART} bytes")
    return folder


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside the block, turn an error of the disk or file system into a :class:`RecordError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_writable(folder: Path) -> None:
    """Raise an error if a folder is not writable or cannot be created. The check leaves no file or folder behind.

    Raises
    ------
    RecordError
        The folder is not writable; the message quotes the system's reason.
    """
    with writing(folder):
        place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=place):
            pass


def write_json(path: Path, content: object) -> None:
    """Write an object to a JSON file, atomically as :func:`write_text` does.

    When the function returns, the file survives a power cut.
    """
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode(errors=ESCAPED), synced=True)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to a file, one JSON object a line, atomically as :func:`write_text` does."""
    write_bytes(path, b"".join(map(json_line, rows)))


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row (a dict) as JSON on one line, in bytes, with a line feed at the end."""
    return (json.dumps(row, ensure_ascii=False) + "\n").encode(errors=ESCAPED)


def json_object(text: bytes, *, strict: bool = False) -> dict[str, Any] | None:
    """Parse text that holds a JSON object; return None for any other text.

    With `strict`, text with NaN or an infinity gives None too.
    """
    try:
        content = json.loads(text, parse_constant=_refuse if strict else None)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return an object as a line of JSON with a checksum as its last key, `crc`, which :func:`unsealed` checks."""
    text = _ENCODER.encode(content).encode(errors=ESCAPED)
    return text[:-1] + _CRC % zlib.crc32(text) + b"\n"


def unsealed(line: bytes, *, always: bool = False) -> dict[str, Any] | None:
    """Parse a line that :func:`sealed` made, and return its object without the checksum; None for a damaged line.

    Parameters
    ----------
    always
        Whether a line without a checksum counts as damaged.
    """
    text = sound_text(line, always=always)
    return None if text is None else json_object(text, strict=True)


def sound_text(line: bytes, *, always: bool = False) -> bytes | None:
    """Check a line that :func:`sealed` made, and return its JSON text without the checksum; None if it is damaged.

    Parameters
    ----------
    always
        Whether a line without a checksum counts as damaged.
    """
    line = line.rstrip(b"\r\n")
    text, end = line[:-_LENGTH] + b"}", line[-_LENGTH:]
    if end.startswith(_CRC[:10]):
        return text if end == _CRC % zlib.crc32(text) else None
    return None if always else line


def _refuse(name: str) -> None:
    raise ValueError(name)


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines, after removing an incomplete last line. A missing file is created.

    Raises
    ------
    RecordError
        When the file cannot be written.
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
    """Write a text file atomically, creating its folder if needed.

    Raises
    ------
    RecordError
        When it cannot be written; the old file stays.
    """
    write_bytes(path, text.encode(errors=ESCAPED))


def write_bytes(path: Path, content: bytes, *, synced: bool = False) -> None:
    """Write bytes to a file, atomically as :func:`write_text` does.

    With `synced`, a power cut also leaves the old or the new file, and after the function's return always the new.
    """
    temporary = path.with_name(f".{path.name}.new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.unlink(missing_ok=True)  # never write into a link or a FIFO of that name
            temporary.write_bytes(content)
            if synced:
                with temporary.open("r+b") as stream:
                    _sync(stream.fileno())
            temporary.replace(path)
            if synced:
                _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


class Appending:
    """A plain file to which lines are appended, so that a power cut loses as few lines as possible.

    :meth:`add` hands a line to the operating system, so a killed process loses nothing. It also starts a sync to the
    disk in a thread, if the last sync began at least 50 ms ago and has ended. :meth:`close` syncs the rest. The names
    of a new file and of the folders above it are synced at once.

    Raises
    ------
    OSError
        From any method: the file cannot be opened, written or synced.
    """

    def __init__(self, path: Path) -> None:
        new = not path.exists()
        self._stream, self._threads = open_plain(path, "ab"), ThreadPoolExecutor(1)
        self._syncing: Future[None] | None = None
        self._begun = -math.inf
        for folder in path.absolute().parents if new else ():
            _sync_folder(folder)

    def add(self, line: bytes) -> None:
        """Append a line, which must end in a line feed."""
        self._stream.write(line)
        self._stream.flush()
        now = time.monotonic()
        if abs(now - self._begun) >= SYNC_SECONDS and (self._syncing is None or self._syncing.done()):
            if self._syncing is not None:
                self._syncing.result()  # raises the error of a failed sync
            self._begun, self._syncing = now, self._threads.submit(_sync, self._stream.fileno())

    def close(self) -> None:
        """Sync and close the file; do nothing if it is already closed."""
        if self._stream.closed:
            return
        self._threads.shutdown()
        try:
            if self._syncing is not None:
                self._syncing.result()  # the system reports a disk error only once; the next sync then succeeds
            _sync(self._stream.fileno())
        finally:
            self._stream.close()


def _sync(number: int) -> None:
    """Wait until the disk holds the content of an open file or folder, given by its file descriptor."""
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _sync_folder(folder: Path) -> None:
    """Wait until the disk holds the file names in a folder.

    Errors are ignored, since some systems do not allow this.
    """
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync(number)
        finally:
            os.close(number)


def link(source: Path, target: Path) -> None:
    """Make the file `source` also available at `target`, atomically: by a hard link, or by a copy if that fails."""
    temporary = target.with_name(f".{target.name}.new")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(target)


def open_plain(path: Path, mode: Literal["rb", "ab", "r+b"] = "rb", buffering: int = -1) -> IO[bytes]:
    """Open a plain file: no FIFO, device or folder. For writing, create a missing file, and refuse a link.

    Raises
    ------
    OSError
        When the path is a FIFO, a device, a folder or (for writing) a link; or when the system refuses.
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
    return os.fdopen(number, mode, buffering)


def read_plain(path: Path, most: int = MAX_METADATA_BYTES) -> bytes:
    """Return the content of a plain file of at most `most` bytes.

    Raises
    ------
    OSError
        The file is larger, or :func:`open_plain` refuses it.
    """
    with open_plain(path) as stream:
        return read_stream(stream, most)


def read_stream(stream: IO[bytes], most: int) -> bytes:
    """Return the content of an open plain file; raise OSError if it has more than `most` bytes."""
    size = os.fstat(stream.fileno()).st_size
    content = stream.read(most + 1) if size <= most else b""  # a file may grow, and those of /proc have size 0
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"{max(size, len(content)):,} bytes, too large; allowed: up to {most:,}")
    return content


def whole_lines(stream: IO[bytes], most: int = MAX_RECORD_BYTES) -> Iterator[bytes]:
    """Yield the lines of an open plain file with their line ends. An incomplete last line is left out.

    Only one line at a time is in memory.

    Raises
    ------
    OSError
        The file has more than `most` bytes.
    """
    size, read = os.fstat(stream.fileno()).st_size, 0
    while line := stream.readline(most - read + 1) if size <= most else b"":
        read += len(line)
        if read <= most and line.endswith(b"\n"):
            yield line
    if max(size, read) > most:
        raise OSError(errno.EFBIG, f"{max(size, read):,} bytes, too large; allowed: up to {most:,}")


def state_of(path: Path) -> tuple[int, ...]:
    """Return facts of a file (device, inode, size, mtime, ctime) that differ after any change of the file.

    No program can set the ctime back. Return () if the file cannot be examined, or changed so
    recently that another change might get the same time.
    """
    try:
        facts = path.stat()
    except OSError:
        return ()
    tick = _TICK_NS if facts.st_ctime_ns % 1_000_000_000 else _COARSE_TICK_NS
    if time.time_ns() - facts.st_ctime_ns <= tick:
        return ()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _kind(path: Path) -> str:
    kinds = {"a link": stat.S_ISLNK, "a FIFO": stat.S_ISFIFO, "a folder": stat.S_ISDIR, "a socket": stat.S_ISSOCK}
    mode = path.lstat().st_mode
    return next((kind for kind, is_kind in kinds.items() if is_kind(mode)), "a device")
