"""Collect the samples that the report page shows: prompt, replies, which audio was kept, and spectrogram."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.signal

from audiomarathon.audio import decode as audio
from audiomarathon.audio.member import Clip
from audiomarathon.benchmarks import get_task, task_folder
from audiomarathon.benchmarks.task import Sample
from audiomarathon.errors import AudioMarathonError
from audiomarathon.records import Record
from audiomarathon.results.systems import System
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import kept_tokens

STRIP = 160  # number of columns of a strip, and of a spectrogram
BANDS = 32
_LONGEST = 4_000  # limit of characters shown of a prompt or a reply
_ALL_REPLIES = 700_000  # limit of characters of all replies, so that the page stays under 5 MB
_ALL_STRIPS = 3_000_000  # limit of characters of all strips
_LEVELS = 16  # levels of grey in a spectrogram or strip: a byte holds two pixels
_RATE = 16_000
_FRAME = 1024  # audio samples per spectrum
_RANGE_DB = 80.0
_JOBS = min(4, os.cpu_count() or 1)  # each thread holds one or two clips in memory


Key = tuple[str, str, str]
"""(task's key, kind of control or "" for the real audio, sample's id)."""


def choose(systems: Sequence[System], limit: int) -> tuple[list[Key], int]:
    """Choose at most `limit` samples to show. Return ([(task, kind of audio control, sample id), …], number of all
    samples).

    Samples on which settings disagree come first, then failed, wrong, and right ones. Within each of these kinds, tasks
    take turns.
    """
    scores: dict[Key, set[float | None]] = {}
    failed: set[Key] = set()
    for system in systems:
        for task, run in system.runs.items():
            for id_ in (*run.records, *run.failed):
                scores.setdefault((task, system.control, id_), set()).add(_own_score(run, id_))
            failed |= {(task, system.control, id_) for id_ in run.failed}
    turns: Counter[tuple[int, str, str]] = Counter()
    places = {}
    for key in sorted(scores):
        answered = scores[key] - {None}
        kind = 0 if len(answered) > 1 else 1 if key in failed else 2 if answered != {1.0} else 3
        places[key] = kind, turns[kind, key[0], key[1]], key
        turns[kind, key[0], key[1]] += 1
    return sorted(scores, key=places.__getitem__)[:limit], len(scores)


def _own_score(run: Run, id_: str) -> float | None:
    """Return a sample's score in a run, 0 to 1; None if the sample failed or cannot be scored alone."""
    verdict = run.verdicts.get(id_) if run.task else None
    return run.task.scorer.own_score(verdict) if run.task and verdict else None


def samples_of(
    systems: Sequence[System],
    chosen: Sequence[Key],
    *,
    data: Path | None,
    heard: Callable[[Clip], str | None],
    spectrograms: bool,
    step: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Return each chosen sample with the replies of all settings, as objects for the page's JSON.

    Parameters
    ----------
    data
        Data root; None uses the runs' data folders. Without data, prompts are missing.
    heard
        Function that returns the address at which the page plays a clip, or None to leave out the player.
    spectrograms
        Whether to draw spectrograms, which decodes the clips.
    step
        Function that is called after each sample, to show progress.
    """
    known = {place: _samples(systems, *place, data) for place in dict.fromkeys(key[:2] for key in chosen)}
    # Cut long replies under many settings, so that the page stays small enough to open.
    replies = max(1, len(chosen) * len(systems))
    longest, wide = min(_LONGEST, _ALL_REPLIES // replies), min(STRIP, max(24, _ALL_STRIPS // replies // 4 * 6))

    def of(key: Key) -> dict[str, Any]:
        task, control, id_ = key
        from_data = _from_data(known[task, control].get(id_), task, heard, spectrograms=spectrograms)
        from_runs = _from_runs(systems, key, longest, wide)
        return from_runs | from_data | {"prompt": from_data["prompt"] or from_runs["prompt"]}

    samples = []
    with ThreadPoolExecutor(_JOBS) as pool:  # decoding and transforms work outside Python's lock
        for sample in pool.map(of, chosen):
            samples.append(sample)
            step()
    return samples


def _from_runs(systems: Sequence[System], key: Key, longest: int, wide: int) -> dict[str, Any]:
    """Return a sample for the page's JSON from the run folders alone: its reference, and each setting's reply.

    Texts are cut to `longest` characters; the strip that shows which tokens were kept has `wide` columns.
    """
    task, control, id_ = key
    run_records = [
        (index, run, record)
        for index, system in enumerate(systems)
        if system.control == control and (run := system.runs.get(task)) is not None
        if (record := run.records.get(id_) or run.failed.get(id_)) is not None
    ]
    record = min((record for *_, record in run_records), key=lambda record: not record.answered)
    reference = record.reference or {}
    answer = str(reference.get("answer") or "\n".join(reference.get("references") or ()))
    options = [f"{ascii_uppercase[place]}. {text}" for place, text in enumerate(reference.get("options") or ())]
    return {
        "task": task,
        "control": control,
        "id": id_,
        "cluster": record.cluster,
        "seconds": record.clip_seconds if record.answered else None,
        "truncated": bool(record.truncated),
        "answer": _shortened(answer, longest) if answer else None,
        "prompt": _shortened("\n".join(["Options (the whole prompt needs the data):", *options])) if options else None,
        "replies": [_reply(index, run, record, longest, wide) for index, run, record in run_records],
    }


def _shortened(text: str, longest: int = _LONGEST) -> str:
    """Cut a text to `longest` characters. A cut text ends with its full length."""
    return text if len(text) <= longest else f"{text[:longest]} … ({len(text):,} characters)"


def _samples(systems: Sequence[System], key: str, control: str, data: Path | None) -> Mapping[str, Sample]:
    """Return the samples of the task `key`, as {id: sample}; {} if the data is missing.

    The data is that in `data`, or in the data folder of one of the runs that heard the kind of audio `control`.
    """
    system = next(system for system in systems if key in system.runs and system.control == control)
    return samples_in(system.runs[key], data)


def samples_in(run: Run, data: Path | None = None) -> Mapping[str, Sample]:
    """Return the samples of a run's task, as {id: sample}, from `data` or else from the run's data folder.

    {} if the data is missing.
    """
    try:
        task = get_task(run.key)
        folder = Path(str(run.facts["data_folder"])) if data is None or run.control else task_folder(task, data, {})
        return {sample.id: sample for sample in task.load(folder).samples} if folder.is_dir() else {}
    except (AudioMarathonError, KeyError, OSError):  # an OSError: a name that no folder can have
        return {}


def _from_data(
    sample: Sample | None, key: str, heard: Callable[[Clip], str | None], *, spectrograms: bool
) -> dict[str, Any]:
    if sample is None:
        return {"prompt": None, "audio": [], "picture": None, "event": None}
    clips = [clip for clip in sample.clips if clip.is_file()]
    return {
        "prompt": _shortened(get_task(key).prompt(sample)),
        "audio": [address for clip in clips if (address := heard(clip))],
        "picture": picture(clips[0]) if spectrograms and len(clips) == 1 else None,
        "event": sample.event and list(sample.event),
    }


def _reply(setting: int, run: Run, record: Record, longest: int, wide: int) -> dict[str, Any]:
    """Return one setting's reply to a sample, with its verdict, as an object without fields that are None or False.

    `setting` is the setting's index. Texts are cut to `longest` characters; the strip that shows which tokens were kept
    has `wide` columns.
    """
    verdict = run.verdicts.get(record.id) if run.task else None
    scorer = run.task.scorer if run.task else None
    fields = {
        "setting": setting,
        "reply": _shortened(str(record.reply if record.answered else record.error), longest),
        "failed": not record.answered,
        "score": _own_score(run, record.id),
        "verdict": _shortened(scorer.shown(verdict), 200) if scorer and verdict else None,
        "unparsed": bool(scorer and verdict and scorer.unparsed(verdict)),
        "rule": verdict.values.get("rule") if verdict else None,
        "finish": record.finish or None,
        "kept": strip(record, wide),
    }
    return {name: value for name, value in fields.items() if value is not None and value is not False}


def strip(record: Record, wide: int = STRIP) -> str | None:
    """Return which audio tokens a method kept, as a strip along time of `wide` columns; None if it was not recorded.

    The text is base64, half a byte per column: 0 if none of the column's tokens were kept, 15 if all were.
    """
    kept = kept_tokens(record)
    if kept is None:
        return None
    heard = kept.astype(float)[: len(kept) - record.window_padding_tokens]
    return _packed(columns(heard[None], wide)[0]) if len(heard) else None


def columns(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """Resize an array (rows, n) to (rows, count) by averaging neighbouring values; if n < count, repeat values."""
    n = values.shape[1]
    edges = np.linspace(0, n, count + 1)
    starts = np.minimum(np.floor(edges[:-1]).astype(int), n - 1)
    ends = np.maximum(np.ceil(edges[1:]).astype(int), starts + 1)
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    means: npt.NDArray[np.float64] = (sums[:, ends] - sums[:, starts]) / (ends - starts)
    return means


def picture(clip: Clip) -> str | None:
    """Return a clip's log-mel spectrogram of 160 × 32 pixels as base64, two pixels per byte; None if unreadable.

    The loudest pixel is 15; pixels at least 80 dB quieter are 0. Rows go from low to high frequency.
    """
    try:
        wave = audio.decode(clip, _RATE)
    except AudioMarathonError:
        return None
    frames = np.pad(wave, (0, -len(wave) % _FRAME)).reshape(-1, _FRAME)
    spectrum = scipy.fft.rfft(frames * scipy.signal.get_window("hann", _FRAME).astype(np.float32), axis=1)
    power = _mel_filters() @ (spectrum.real**2 + spectrum.imag**2).T
    decibels = 10 * np.log10(np.maximum(columns(power, STRIP), 1e-10))
    loudest = decibels.max() if wave.any() else np.inf  # silence is drawn empty
    decibels = np.clip(decibels - loudest + _RANGE_DB, 0, None)
    return _packed(decibels / _RANGE_DB)


@cache
def _mel_filters() -> npt.NDArray[np.float32]:
    from librosa.filters import mel

    filters: npt.NDArray[np.float32] = mel(sr=_RATE, n_fft=_FRAME, n_mels=BANDS)
    return filters


def _packed(shares: npt.NDArray[np.floating[Any]]) -> str:
    """Encode shares (0 to 1) as base64, two shares per byte, each rounded to 16 levels."""
    levels = np.round(shares * (_LEVELS - 1)).astype(np.uint8).reshape(-1)
    return base64.b64encode((levels[::2] << 4 | levels[1::2]).tobytes()).decode()
