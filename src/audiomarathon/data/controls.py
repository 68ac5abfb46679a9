"""Make control variants of a task's data, to test how a score depends on the audio.

In one kind of variant, all clips have one length: they are cut around the event that decides the answer, or extended
with background noise. In the others, clips keep their lengths, with silence, noise or another sample's audio in place
of their own.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from audiomarathon.audio.decode import Samples, as_pcm, decode, probe, write_pcm
from audiomarathon.audio.noise import Kind, background, noise_like
from audiomarathon.benchmarks import Loaded, Sample, Task
from audiomarathon.benchmarks.manifest import read_manifest, write_manifest
from audiomarathon.benchmarks.selection import draw
from audiomarathon.benchmarks.task import Part, Variation, relative
from audiomarathon.errors import DataError
from audiomarathon.files import json_line
from audiomarathon.lock import holding
from audiomarathon.settings import SEED
from audiomarathon.terminal import progress_of

KINDS: tuple[Kind, ...] = get_args(Kind)
RECORD_FILE = "controls.jsonl"
_BACKGROUND = "noise with the spectrum and level of the clip's quietest tenth"


@dataclass(frozen=True)
class _Variant:
    """A control variant of the data: the kind of audio, the length of every clip (None: as it is), and a seed.

    Attributes
    ----------
    seconds
        Length of every clip in seconds; None leaves lengths unchanged.
    """

    kind: str
    seconds: float | None
    seed: int

    @property
    def name(self) -> str:
        length = [f"{self.seconds:g}s"] if self.seconds else []
        return "-".join(length + [self.kind] * (self.kind != "audio" or not length))


def window(length: float, seconds: float, events: Sequence[tuple[float, float]]) -> float | None:
    """Return the time in the original clip at which the clip of a control variant starts.

    The time before the events and the time after them shrink or grow by the same factor.

    Parameters
    ----------
    length, seconds
        Lengths of the original clip and of the variant's clip, in seconds.
    events
        (onset, end) in seconds of each event in the clip that decides an answer. Without events the result is 0.

    Returns
    -------
    float or None
        Seconds from the original clip's start. Negative: the variant's clip begins with background noise. None: the
        events do not fit.
    """
    if not events:
        return 0.0
    onset, end = min(events)[0], max(end for _, end in events)
    if end - onset > min(length, seconds):
        return None
    room = length - (end - onset)
    place = onset / room if room else 0.0
    return place * (length - seconds)


@dataclass(frozen=True)
class _Clip:
    """A clip of a control variant, to be written to `path`, and the samples that use it.

    Attributes
    ----------
    source, start, length
        The audio is `length` seconds of the file `source`, from `start` seconds on, unless it is replaced.
    deciding
        Whether the clip holds the event that decides the answer: "whole", "cut", "absent" or "unknown".
    partner
        The clip whose audio replaces this clip's; None if none does.
    variation
        The change by a control that the task itself defines; None if there is none.
    """

    samples: tuple[Sample, ...]
    source: Path
    start: float
    length: float
    path: str
    deciding: str = "unknown"
    partner: Path | None = None
    variation: Variation | None = None


def build_controls(
    tasks: Sequence[tuple[Task, Loaded]],
    out: Path,
    *,
    seconds: float | None,
    kind: str = "audio",
    seed: int = SEED,
    jobs: int = 0,
) -> tuple[Path, dict[str, int]]:
    """Write one control variant of the given tasks as a data root, from which each task loads as usual.

    Parameters
    ----------
    out
        Parent folder of the variant's root, which is named after the variant, such as `30s-silence`.
    seconds
        Length of every clip; None keeps each clip's length.
    kind
        Audio of the clips: one of `KINDS`, or the name of a control that every one of the tasks defines itself. Such a
        control keeps the clips' lengths.

    Returns
    -------
    (Path, dict)
        The variant's root, and for each task the number of samples left out because their clips would be cut and no
        answer is known for a part of a clip (:attr:`Task.cuttable`).

    Raises
    ------
    DataError
        The root exists, a clip cannot be read, or no sample remains.
    """
    variant = _Variant(kind, seconds, seed)
    target, partial, lock = (out / name.format(variant.name) for name in ("{}", ".{}.partial", ".{}.lock"))
    with holding(lock, "another process is writing this variant"):
        try:
            if target.exists():
                raise DataError(f"{target}: already exists; move it away, or choose another folder")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            left_out = {task.key: _write_task(task, loaded, partial, variant, jobs) for task, loaded in tasks}
            partial.rename(target)
        finally:
            lock.unlink()
    return target, left_out


def _write_task(task: Task, loaded: Loaded, root: Path, variant: _Variant, jobs: int) -> int:
    """Write a task's clips and metadata into a variant's root; return the number of samples that are left out."""
    varied = task.vary(loaded, variant.kind) if variant.kind not in KINDS else {}
    groups = _by_clip(loaded).items()
    plan = [clip_plan for clip, group in groups for clip_plan in _plan(task, loaded, clip, group, variant, varied)]
    of = {(sample.id, clip_plan.source): clip_plan for clip_plan in plan for sample in clip_plan.samples}
    kept = {sample.id: sample for sample in loaded.samples if all((sample.id, clip) in of for clip in sample.clips)}
    plan = [clip_plan for clip_plan in plan if any(sample.id in kept for sample in clip_plan.samples)]
    if not kept:
        raise DataError(
            f"{task.key}: {variant.name} would cut a clip of every sample, but answers hold only for whole clips; "
            "choose longer --durations"
        )
    folder, rows = root / task.key, []
    with (
        ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool,
        progress_of(len(plan), f"{task.key} {variant.name}", "clip") as count,
    ):
        for row in pool.map(functools.partial(_write, key=task.key, folder=folder, variant=variant), plan):
            rows.append(row)
            count(1)
    with (root / RECORD_FILE).open("ab") as file:
        file.writelines(json_line({"task": task.key, **row}) for row in rows)
    changes = {id_: _changes(of[id_, sample.clips[0]], sample) for id_, sample in kept.items()}
    paths = {id_: [p for clip in sample.clips if (p := of[id_, clip].path)] for id_, sample in kept.items()}
    task.write_rows(Part(loaded, list(kept.values()), changes, paths), folder)
    manifest = read_manifest(loaded.folder)
    lengths = [row["seconds"] for row in rows]
    entry = {"count": len(kept), "min_seconds": min(lengths), "max_seconds": max(lengths)}
    facts = {"name": f"{manifest.name}, control {variant.name}", "licence": manifest.licence_of(task)}
    write_manifest(root, {**facts, "control": vars(variant)}, {task.key: entry})
    return len(loaded.samples) - len(kept)


def _by_clip(loaded: Loaded) -> dict[Path, list[Sample]]:
    """Group a task's samples by clip, as {clip: samples}."""
    groups: dict[Path, list[Sample]] = {}
    for sample in loaded.samples:
        if not sample.clips:
            raise DataError(f"{sample.id}: has no clip; controls can only be made of samples with clips")
        for clip in dict.fromkeys(sample.clips):
            groups.setdefault(clip, []).append(sample)
    return groups


def _events(samples: Sequence[Sample], clip: Path) -> list[tuple[float, float]]:
    """Return (onset, end) in seconds of each event in a clip that decides the answer of one of the samples.

    Only samples whose first clip is `clip` count, because a sample's event lies in its first clip.
    """
    times = [(s.meta.get("event_onset"), s.meta.get("event_seconds")) for s in samples if s.clips[0] == clip]
    return [(float(onset), float(onset + long)) for onset, long in times if onset is not None and long is not None]


def _plan(
    task: Task, loaded: Loaded, clip: Path, group: Sequence[Sample], variant: _Variant, varied: Mapping[str, Variation]
) -> list[_Clip]:
    """Plan the variant's clips that are made from one clip of the task.

    Return one clip for all samples of `group`, or one clip per sample if their events do not fit into one. Return [] if
    the clip would have to be cut and the task forbids that. `varied` has the changes that a control of the task itself
    makes, as {sample's id: change}. If such a change removes the audio, the path is "".
    """
    variation = varied.get(group[0].id)
    if variation and not variation.audio:
        return [_Clip(tuple(group), clip, 0.0, 0.0, "", variation=variation)]
    path, length = Path(_path(loaded, clip)), probe(clip).seconds
    if variation:
        return [_Clip(tuple(group), clip, 0.0, length, path.as_posix(), variation=variation)]
    wanted = variant.seconds or length
    if not task.cuttable and variant.kind == "audio" and wanted < length:
        return []
    partner = _partner(task, loaded, group[0], clip, variant) if variant.kind == "mismatched" else None
    together = window(length, wanted, _events(group, clip)) is not None
    parts = [group] if together else [[sample] for sample in group]
    clips = []
    for number, some in enumerate(parts):
        own_path = path.with_name(f"{path.stem}--{number}{path.suffix}") if len(parts) > 1 else path
        start = window(length, wanted, events := _events(some, clip))
        deciding = "absent" if variant.kind != "audio" else "whole" if events else "unknown"
        if start is None:  # the event is longer than the variant's clip: start with the event
            start = max(0.0, min(events[0][0], length - wanted))
            deciding = deciding.replace("whole", "cut")
        clips.append(_Clip(tuple(some), clip, start, wanted, own_path.as_posix(), deciding, partner))
    return clips


def _path(loaded: Loaded, clip: Path) -> str:
    """Return the path of a variant's clip: the original clip's, ending in `.flac` unless it ends in `.wav` or `.flac`.

    WAV and FLAC keep 16-bit audio exact.
    """
    path = Path(relative(loaded, clip))
    return (path if path.suffix.lower() in (".wav", ".flac") else path.with_suffix(".flac")).as_posix()


def _partner(task: Task, loaded: Loaded, sample: Sample, clip: Path, variant: _Variant) -> Path:
    """Choose at random the clip whose audio replaces a sample's clip: the first clip of another sample.

    The other sample is of another cluster (speaker, place or passage) and, if the task's answers are classes, of
    another class. Each clip of a sample has its own random draw.
    """
    classes = bool(getattr(task, "classes", ()))
    others = [
        other
        for other in loaded.samples
        if other.cluster != sample.cluster and not (classes and other.stratum == sample.stratum)
    ]
    if not others:
        raise DataError(f"{task.key}: {sample.id}: no other sample's audio to swap in")
    whose = (sample.id,) if clip == sample.clips[0] else (sample.id, clip.name)
    return min(others, key=lambda other: (draw(variant.seed, "mismatched", *whose, other.id), other.id)).clips[0]


def _changes(clip_plan: _Clip, sample: Sample) -> Mapping[str, Any]:
    """Return the fields to change in a sample's metadata row because its clip was changed, as {field: value}.

    If the task itself defines the control, these are the fields that the control sets. Otherwise the event's onset
    changes to that in the new clip; onset and length become None if no event is known, or if the new clip does not hold
    it whole.
    """
    if clip_plan.variation:
        return clip_plan.variation.fields
    if clip_plan.deciding != "whole" or sample.meta.get("event_onset") is None:
        return {"event_onset": None, "event_seconds": None}
    return {"event_onset": float(sample.meta["event_onset"]) - clip_plan.start}


def _write(clip_plan: _Clip, *, key: str, folder: Path, variant: _Variant) -> dict[str, Any]:
    """Write one clip of a variant; return its line for `controls.jsonl`, as {name: value}."""
    source, kind = clip_plan.source, variant.kind
    if clip_plan.variation and clip_plan.variation.audio is None:
        said = {"clip": None, "source": source.name, "samples": [s.id for s in clip_plan.samples], "kind": kind}
        return {**said, "seconds": 0.0, **clip_plan.variation.fields}
    info = probe(clip_plan.partner or source)
    rate = info.sampling_rate
    frames = round(clip_plan.length * rate)
    rng = np.random.default_rng(int(draw(variant.seed, kind, key, clip_plan.path) * 2**48))
    heard = decode(clip_plan.partner or source, rate)
    start = 0 if clip_plan.partner else round(clip_plan.start * rate)
    row: dict[str, Any] = {"clip": clip_plan.path, "source": source.name, "samples": [s.id for s in clip_plan.samples]}
    row |= {"kind": kind, "sampling_rate": rate, "seconds": frames / rate}
    if kind == "silence":
        made: Samples = np.zeros(frames, np.float32)
    elif kind == "noise":
        made = noise_like(heard, frames, rng)
    elif clip_plan.variation and clip_plan.variation.audio:
        made = clip_plan.variation.audio(heard, rate)
        row |= clip_plan.variation.fields
    else:
        before = max(0, -start)
        kept = heard[max(0, start) :][: frames - before]
        after = frames - before - len(kept)
        fill = background(heard, before + after, rate, rng)
        made = np.concatenate([fill[:before], kept, fill[before:]])
        row |= {"start_s": max(0, start) / rate, "background_before_s": before / rate}
        row |= {"background_after_s": after / rate, "background": _BACKGROUND if before + after else None}
    if clip_plan.partner:
        row["audio_of"] = clip_plan.partner.name
    row["deciding_part"] = clip_plan.deciding
    write_pcm(folder / clip_plan.path, as_pcm(made), rate)
    return row
