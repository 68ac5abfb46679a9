"""Write bad audio files of every kind that a data set may contain; the same seed gives the same files."""

from __future__ import annotations

import io
import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000
SECONDS = 0.4


def tone(seconds: float = SECONDS, rate: int = RATE, channels: int = 1) -> np.ndarray:
    wave = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate) + 0.05
    return np.repeat(wave[:, None], channels, axis=1)


@cache
def encoded(kind: str, subtype: str | None = None, seconds: float = SECONDS, channels: int = 1) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, tone(seconds, RATE, channels), RATE, format=kind, subtype=subtype)
    return stream.getvalue()


def wav_header(rate: int, channels: int, data_bytes: int, bits: int = 16, tag: int = 1) -> bytes:
    block = channels * bits // 8 & 0xFFFF
    chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, tag, channels, rate, rate * block & 0xFFFFFFFF, block, bits)
    return struct.pack("<4sI4s", b"RIFF", 36 + data_bytes, b"WAVE") + chunk + struct.pack("<4sI", b"data", data_bytes)


def flipped(data: bytes, chance: random.Random, within: int, count: int) -> bytes:
    spoilt = bytearray(data)
    for _ in range(count):
        spoilt[chance.randrange(min(within, len(spoilt)))] = chance.randrange(256)
    return bytes(spoilt)


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(1, len(data))]


def with_length(chance: random.Random) -> bytes:
    """Return a WAV file with arbitrary chunk sizes."""
    data = bytearray(encoded("WAV"))
    struct.pack_into(
        "<I", data, chance.choice([4, 40]), chance.choice([0, 1, 3, 2**31, 2**32 - 2, chance.getrandbits(32)])
    )
    return bytes(data)


def flac_of_hours(chance: random.Random) -> bytes:
    """Return a FLAC file whose header promises three hours."""
    data = bytearray(encoded("FLAC"))
    data[21:26] = bytes([data[21] & 0xF0]) + struct.pack(">I", 3 * 3600 * RATE + chance.randrange(RATE))
    return bytes(data)


def not_finite(chance: random.Random) -> bytes:
    wave, stream = tone().astype(np.float32), io.BytesIO()
    wave[chance.randrange(len(wave))] = chance.choice([np.nan, np.inf, -np.inf])
    soundfile.write(stream, wave, RATE, format="WAV", subtype=chance.choice(["FLOAT", "DOUBLE"]))
    return stream.getvalue()


_FORMATS = ("WAV", "FLAC", "OGG", "MP3")

KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "fuzzed header": lambda c: flipped(encoded(c.choice(_FORMATS)), c, 60, c.randint(1, 6)),
    "fuzzed anywhere": lambda c: flipped(encoded(c.choice(_FORMATS)), c, 1 << 30, c.randint(1, 30)),
    "cut": lambda c: cut(encoded(c.choice(_FORMATS)), c),
    "wrong length": with_length,
    "grown": lambda c: encoded(c.choice(_FORMATS)) + c.randbytes(c.randint(1, 5000)),
    "NaN or infinity": not_finite,
    "8 channels": lambda c: encoded(c.choice(("WAV", "FLAC")), None, SECONDS, 8),
    "1 Hz": lambda c: wav_header(c.choice([0, 1, 2, 999, 2**31]), 1, 64) + c.randbytes(64),
    "0 s": lambda c: c.choice([b"", wav_header(RATE, 1, 0), encoded("FLAC", None, 0.0), encoded("WAV", None, 0.0)]),
    "header of 3 h": lambda c: c.choice(
        [wav_header(RATE, 1, 3 * 3600 * RATE * 2) + c.randbytes(999), flac_of_hours(c)]
    ),
    "absurd fields": lambda c: (
        wav_header(RATE, c.choice([0, 65_535]), 64, c.choice([0, 1, 7, 255]), c.choice([1, 2, 3, 255]))
        + c.randbytes(64)
    ),
    "not audio": lambda c: c.choice(
        [b"<html>404</html>", b"\0" * 4096, c.randbytes(4096), b"RIFF", b"fLaC", b"OggS", b"ID3"]
    ),
}


def write_all(folder: Path, count: int, seed: int = 0) -> Iterator[tuple[str, Path]]:
    """Write `count` bad clips, cycling through all kinds; yield the kind and path of each."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = itertools.cycle(KINDS.items())
    for number, (kind, make) in zip(range(count), kinds, strict=False):
        path = folder / f"{number:05}{chance.choice(['.wav', '.flac', '.ogg', '.mp3'])}"
        path.write_bytes(make(chance))
        yield kind, path


def write_odd(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield paths that are not regular files: a pipe, a folder, dead and circular links, a device, an endless name."""
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "pipe.wav")
    (folder / "folder.wav").mkdir()
    (folder / "nowhere.wav").symlink_to("gone")
    (folder / "loop.wav").symlink_to("loop.wav")
    for path in sorted(folder.iterdir()):
        yield path.stem, path
    yield "device", Path("/dev/zero")
    yield "endless name", folder / ("x" * 300 + ".wav")
