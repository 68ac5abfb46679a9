"""The samples of a report: what was asked, what each setting replied, which moments it kept, and how the clip looks."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

from audiomarathon.audio import decode as audio
from audiomarathon.errors import AudioMarathonError
from audiomarathon.results.systems import Side
from audiomarathon.runs.kept_audio import unpack
from audiomarathon.runs.read import Record
from audiomarathon.tasks import get_task, task_folder
from audiomarathon.tasks.task import Sample

STRIP = 160  # columns of a strip, and of a spectrogram
BANDS = 32
_LONGEST = 4_000  # characters of a prompt or a reply
_ALL_REPLIES = 1_000_000  # characters: beside strips and pictures, what 5 MB have room for
_LEVELS = 16  # grey levels of a spectrogram: two pixels a byte
_FAILED = -1  # for the mistakes of a reply
_RATE = 16_000
_FRAME = 1024  # samples of a spectrum
_RANGE_DB = 80.0
_JOBS = min(4, os.cpu_count() or 1)  # each holds a clip or two in memory


Key = tuple[str, str, str]
"""A task's key, a control (other audio under the same name; "" for the task as it is) and a sample's id."""


@dataclass(frozen=True)
class Shown:
    """Which samples a report shows, of how many."""

    chosen: list[Key]
    total: int


def choose(sides: Sequence[Side], limit: int) -> Shown:
    """Choose samples to show: those on which settings disagree first, then failed ones, wrong ones, and the others.

    Of each kind every task has its turn.
    """
    verdicts: dict[Key, set[int]] = {}
    for side in sides:
        for task, run in side.runs.items():
            for id_, record in (*run.records.items(), *run.failed.items()):
                verdicts.setdefault((task, side.control, id_), set()).add(_mistakes(record))
    turns: Counter[tuple[int, str, str]] = Counter()
    places = {}
    for key in sorted(verdicts):
        answered = verdicts[key] - {_FAILED}
        kind = 0 if len(answered) > 1 else 1 if _FAILED in verdicts[key] else 2 if answered != {0} else 3
        places[key] = kind, turns[kind, key[0], key[1]], key
        turns[kind, key[0], key[1]] += 1
    chosen = set(sorted(verdicts, key=lambda key: places[key])[:limit])
    return Shown([key for key in verdicts if key in chosen], len(verdicts))


def _mistakes(record: Record) -> int:
    """Return 0 for what is right, how many words of a transcript are wrong, 1 for a wrong choice; or that it failed."""
    if record.get("error") is not None:
        return _FAILED
    return int(not record["correct"]) if "correct" in record else int(record.get("errors", 1))


def samples_of(
    sides: Sequence[Side],
    shown: Shown,
    *,
    data: Path | None,
    heard: Callable[[Path], str | None],
    spectrograms: bool,
    step: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Return each chosen sample with the replies of all settings.

    Parameters
    ----------
    data
        Root of the tasks' data; None looks where the runs found theirs. Without data there are replies but no prompts.
    heard
        Returns the address under which a page plays a clip, None for no player.
    spectrograms
        Whether to draw the clips, which decodes them.
    step
        Called after each sample.
    """
    known = {
        place: _samples(sides, *place, data)
        for place in dict.fromkeys((task, control) for task, control, _ in shown.chosen)
    }

    # Transcripts of minutes under many settings are cut, so that the page still opens.
    longest = min(_LONGEST, _ALL_REPLIES // max(1, len(shown.chosen) * len(sides)))

    def of(key: Key) -> dict[str, Any]:
        task, control, id_ = key
        told = _told(known[task, control].get(id_), task, heard, spectrograms=spectrograms)
        found = _sample(sides, key, longest)
        return found | told | {"prompt": told["prompt"] or found["prompt"]}

    found = []
    with ThreadPoolExecutor(_JOBS) as pool:  # decoding and transforms work outside Python's lock
        for sample in pool.map(of, shown.chosen):
            found.append(sample)
            step()
    return found


def _sample(sides: Sequence[Side], key: Key, longest: int) -> dict[str, Any]:
    """Return what runs know of a sample: its reference and each setting's reply."""
    task, control, id_ = key
    own = [
        (index, record)
        for index, side in enumerate(sides)
        if side.control == control and (run := side.runs.get(task)) is not None
        if (record := run.records.get(id_) or run.failed.get(id_)) is not None
    ]
    record = min((record for _, record in own), key=lambda record: record.get("error") is not None)
    reference = record.get("reference") or {}
    options = [f"{ascii_uppercase[place]}. {text}" for place, text in enumerate(reference.get("options") or ())]
    return {
        "task": task,
        "control": control,
        "id": id_,
        "cluster": record.get("cluster"),
        "seconds": record.get("clip_seconds"),
        "truncated": bool(record.get("truncated")),
        "answer": None if reference.get("answer") is None else _shortened(str(reference["answer"]), longest),
        "prompt": _shortened("\n".join(["Options (the whole prompt wants the data):", *options])) if options else None,
        "replies": [_reply(index, record, longest) for index, record in own],
    }


def _shortened(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]} … ({len(text):,} characters)"


def _samples(sides: Sequence[Side], key: str, control: str, data: Path | None) -> Mapping[str, Sample]:
    """Return a task's samples by id; none where its data is not here. A control's data is where its run found it."""
    try:
        task = get_task(key)
        if data is not None and not control:
            folder = task_folder(task, data, {})
        else:
            facts = next(side.runs[key].facts for side in sides if key in side.runs and side.control == control)
            folder = Path(str(facts["data_folder"]))
            if not folder.is_dir():
                return {}
        return {sample.id: sample for sample in task.load(folder).samples}
    except (AudioMarathonError, KeyError):
        return {}


def _told(
    sample: Sample | None, key: str, heard: Callable[[Path], str | None], *, spectrograms: bool
) -> dict[str, Any]:
    if sample is None:
        return {"prompt": None, "audio": [], "picture": None, "event": None}
    onset, length = sample.meta.get("event_onset"), sample.meta.get("event_seconds")
    clips = [clip for clip in sample.clips if clip.is_file()]
    return {
        "prompt": _shortened(get_task(key).prompt(sample)),
        "audio": [address for clip in clips if (address := heard(clip))],
        "picture": picture(clips[0]) if spectrograms and len(clips) == 1 else None,
        "event": None if onset is None else [float(onset), float(length or 1.0)],
    }


def _reply(setting: int, record: Record, longest: int) -> dict[str, Any]:
    mistakes = _mistakes(record)
    found = {
        "setting": setting,
        "reply": _shortened(str(record.get("error") if mistakes == _FAILED else record.get("reply")), longest),
        "failed": mistakes == _FAILED,
        "parsed": record.get("parsed"),
        "rule": record.get("rule"),
        "mistakes": mistakes,
        "unparsed": "parsed" in record and record["parsed"] is None,
        "wer": record["errors"] / record["words"] if record.get("words") else None,
        "finish": record.get("finish"),
        "kept": strip(record),
    }
    return {name: value for name, value in found.items() if value is not None and value is not False}


def strip(record: Record) -> str | None:
    """Return which moments of the audio a pruner kept, as base64 of a byte a column: 0 none, 255 all of its tokens."""
    bits = record.get("kept_audio_bits")
    if not bits:
        return None
    kept = unpack(str(bits), int(record["audio_tokens"])).astype(float)
    heard = kept[: len(kept) - int(record.get("window_padding_tokens") or 0)]
    return _encoded(np.round(255 * columns(heard[None], STRIP)[0]).astype(np.uint8)) if len(heard) else None


def columns(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """Average (rows, n) over n into so many columns of equal length; fewer values than columns are repeated."""
    n = values.shape[1]
    edges = np.linspace(0, n, count + 1)
    starts = np.minimum(np.floor(edges[:-1]).astype(int), n - 1)
    ends = np.maximum(np.ceil(edges[1:]).astype(int), starts + 1)
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    means: npt.NDArray[np.float64] = (sums[:, ends] - sums[:, starts]) / (ends - starts)
    return means


def picture(clip: Path) -> str | None:
    """Return a clip's log-mel spectrogram of 160 × 32 pixels as base64, two pixels a byte; None if it cannot be read.

    Loudest is 15; 80 dB below it, or less, is 0. Rows run from low to high frequency, each from left to right.
    """
    try:
        wave = audio.decode(clip, _RATE)
    except AudioMarathonError:
        return None
    frames = np.pad(wave, (0, -len(wave) % _FRAME)).reshape(-1, _FRAME)
    spectrum = scipy.fft.rfft(frames * _hann(), axis=1)
    power = _mel_filters() @ (spectrum.real**2 + spectrum.imag**2).T
    decibels = 10 * np.log10(np.maximum(columns(power, STRIP), 1e-10))
    loudest = decibels.max() if wave.any() else np.inf  # nothing stands out in silence
    decibels = np.clip(decibels - loudest + _RANGE_DB, 0, None)
    levels = np.round(decibels / _RANGE_DB * (_LEVELS - 1)).astype(np.uint8).reshape(-1)
    return _encoded(levels[::2] << 4 | levels[1::2])


@cache
def _hann() -> npt.NDArray[np.float32]:
    return scipy.signal.get_window("hann", _FRAME).astype(np.float32)


@cache
def _mel_filters() -> npt.NDArray[np.float32]:
    from librosa.filters import mel

    filters: npt.NDArray[np.float32] = mel(sr=_RATE, n_fft=_FRAME, n_mels=BANDS)
    return filters


def _encoded(values: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(values.tobytes()).decode()
