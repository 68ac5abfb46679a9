"""Download tasks' data into a data root: only the files that are needed, checked, and resumable.

The task itself decides which files it needs. The source's tree is mirrored with empty files, only the metadata is
downloaded, and the task is found and loaded there as in a run. Only the clips of its samples are then downloaded; a
limit takes the same samples as SAMPLE_LIMIT in a run. Files are downloaded into a hidden folder of the root, and
renamed once they are whole. Each file is a download of its own: huggingface_hub's `snapshot_download` takes quadratic
time with 7,000 patterns, and puts no file in place until all are there. A clip that is already in the root is checked
by its size only.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import Loaded, Sample, Task, select
from audiomarathon.benchmarks.manifest import FILE_NAME, Expected, Manifest, read_manifest, write_manifest
from audiomarathon.benchmarks.task import Filters, Part
from audiomarathon.data.archive import Source, check_space, is_there
from audiomarathon.data.archive_rules import Entry
from audiomarathon.errors import DataError, MissingDataError
from audiomarathon.files import MAX_METADATA_BYTES, write_bytes, writing
from audiomarathon.lock import holding
from audiomarathon.settings import SEED
from audiomarathon.terminal import progress_of
from audiomarathon.text import counted

STAGE = ".download"
_METADATA = (".json", ".jsonl", ".txt", ".csv", ".tsv")


@dataclass(frozen=True)
class Wanted:
    """The files that one task needs from a source.

    Attributes
    ----------
    folder
        The task's folder, relative to the source's top.
    loaded
        The task as it loads from the source's metadata.
    chosen
        The samples to download: all, or those of a limited run.
    metadata, clips
        The files to download.
    manifest
        The source's manifest (`audiomarathon.json`), with its licence.
    expected
        Facts that the whole task should have, such as its number of samples; None for a split other than the default.
    """

    task: Task
    folder: Path
    loaded: Loaded
    chosen: tuple[Sample, ...]
    metadata: tuple[Entry, ...]
    clips: tuple[Entry, ...]
    manifest: Manifest
    expected: Expected | None

    @property
    def limited(self) -> bool:
        """Whether some of the task's samples are left out."""
        return len(self.chosen) < len(self.loaded.samples)


def download(
    tasks: Sequence[Task],
    source: Source,
    root: Path,
    *,
    limit: int = 0,
    seed: int = SEED,
    split: str = "",
    licence: str = "",
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> list[Wanted]:
    """Download tasks into a data root; return the downloaded files. With `dry_run`, only return what it would download.

    Parameters
    ----------
    limit, seed
        SAMPLE_LIMIT and SEED of a run: its samples are added to those already in the root. The root's metadata has
        only the rows of these samples, and its `audiomarathon.json` says so. A later call without a limit downloads the
        other samples.
    split
        TASK_SPLIT of a run; "" is the task's default. `data verify` checks only the default.
    licence
        Licence to state in the manifest if the source states none.

    Raises
    ------
    DataError
        A task is not in the source, or is in another folder of the root; the disk is too small; a hash is wrong; the
        network fails. Finished files stay, and the same call continues.
    """
    stage = root / STAGE
    with holding(stage / "lock", "another download is running there"), tempfile.TemporaryDirectory() as scratch:
        mirror = Path(scratch)
        entries = {entry.path: entry for entry in source.entries() if "/." not in f"/{entry.path}"}
        _mirror(source, entries, mirror)
        plans = [_plan(task, source, entries, mirror, root, limit, seed, split, licence) for task in tasks]
        for plan in plans:
            for row in plan.loaded.bad_rows[:3]:
                say(f"{plan.task.key}: the source has a bad row: {row}")
            for reason, count in plan.loaded.left_out.items():
                say(f"{plan.task.key}: left out {counted(count, 'sample')} ({reason})")
        clips = {clip.path: clip for plan in plans for clip in plan.clips}
        missing = [clip for clip in clips.values() if not is_there(root / clip.path, clip.size)]
        needed = sum(clip.size for clip in missing)
        free = check_space(root, needed)
        say(f"{counted(len(missing), 'clip')} to download, {needed / 1e9:.2f} GB; {free / 1e9:.1f} GB free in {root}")
        if not dry_run:
            bring(source, missing, stage, lambda entry: root / entry.path)
            for plan in plans:
                _write_metadata(plan, mirror, root, source, limit, seed)
        shutil.rmtree(stage, ignore_errors=True)
        return plans


def _mirror(source: Source, entries: Iterable[str], mirror: Path) -> None:
    """Create an empty file in the folder `mirror` for each file of the source, given by relative path."""
    for path in entries:
        place = mirror / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        except OSError as error:
            raise DataError(f"{source.name}: {path[:80]!r} cannot be a file's path ({error.strerror})") from None


def _plan(
    task: Task, source: Source, entries: dict[str, Entry], mirror: Path, root: Path,
    limit: int, seed: int, split: str, licence: str,
) -> Wanted:  # fmt: skip
    """Find which files a task needs from a source; return them as :class:`Wanted`.

    The task is loaded from `mirror`, a copy of the source in which only metadata files have content.
    """
    try:
        folder = task.find(mirror).relative_to(mirror.absolute())
    except MissingDataError:
        raise DataError(f"{task.key}: is not in {source.name}") from None
    except DataError as error:
        raise DataError(f"{source.name}: {str(error).replace(f'{mirror}/', '')}") from None
    with suppress(MissingDataError):
        if (there := task.find(root)) != (place := (root / folder).absolute()):
            raise DataError(
                f"{task.key}: is already in {there}, not in {place}; move it away, or choose another --data"
            )
    usual = getattr(task, "metadata_file", "")
    named = getattr(task, "splits", {}).get(split, usual)
    filters = Filters(split=split)
    metadata = [entry for entry in entries.values() if _is_metadata(entry, folder, named)]
    bring(source, metadata, root / STAGE, lambda entry: mirror / entry.path, shown=False)
    loaded = task.load(mirror / folder, filters)
    taken = {sample.id for sample in select(loaded.samples, limit, seed)} | _present(task, root / folder, filters)
    chosen = tuple(sample for sample in loaded.samples if sample.id in taken)
    manifest = read_manifest(mirror / folder)
    if licence and manifest.file is None:
        manifest = replace(manifest, name=task.title, licence=licence)
    paths = {clip.relative_to(mirror.absolute()).as_posix() for sample in chosen for clip in sample.clips}
    return Wanted(
        task,
        folder,
        loaded,
        chosen,
        tuple(entry for entry in metadata if Path(entry.path).name != FILE_NAME),
        tuple(entries[path] for path in sorted(paths)),
        manifest,
        manifest.expected(task) if named == usual else None,
    )


def _present(task: Task, folder: Path, filters: Filters) -> set[str]:
    """Return the ids of samples that the root already has; these stay selected, so a lower limit removes nothing."""
    try:
        return {sample.id for sample in task.load(folder, filters).samples} if folder.is_dir() else set()
    except DataError:
        return set()


def _is_metadata(entry: Entry, folder: Path, named: str) -> bool:
    """Tell whether a file is the task's metadata file, or a manifest in a folder above it.

    If the task has no metadata file (`named` is ""), every text file of its folder counts.
    """
    path = Path(entry.path)
    if entry.size > MAX_METADATA_BYTES:
        return False
    if path.name == FILE_NAME:
        return folder.is_relative_to(path.parent)
    is_text = path.name in (named, f"corpus_{named}") if named else path.suffix in _METADATA
    return is_text and path.is_relative_to(folder)


def _write_metadata(plan: Wanted, mirror: Path, root: Path, source: Source, limit: int, seed: int) -> None:
    """Write a downloaded task's metadata rows, and the counts to expect of it in the root's manifest.

    The rows are all of them, or only those of the chosen samples.
    """
    if plan.limited:
        plan.task.write_rows(Part(plan.loaded, plan.chosen), root / plan.folder)
    else:
        for entry in plan.metadata:
            write_bytes(root / entry.path, (mirror / entry.path).read_bytes())
    facts: dict[str, Any] = {}
    if expected := plan.expected:
        facts = {
            "count": len(plan.chosen) if plan.limited else expected.count,
            "min_seconds": expected.seconds[0],
            "max_seconds": expected.seconds[1],
        }
        if plan.limited:
            facts |= {"subset": {"of": len(plan.loaded.samples), "limit": limit, "seed": seed}}
    whole = {"name": plan.manifest.name, "licence": plan.manifest.licence, "source": source.name}
    write_manifest(root, whole, {plan.task.key: facts} if facts else {})


def bring(
    source: Source, wanted: Sequence[Entry], stage: Path, place: Callable[[Entry], Path], *, shown: bool | None = None
) -> None:
    """Fetch files from a source, and move each to its final path once it is complete and checked.

    Parameters
    ----------
    wanted
        The files to fetch.
    stage
        Folder for unfinished files.
    place
        Function that returns an entry's final path.
    shown
        False shows no progress.

    Raises
    ------
    DataError
        A file has a wrong size, or a wrong hash if the source knows it, or the disk is full.
    """
    total = sum(entry.size for entry in wanted)
    with progress_of(total, "download", "B", shown=shown) as count:
        try:
            for entry, file in source.fetch(wanted, stage):
                expected = (entry.size, entry.digest)
                if (arrived := (file.stat().st_size, _digest(file, entry.digest))) != expected:
                    file.unlink()
                    raise DataError(
                        f"{source.name}: {entry.path} arrived damaged (bytes and hash {arrived}, expected {expected}); "
                        "run the same command again"
                    )
                _place(file, place(entry))
                count(entry.size)
        except OSError as error:
            full = error.errno == errno.ENOSPC
            reason = f"no space left in {stage.parent}" if full else f"{error.filename or stage}: {error.strerror}"
            raise DataError(f"{reason}; finished files are kept; run the same command again to continue") from error


def _digest(file: Path, like: str) -> str:
    """Return a file's hash, of the same kind as the hash `like` (`sha256:…`, `md5:…`, `git:…`); "" if `like` is ""."""
    if not like:
        return ""
    kind = like.partition(":")[0]
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size) if kind == "git" else hashlib.new(kind)
    with file.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, lambda: digest).hexdigest()}"


def _place(file: Path, target: Path) -> None:
    """Move a complete file to its final path in one step, through a hidden file beside it."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(".partial")
        try:
            shutil.move(file, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
