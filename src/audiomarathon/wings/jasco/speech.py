"""Read where the speech is in a clip, and rotate a clip so that its speech comes first or last."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from audiomarathon.audio.decode import Samples
from audiomarathon.audio.voice_activity import Spans
from audiomarathon.benchmarks.rows import read_csv
from audiomarathon.benchmarks.task import name_id
from audiomarathon.errors import DataError

SPEECH_FILE = "speech.csv"  # next to the metadata; made by `audiomarathon jasco speech`, or by hand
FIRST, LAST = "speech-first", "speech-last"
_FADE_S = 0.02


def read_speech(file: Path) -> dict[str, Spans]:
    """Read a CSV file with the columns `id`, `start` and `end` (seconds); return {clip's id: its spans of speech}.

    Raises
    ------
    DataError
        The file cannot be read, or a row is not a valid time span; the message names the line.
    """
    times = defaultdict[str, list[tuple[float, float]]](list)
    for line, row in read_csv(file, ["id", "start", "end"]):
        try:
            start, end = float(row["start"]), float(row["end"])
        except ValueError:
            start = end = -1.0
        if not 0 <= start < end < float("inf"):
            raise DataError(f"{file}, line {line}: start and end must be seconds, 0 <= start < end")
        times[name_id(row["id"].strip())].append((start, end))
    return {id_: tuple(sorted(spans)) for id_, spans in times.items()}


def turn(spans: Spans, seconds: float, control: str) -> float:
    """Return the second of the original clip with which the rotated clip begins; what comes before it moves to the end.

    Parameters
    ----------
    control
        `speech-first`: the rotated clip begins with the first span of speech. `speech-last`: it ends with the last
        span. Any other value, or a clip without speech, gives 0.
    """
    if not spans or control not in (FIRST, LAST):
        return 0.0
    return spans[0][0] if control == FIRST else min(max(end for _start, end in spans), seconds) % seconds


def turned(spans: Spans, seconds: float, control: str) -> Spans:
    """Return the spans of speech, in seconds, of the clip rotated by :func:`turn`; a span cut by the new end is two."""
    shift, turned_spans = turn(spans, seconds, control), []
    for start, end in spans:
        begin, long = (start - shift) % seconds, min(end, seconds) - start
        turned_spans += [(begin, min(begin + long, seconds))]
        if begin + long > seconds + 1e-9:
            turned_spans += [(0.0, begin + long - seconds)]
    return tuple(sorted(turned_spans))


def rotate(samples: Samples, shift_frames: int, fade_frames: int) -> Samples:
    """Rotate a clip, so that frame `shift_frames` comes first.

    Where the old end meets the old start, `fade_frames` frames are cross-faded linearly (equal gain); for this, each
    side is continued across the seam by its own mirror image. Other frames do not change.
    """
    seam = len(samples) - shift_frames % len(samples)
    made: Samples = np.roll(samples, seam)
    half = min(fade_frames // 2, seam, len(samples) - seam)
    end, start = made[seam - half : seam], made[seam : seam + half]
    weight = (np.arange(2 * half) + 0.5) / max(1, 2 * half)
    faded = np.concatenate([end, end[::-1]]) * (1 - weight) + np.concatenate([start[::-1], start]) * weight
    made[seam - half : seam + half] = faded
    return made


def turn_clip(samples: Samples, rate: int, spans: Spans, control: str) -> Samples:
    """Rotate a clip so that its speech comes first or last, as the control's name says (see :func:`turn`).

    Raises
    ------
    DataError
        The speech times begin after the clip's end.
    """
    seconds = len(samples) / rate
    if spans and spans[-1][0] >= seconds:
        raise DataError(f"{SPEECH_FILE} has speech from {spans[-1][0]:g} s on in a clip of {seconds:.2f} s")
    return rotate(samples, round(turn(spans, seconds, control) * rate), round(_FADE_S * rate))
