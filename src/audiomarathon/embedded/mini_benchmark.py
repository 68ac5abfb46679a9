"""Write the mini benchmark: small tasks of synthetic audio, in the files and folders of the public tasks.

AudioMarathon's own ten tasks are written here; those of the other benchmarks by their methods :meth:`Wing.mini`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.embedded import signals, synthesis, world
from audiomarathon.embedded.world import FACTS, QUESTIONS, TASKS, Label
from audiomarathon.settings import cache_folder
from audiomarathon.terminal import progress_of
from audiomarathon.wing import all_wings, asked

#: Clips of each task; `race` asks three questions about each of its clips.
CLIPS = {
    "librispeech": 8,
    "race": 6,
    "slue": 8,
    "tau": 10,
    "gtzan": 10,
    "desed": 10,
    "vesus": 8,
    "had": 6,
    "vox": 6,
    "vox_age": 8,
}
FAKE_SECONDS = 0.5  # seconds of a forged word, as in the public corpus; other events last `synthesis.EVENT_SECONDS`
LICENCE = "CC0-1.0"

Row = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """A clip that has been written: its task, its length in seconds, and its rows of metadata."""

    task: str
    seconds: float
    rows: tuple[Row, ...]


def generate(
    root: Path,
    *,
    seed: int = 42,
    workers: int | None = None,
    progress: bool = True,
    tasks: Iterable[str] = TASKS,
    limit: int | None = None,
) -> Path:
    """Write AudioMarathon's ten tasks of the mini benchmark into a folder.

    Parameters
    ----------
    root
        Folder to write into; created if missing.
    seed
        The same seed writes the same bytes.
    workers
        Number of threads; by default one per core.
    progress
        Whether to show a progress bar.
    tasks
        Tasks to write; by default all.
    limit
        Number of clips of each task; by default all.

    Returns
    -------
    Path
        `root`, now a data root: one folder per task, and `audiomarathon.json`.
    """
    wanted = list(tasks)
    if unknown := [task for task in wanted if task not in TASKS]:
        raise ValueError(f"unknown task {unknown[0]!r}; the mini benchmark has {', '.join(TASKS)}")
    jobs = [(root, seed, task, index) for task in wanted for index in range(min(limit or 10**6, CLIPS[task]))]
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    with progress_of(len(jobs), "mini benchmark", "clip", shown=None if progress else False) as count:
        recordings = []
        # Threads are enough: numpy and libsndfile work in C. Processes would need a `__main__` guard in the caller.
        with ThreadPoolExecutor(workers) as pool:
            for recording in pool.map(_record, jobs):
                recordings.append(recording)
                count(1)
    manifest: Row = {"name": "AudioMarathon mini benchmark", "version": "2", "licence": LICENCE, "tasks": {}}
    for task in wanted:
        made = [recording for recording in recordings if recording.task == task]
        _write_metadata(root / task, task, [row for recording in made for row in recording.rows])
        manifest["tasks"][task] = {
            "count": sum(len(recording.rows) for recording in made),
            "min_seconds": min(recording.seconds for recording in made),
            "max_seconds": max(recording.seconds for recording in made),
        }
    _write_json(root / "audiomarathon.json", manifest)
    return root


def mini_benchmark(cache_dir: Path | None = None) -> Path:
    """Return the folder of the cached mini benchmark; write it on first use, and again when its generator changes.

    Parameters
    ----------
    cache_dir
        Folder of the cache; by default `$AUDIOMARATHON_CACHE`, else `~/.cache/audiomarathon`.
    """
    cache = cache_dir or cache_folder()
    target = cache / f"mini-benchmark-{fingerprint()}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    # Write under another name, then rename: a killed run must not leave half a benchmark that looks complete.
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=cache))
    try:
        generate(partial)
        asked(lambda wing: wing.mini(partial))
        partial.chmod(0o755)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # if it exists, another process has just written the same bytes
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def fingerprint() -> str:
    """Return a short hash of everything that determines the mini benchmark's bytes.

    The bytes depend on the code that writes them, and on whether pyarrow is installed.
    """
    of_wings = [wing.home / "mini.py" for wing in all_wings()]
    files = [
        *map(Path, (world.__file__, signals.__file__, synthesis.__file__, __file__)),
        *filter(Path.is_file, of_wings),
    ]
    # Parquet tables are written only where pyarrow is installed.
    content = [*(file.read_bytes() for file in files), str(bool(find_spec("pyarrow"))).encode()]
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:12]


def word_onsets(rng: np.random.Generator, seconds: float, count: int) -> list[float]:
    """Return `count` times at which words begin in a clip, at least two seconds (the audio encoder's window) apart."""
    stretch = seconds / count
    middles = (np.arange(count) + 0.5 + rng.uniform(-0.2, 0.2, count)) * stretch
    return [float(middle - synthesis.WORD_SECONDS / 2) for middle in middles]


def event_onsets(rng: np.random.Generator, seconds: float, count: int) -> list[float]:
    """Return `count` times at which events begin, one in each equal part of the clip, in random order."""
    stretch = seconds / count
    onsets = [i * stretch + rng.uniform(0.5, stretch - synthesis.EVENT_SECONDS - 0.5) for i in range(count)]
    return [float(onsets[i]) for i in rng.permutation(count)]


def _record(job: tuple[Path, int, str, int]) -> Recording:
    """Synthesise one clip by a random generator of its own, and write it; return its task, length and rows."""
    root, seed, task, index = job
    rng = world.stream(seed, "benchmark", TASKS.index(task), index)
    # One clip of each task is long; the others stay near the minimum, to keep the benchmark small.
    seconds = round(float(rng.uniform(110, 119) if index == 0 else rng.uniform(90.5, 94)), 1)
    make: Callable[[str, int, np.random.Generator, float], tuple[synthesis.Clip, str, list[Row]]]
    make = {"librispeech": _transcribed, "race": _passage, "slue": _event, "desed": _event, "had": _veracity}.get(
        task, _textured
    )
    clip, path, rows = make(task, index, rng, seconds)
    target = root / task / path
    target.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(target, clip.samples, clip.rate, subtype="PCM_16")
    if task == "librispeech":
        target.with_name(target.stem.rpartition("-")[0] + ".trans.txt").write_text(f"{target.stem} {rows[0]['text']}\n")
    return Recording(task, seconds, tuple(rows))


def _choices(labels: Iterable[Label]) -> Row:
    return {f"choice_{letter}": label.option for letter, label in zip("abcde", labels, strict=False)}


def _textured(task: str, index: int, rng: np.random.Generator, seconds: float) -> tuple[synthesis.Clip, str, list[Row]]:
    labels = world.labels_of(task)
    label = labels[index % len(labels)]
    rate = 22050 if task == "gtzan" else 16000
    fixed = task in ("vox", "vox_age")  # options are all classes in a fixed order, as in the public files
    options = list(labels) if fixed else world.options_for(label, labels, 4, rng)
    letter = "ABCDE"[options.index(label)]
    uniq_id, speaker = f"mini_{task}_{index:02d}", f"id{90000 + index}"
    path = {
        "tau": f"concatenated_resampled/{label.name}-minicity-{900 + index}-0-a.wav",
        "gtzan": f"wav/{label.name}.{index:05d}.wav",
        "vesus": f"audio/person{index + 1}_{label.name}.wav",
    }.get(task, f"wav/{speaker}/{uniq_id}.wav")
    fields: dict[str, Row] = {
        "tau": {"scene_label": label.name},
        "gtzan": {"genre_label": label.name},
        "vesus": {"emotion_label": label.name, "person_id": index + 1},
        "vox": {"speaker_id_original": speaker},
        "vox_age": {"speaker_id_original": speaker, "speaker_age": (25, 35, 45, 60, 75)[index % 5]},
    }
    row = {
        "path": path,
        "question": QUESTIONS[task],
        **_choices(options),
        "uniq_id": uniq_id,
        "answer_gt": label.option if fixed else letter,
        **fields[task],
    }
    return synthesis.texture(task, label, rng, seconds, rate), path, [row]


def _event(task: str, index: int, rng: np.random.Generator, seconds: float) -> tuple[synthesis.Clip, str, list[Row]]:
    labels = world.labels_of(task)
    label = labels[index % len(labels)]
    options = world.options_for(label, labels, 4, rng)
    onset = event_onsets(rng, seconds, 1)[0]
    path = f"audio/mini_{task}_{index:02d}.wav"
    row: Row = {"path": path, "question": QUESTIONS[task], "answer_gt": "ABCD"[options.index(label)]}
    row |= {"uniq_id": f"mini_{task}_{index:02d}", "event_onset": onset, "event_seconds": synthesis.EVENT_SECONDS}
    if task == "desed":
        row |= {
            "task_type": "sound_event_detection",
            "choices": dict(zip("ABCD", (o.option for o in options), strict=True)),
        }
        row |= {"all_events": [label.name], "primary_event": label.name, "correct_event": label.name}
    else:
        row |= {"task_name": "named_entity", "dataset_name": "mini", **_choices(options), "entity_count": 1}
        row |= {"entity_types": ["PLACE"], "audio_duration_info": f"{seconds} s"}
    return synthesis.needle(task, [(label, onset)], rng, seconds, 16000), path, [row]


def _passage(task: str, index: int, rng: np.random.Generator, seconds: float) -> tuple[synthesis.Clip, str, list[Row]]:
    path = f"{('high', 'middle')[index % 2]}/mini_{index:02d}.wav"
    onsets = event_onsets(rng, seconds, len(FACTS))
    placed, rows = [], []
    for number, ((category, labels), onset) in enumerate(zip(FACTS.items(), onsets, strict=True)):
        label = labels[int(rng.integers(len(labels)))]
        options = world.options_for(label, labels, 4, rng)
        placed.append((label, onset))
        row: Row = {"audio_path": path, "question": QUESTIONS[task].format(category=category)}
        row |= {"options": [option.option for option in options], "answer": "ABCD"[options.index(label)]}
        row |= {"article_id": f"mini_{index:02d}", "question_idx": number}
        rows.append(row | {"event_onset": onset, "event_seconds": synthesis.EVENT_SECONDS})
    return synthesis.needle(task, placed, rng, seconds, 16000), path, rows


def _veracity(task: str, index: int, rng: np.random.Generator, seconds: float) -> tuple[synthesis.Clip, str, list[Row]]:
    label = world.labels_of(task)[index % 2]
    path = f"{label.name}/mini_{index:02d}.wav"
    placed = [(label, event_onsets(rng, seconds, 1)[0])] if label.name == "fake" else []
    onset, length = (placed[0][1], FAKE_SECONDS) if placed else (None, None)
    row: Row = {"path": path, "event_onset": onset, "event_seconds": length}
    return synthesis.needle(task, placed, rng, seconds, 16000, event_seconds=FAKE_SECONDS), path, [row]


def _transcribed(_: str, index: int, rng: np.random.Generator, seconds: float) -> tuple[synthesis.Clip, str, list[Row]]:
    count = int(rng.integers(10, 21))
    words = [world.WORDS[i] for i in rng.permutation(len(world.WORDS))[:count]]
    placed = list(zip(words, word_onsets(rng, seconds, count), strict=True))
    speaker, chapter = 9000 + index, 1
    path = f"test-mini/{speaker}/{chapter}/{speaker}-{chapter}-0000.flac"
    return synthesis.speech(placed, rng, seconds, 16000), path, [{"text": " ".join(words).upper()}]


def _write_metadata(folder: Path, task: str, rows: list[Row]) -> None:
    if task == "librispeech":
        return  # this task's metadata are the transcripts beside the clips
    names = {task.key: getattr(task, "metadata_file", "") for task in AUDIOMARATHON.tasks}
    info = {"task": "sound event detection", "dataset": "mini", "licence": LICENCE}
    # In `had` the folder is the class. The public format has no field for the fake part, so events get a separate file.
    file = folder / (names[task] or "events.json")
    _write_json(file, {"task_info": info, "tasks": rows} if task == "desed" else rows)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
