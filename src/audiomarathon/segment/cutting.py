"""Cut long recordings into clips of allowed lengths, at silences if possible.

A recording is read twice, in blocks: first to measure its level in every hundredth of a second, then to write clips. A
clip ends in the middle of the longest silence within its allowed lengths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from audiomarathon.audio.decode import pcm_blocks, write_pcm
from audiomarathon.errors import AudioError, DataError
from audiomarathon.segment.build_log import BuildLog, build_log, same_as
from audiomarathon.segment.corpus import audio_files
from audiomarathon.segment.joining import check_lengths

HOPS_PER_SECOND = 100
LOUD_PERCENTILE = 95
TAIL = "a tail too short for a clip"

Levels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cutting:
    """Settings for cutting recordings into clips.

    Attributes
    ----------
    low, high
        Shortest and longest clip, in seconds.
    rate
        Sampling rate of the clips, in Hz.
    silence
        Audio this many dB below the recording's loud passages (95th percentile of its level) counts as silence.
    """

    low: float = 90.0
    high: float = 300.0
    rate: int = 16_000
    silence: float = 35.0

    def __post_init__(self) -> None:
        check_lengths(self.low, self.high, self.rate)
        if self.low < 1:
            raise DataError(f"--min {self.low:g}: expected at least 1, in seconds")
        if not self.silence > 0:
            raise DataError(f"--silence {self.silence:g}: expected dB below the loud passages, above 0")


@dataclass(frozen=True)
class Stretch:
    """The position of a clip in its recording, in samples.

    `ends_at` says where the clip ends: at a "silence", at the longest allowed "length", or at the recording's "end".
    """

    start: int
    stop: int
    ends_at: str


def levels(recording: Path, rate: int) -> tuple[Levels, int]:
    """Return (RMS level of a recording in each hundredth of a second, its length in samples at `rate`)."""
    hop, frames = rate // HOPS_PER_SECOND, 0
    rest = np.zeros(0, np.int16)
    chunks: list[Levels] = []
    for block in pcm_blocks(recording, rate):
        frames += len(block)
        rest = np.concatenate((rest, block))
        whole = len(rest) // hop * hop
        chunks.append(np.sqrt(np.square(rest[:whole].astype(np.float64).reshape(-1, hop)).mean(axis=1)))
        rest = rest[whole:]
    return np.concatenate(chunks), frames


def stretches(level: Levels, frames: int, cutting: Cutting) -> list[Stretch]:
    """Choose where to cut a recording into clips, so that no rest too short for a clip remains at the end, if possible.

    Parameters
    ----------
    level, frames
        As :func:`levels` returns them.
    cutting
        Allowed lengths, and the threshold of silence.
    """
    hop = cutting.rate // HOPS_PER_SECOND
    low, high = round(cutting.low * cutting.rate), round(cutting.high * cutting.rate)
    loud = float(np.percentile(level, LOUD_PERCENTILE)) if len(level) else 0.0
    silent = level <= loud * 10 ** (-cutting.silence / 20)
    pieces, start = [], 0
    while frames - start > high:
        # A cut after this point would leave a rest too short for a clip.
        latest = min(start + high, frames - low) if frames - start >= 2 * low else start + high
        first, last = -(-(start + low) // hop), latest // hop
        middle = _longest_run(silent[first:last])
        stop = latest if middle is None else (first + middle) * hop
        pieces.append(Stretch(start, stop, "length" if middle is None else "silence"))
        start = stop
    if frames - start >= low:
        pieces.append(Stretch(start, frames, "end"))
    return pieces


def _longest_run(silent: npt.NDArray[np.bool_]) -> int | None:
    """Return the index of the middle of the longest run of True in an array; None if there is no True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], silent.astype(np.int8), [0]))))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return None
    longest = int(np.argmax(stops - starts))
    return int(starts[longest] + stops[longest]) // 2


def cut(raws: Sequence[Path], cutting: Cutting, folder: Path) -> str:
    """Cut recordings (files, and all audio files in folders) into clips in `folder`.

    Return a text for the user: the number and hours of the clips, and the recordings that were left out.

    Raises
    ------
    DataError
        Two recordings have the same name, no clip can be cut, or the folder cannot be used.
    """
    folders = [raw for raw in raws if not raw.is_file()]  # audio_files refuses one that does not exist
    recordings = [(raw, raw.name) for raw in raws if raw.is_file()]
    recordings += [(path, path.relative_to(raw).as_posix()) for raw in folders for path in audio_files(raw)]
    if not recordings:
        raise DataError(f"no recordings under {', '.join(map(str, raws))}")
    stems = Counter(name.rpartition(".")[0] or name for _, name in recordings)
    if twice := next((stem for stem, count in stems.items() if count > 1), ""):
        raise DataError(f"two recordings are called {twice}; cut them into different folders")
    with build_log(folder, {"task": "cut", **vars(cutting)}) as log:
        for recording, name in tqdm(recordings, unit="recording", disable=None):
            try:
                if reason := log.bad(name, recording):
                    raise AudioError(recording, reason)
                level, frames = levels(recording, cutting.rate)
            except AudioError as error:
                log.leave_out(name, error.reason, recording, fixed=True)
                tqdm.write(f"left out: {name}: {error.reason}")
                continue
            pieces = stretches(level, frames, cutting)
            end = pieces[-1].stop if pieces else 0
            if end < frames:
                log.leave_out(f"{name} from {end / cutting.rate:.2f} s", TAIL)
            _write(recording, pieces, cutting, log, {"source": name, "source_bytes": recording.stat().st_size})
        return log.finish("cut", f"{len(recordings)} recordings")


def _write(recording: Path, pieces: Sequence[Stretch], cutting: Cutting, log: BuildLog, facts: dict[str, Any]) -> None:
    """Write a recording's clips as WAV files, except those that an earlier call wrote, and log each clip.

    `pieces` are the positions of the recording's clips, which follow each other from its start without gaps.
    """
    stem = facts["source"].rpartition(".")[0] or facts["source"]
    missing = {}
    for number, stretch in enumerate(pieces):
        frames = stretch.stop - stretch.start
        place = {"start": stretch.start, "frames": frames, "rate": cutting.rate, "seconds": frames / cutting.rate}
        row = {**facts, **place, "ends_at": stretch.ends_at}
        if not log.finished(path := f"{stem}_{number:04d}.wav", same_as(row)):
            missing[stretch] = (path, row)
    blocks, rest = pcm_blocks(recording, cutting.rate), np.zeros(0, np.int16)
    for stretch in pieces if missing else ():
        parts = [rest]
        while sum(map(len, parts)) < stretch.stop - stretch.start:
            parts.append(next(blocks))
        clip, rest = np.split(np.concatenate(parts), [stretch.stop - stretch.start])
        if stretch in missing:
            path, row = missing[stretch]
            write_pcm(partial := log.partial(path), clip, cutting.rate, "WAV")
            log.add(path, partial, row)
