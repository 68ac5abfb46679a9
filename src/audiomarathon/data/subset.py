"""Write some of a task's rows into another folder, in its own format, so that it loads there as the same task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from audiomarathon.errors import DataError
from audiomarathon.files import write_text
from audiomarathon.tasks import Loaded, Sample, Task
from audiomarathon.tasks.manifest import FILE_NAME
from audiomarathon.tasks.multiple_choice import MultipleChoice
from audiomarathon.tasks.rows import Row, RowError, read_json, read_rows

Fields = dict[str, Any]
Changes = Mapping[str, Mapping[str, Any]]


def relative_clip(loaded: Loaded, sample: Sample) -> str:
    """Return where a sample's clip lies in its task's folder."""
    return sample.clips[0].relative_to(loaded.folder).as_posix()


def write_rows(
    task: Task,
    loaded: Loaded,
    ids: set[str],
    target: Path,
    changes: Changes = MappingProxyType({}),
    paths: Mapping[str, str] | None = None,
) -> None:
    """Write the metadata of some samples into a folder; clips are the caller's to put there, under the same paths.

    Parameters
    ----------
    loaded
        The task as it was loaded; its folder holds the rows.
    ids
        The samples to keep.
    target
        The task's folder to write.
    changes
        By sample the fields to set in its row. A field set to None is taken away.
    paths
        By sample, where its clip lies in the target; default: where it lies in the task's folder.

    Raises
    ------
    DataError
        The task is a third party's, whose format is not known.
    """
    kept = [sample for sample in loaded.samples if sample.id in ids]
    if isinstance(task, MultipleChoice) and task.metadata_file:
        _write_metadata(task, loaded, {sample.id: sample for sample in kept}, target, changes, paths or {})
    elif task.key == "had":
        rows = []
        for sample in kept:
            event = {name: sample.meta[name] for name in ("event_onset", "event_seconds") if name in sample.meta}
            path = (paths or {}).get(sample.id, relative_clip(loaded, sample))
            rows.append(_set({"path": path, **event}, changes.get(sample.id, {})))
        if any(len(row) > 1 for row in rows):
            _write_json(target / "events.json", rows)
    elif task.key == "librispeech":
        _write_transcripts(kept, loaded, target)
    else:
        raise DataError(f"{task.key}: a third party's task, whose files only its package can write")


def write_manifest(root: Path, facts: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Set facts and tasks' entries (None: take it away) in a root's `audiomarathon.json`; the rest of it stays."""
    file = root / FILE_NAME
    data = read_json(file) if file.is_file() else {}
    if not isinstance(data, dict) or not isinstance(data.get("tasks", {}), dict):
        raise DataError(f"{file}: expected an object whose field 'tasks' is an object by task key")
    entries = {**data.get("tasks", {}), **tasks}
    merged = {**data, **facts, "tasks": {key: entry for key, entry in entries.items() if entry is not None}}
    _write_json(file, merged)


def _write_metadata(
    task: MultipleChoice,
    loaded: Loaded,
    kept: Mapping[str, Sample],
    target: Path,
    changes: Changes,
    paths: Mapping[str, str],
) -> None:
    file = loaded.folder / task.metadata_file
    rows: list[Fields] = []
    written: set[str] = set()
    for fields in read_rows(file, task.rows_key):
        try:
            found = task.sample(Row(loaded.folder, fields)).id if isinstance(fields, dict) else ""
        except RowError:
            continue
        if found in kept and found not in written:
            written.add(found)
            name = "audio_path" if "audio_path" in fields else "path"
            # As written a path may lean on subfolders' or the folder's own name; this one stands on its own.
            path = paths.get(found, relative_clip(loaded, kept[found]))
            rows.append(_set({**fields, name: path}, changes.get(found, {})))
    whole = read_json(file)
    _write_json(target / file.name, {**whole, task.rows_key: rows} if task.rows_key else rows)


def _write_json(file: Path, content: object) -> None:
    """Write JSON in ASCII, as the public data is."""
    write_text(file, json.dumps(content, indent=2, ensure_ascii=True) + "\n")


def _set(fields: Fields, changes: Mapping[str, Any]) -> Fields:
    return {name: value for name, value in {**fields, **changes}.items() if name not in changes or value is not None}


def _write_transcripts(kept: Iterable[Sample], loaded: Loaded, target: Path) -> None:
    chapters: dict[Path, list[str]] = {}
    for sample in kept:
        clip = Path(relative_clip(loaded, sample))
        text = " ".join(sample.answer.split())
        if sample.clips[0].with_suffix(".txt").is_file():  # a file a clip there, so here
            write_text((target / clip).with_suffix(".txt"), f"{text}\n")
            continue
        chapters.setdefault(clip.parent, []).append(f"{clip.stem} {text}\n")
    for chapter, lines in chapters.items():
        write_text(target / chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt", "".join(sorted(lines)))
