"""Archive bombs are refused, archives with flipped bits refused or unpacked: one line, little memory, no hang."""

from __future__ import annotations

import gzip
import random
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_makers import METHODS, PACKERS, archive_of, fetch_vesus, member
from hanging import no_hang
from task_folders import build_vesus, tree

from audiomarathon.errors import AudioMarathonError

MEMORY = 700 * 2**10
"""Kilobytes that the command may take at most."""

LOOK = """
import atexit, pathlib, re, time
used = lambda: re.search(r"VmHWM:\\s+([0-9]+)", pathlib.Path("/proc/self/status").read_text())[1]
atexit.register(lambda: print(time.process_time(), used()))
from audiomarathon.cli.app import app
app()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("vesus")
    build_vesus(top / "VESUS")
    return top


def folders() -> Iterator[bytes]:
    for number in range(600_000):
        yield member(f"folder-{number}", tarfile.DIRTYPE).tobuf(tarfile.GNU_FORMAT)


def headers(kind: bytes, size: int, count: int) -> Iterator[bytes]:
    content = b"%d comment=" % size
    for number in range(count):
        yield member("bomb", kind, size=size).tobuf(tarfile.GNU_FORMAT)
        left = -(-size // 512) * 512
        while left:
            block = (content + b"x" * (1 << 20))[: min(left, 1 << 20)]
            yield block
            left -= len(block)
        yield member(f"{number}.wav").tobuf(tarfile.GNU_FORMAT)


def zip_directory(count: int) -> bytes:
    """Return a zip of empty folders that is only a directory: 46 bytes and a name per folder."""
    names = (b"%x/" % number for number in range(count))
    entry = struct.Struct("<4s6H3L5H2L")
    parts = (
        entry.pack(b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, len(n), 0, 0, 0, 0, 0o40755 << 16, 0) + n for n in names
    )
    directory = b"".join(parts)
    return directory + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0)


def shared_header() -> Iterator[bytes]:
    """Yield a tar whose global header has many fields, which apply to every member."""
    fields = b"".join(b"10 %04x=v\n" % number for number in range(6000))
    yield member("bomb", tarfile.XGLTYPE, size=len(fields)).tobuf(tarfile.GNU_FORMAT)
    yield fields + b"\0" * (-len(fields) % 512)
    for number in range(90_000):
        yield member(f"{number}.wav").tobuf(tarfile.GNU_FORMAT)


BOMBS: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "600,000 folders": (folders, "100,000 files and folders"),
    "a long link of 2 GB": (lambda: headers(tarfile.GNUTYPE_LONGLINK, 2**31, 1), "65,536 bytes in one header"),
    "a pax header of 2 GB": (lambda: headers(tarfile.XHDTYPE, 2**31, 1), "65,536 bytes in one header"),
    "pax headers of 60 kB": (lambda: headers(tarfile.XHDTYPE, 60_000, 20_000), "33,554,432 bytes of headers"),
    "a header that all share": (shared_header, "33,554,432 bytes of headers"),
    "an end of 2 GB": (lambda: (b"\0" * 2**20 for _ in range(2**11)), "33,554,432 bytes after the last member"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", [*BOMBS, "zip of 600,000 folders"])
def test_an_archive_bomb_is_refused_in_one_line(name: str, tmp_path: Path, tell) -> None:
    file = tmp_path / "bomb"
    if name in BOMBS:
        make, message = BOMBS[name]
        with gzip.open(file, "wb", compresslevel=1) as stream:
            for block in make():
                stream.write(block)
    else:
        message = "100,000 files and folders"
        file.write_bytes(zip_directory(600_000))
    command = ["data", "download", "vesus", "--from", str(file), "--data", str(tmp_path / "root")]
    with no_hang():
        done = subprocess.run([sys.executable, "-c", LOOK, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"more than {message}" in done.stderr
    assert "Traceback" not in done.stderr
    seconds, memory = map(float, done.stdout.splitlines()[-1].split())
    assert memory < MEMORY
    tell(f"{file.stat().st_size:,} bytes: {seconds:.1f} s, {memory / 2**10:.0f} MB")


@pytest.mark.parametrize("name", [*METHODS, *PACKERS])
def test_an_archive_with_flipped_bits_is_unpacked_completely_or_refused(name, source, tmp_path, times, tell) -> None:
    """Errors are one line. A plain tar may unpack wrong content, since it has no checksum of it."""
    taken = archive_of(source, name, tmp_path / "archive")
    whole, expected, refused = taken.read_bytes(), tree(source), 0
    chance = random.Random(7)
    count = times(8, 400)
    for number in range(count):
        content = bytearray(whole)
        for _ in range(1 + number % 3):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        taken.write_bytes(content[: len(content) - (number % 4 == 3) * chance.randrange(len(content))])
        root = tmp_path / str(number)
        said = ""
        try:
            with no_hang():
                fetch_vesus(taken, root)
        except AudioMarathonError as error:
            said = str(error)
        assert "hangs" not in said
        assert "\n" not in said
        assert said or name == "a.tar" or tree(root, manifest=False) == expected
        refused += bool(said)
        shutil.rmtree(root, ignore_errors=True)
    tell(f"{count} damaged {name}: {refused} refused, the others whole")
