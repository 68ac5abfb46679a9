"""Probe embeddings that X-ARES stored; the runs are marked `imported`, since the encoder's weights are unknown."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from audiomarathon.audio.member import Member
from audiomarathon.benchmarks.shards import check_shards
from audiomarathon.benchmarks.task import BadRow
from audiomarathon.engine.run import Result
from audiomarathon.errors import DataError, MissingDataError, SettingsError, told
from audiomarathon.files import MAX_METADATA_BYTES, MAX_OBJECT_BYTES
from audiomarathon.metrics.statistics import Floats
from audiomarathon.runs.summary import IMPORTED
from audiomarathon.untrusted import array_of
from audiomarathon.wings.encoders.probing.probe_input import Encoded, Material
from audiomarathon.wings.encoders.probing.published_probes import SEEDS
from audiomarathon.wings.encoders.probing.run import check_data, fit, found_for
from audiomarathon.wings.encoders.xares.tars import members_of, parsed
from audiomarathon.wings.encoders.xares.task import Clip, Dataset, EncoderTask


def probe_stored(
    env: Path,
    encoder: str,
    tasks: Sequence[EncoderTask],
    results: Path,
    *,
    bad: bool = False,
    say: Callable[[str], None],
) -> list[Iterator[Result]]:
    """For each task with stored embeddings, return an iterator that runs the task's probes and yields their results.

    Embeddings are searched in `<env>/<task>/embeddings/<encoder>/` and `<env>/embeddings/<encoder>/`.

    Parameters
    ----------
    bad
        Whether to accept a task if more than 1 % of its rows are bad.

    Raises
    ------
    SettingsError
        The encoder's name is a path.
    MissingDataError
        No task has stored embeddings.
    """

    def probed(task: EncoderTask, folder: Path) -> Iterator[Result]:
        if settings := found_for(task, "both", say):
            stored = _stored(task, encoder, folder)
            check_data(task, stored.data, say, allow=bad)
            yield from fit(stored, results, settings=settings, seeds=SEEDS, say=say)

    if Path(encoder).name != encoder or encoder.startswith("."):
        raise SettingsError(f"--encoder {encoder}: must be the name of a folder in embeddings/, not a path")
    there = list[Iterator[Result]]()
    for task in tasks:
        folder = next((parent for parent in (env / task.name, env) if (parent / "embeddings" / encoder).is_dir()), None)
        if folder is None:
            continue
        if task.framed:
            why = "the time step of stored frames is not known; encode the clips with audiomarathon encoder run"
            say(f"left out {task.name}: {why}")
            continue
        there.append(probed(task, folder / "embeddings" / encoder))
    if not there:
        raise MissingDataError(f"{env.absolute()}: no embeddings/{encoder} of {', '.join(task.name for task in tasks)}")
    return there


def _stored(task: EncoderTask, encoder: str, folder: Path) -> Encoded:
    """Read the embeddings that X-ARES stored for a task, average them over frames, and return the input of probes.

    X-ARES appends the batch number to each clip's key, and of equal keys reads only the first. A long clip can have
    embeddings in several batches: our probes use the first of them, X-ARES' probes use all.
    """
    clips, rows, bad, digest, clustered = list[Clip](), list[Floats](), list[BadRow](), hashlib.sha256(), True
    for part, glob in task.parts.items():
        tars = sorted(folder.glob(f"*wds-encoded-fold-{part}-*.tar" if task.folds else f"*wds-encoded-{glob}"))
        check_shards(tars)
        for key, batch, embedding, text in _items(tars, task.recipe.encode_batch, bad):
            original = key.removesuffix(str(batch))
            try:
                if not original:
                    raise ValueError("the name of a clip is empty")
                items = [*task.items(original, parsed(_content(text, MAX_OBJECT_BYTES)))]
                frames = array_of(_content(embedding, MAX_METADATA_BYTES))
                if frames.ndim != 2 or not frames.size or (rows and frames.shape[1:] != rows[0].shape):
                    raise ValueError(f"an embedding has the shape {frames.shape}; allowed: (frames, dim), equal dim")
                row = frames.astype(np.float64).mean(axis=0)
                if not np.isfinite(row).all():
                    raise ValueError("an embedding holds NaN or infinity")
            except (ValueError, OSError) as error:
                bad.append(BadRow(embedding.archive, 0, f"{key!r}: {told(error)}"))
                continue
            id_ = f"{part}/{original}"
            for mark, labels, cluster, known in items:
                clustered &= bool(cluster)
                clips.append(Clip(id_ + mark, part, replace(embedding, name=key), labels, cluster or id_, known))
                rows.append(row)
                digest.update(clips[-1].id.encode() + row.tobytes())
    if not rows:
        first = f"; the first of {len(bad)} bad rows: {bad[0]}" if bad else ""
        raise DataError(f"{folder}: holds no embedding of {task.name}{first}")
    there = {label for clip in clips for label in clip.labels}
    classes = task.classes if isinstance(task.classes, frozenset) else there
    data = Dataset(folder, tuple(clips), tuple(sorted(classes)), tuple(bad), clustered, len(clips) + len(bad))
    whole = np.stack(rows)
    firsts = sorted({clip.id: place for place, clip in reversed([*enumerate(clips)])}.values())
    material: Material = ([clips[place] for place in firsts], whole[firsts])
    return Encoded(
        f"{encoder} ({IMPORTED})",
        task,
        data,
        identity={"checkpoint": f"{IMPORTED} {encoder}", "origin": IMPORTED, "data": digest.hexdigest()[:16]},
        facts={"origin": IMPORTED, "note": "embeddings of X-ARES, read as they were stored"},
        per_clip=lambda: material,
        released=lambda: (clips, whole),
    )


def _items(tars: Sequence[Path], size: int, bad: list[BadRow]) -> Iterator[tuple[str, int, Member, Member]]:
    """Yield (key, batch number, member with the frames, member with the JSON) of each stored embedding.

    A key is a member's name without ".npy" or ".json"; if it occurs several times in a tar, the first counts. Damaged
    tars, and keys without both files, are added to `bad`. `size` is the number of clips in a batch of X-ARES.
    """
    written = 0  # X-ARES counts its batches (of `size` clips) over all tars of a part
    for tar in tars:
        members: dict[str, tuple[int, dict[str, Member]]] = {}
        for number, member, flaw in members_of(tar, bad):
            key, _, kind = member.name.rpartition(".")
            if kind not in ("npy", "json"):
                continue
            if flaw:
                bad.append(BadRow(tar, number, flaw))
            else:
                members.setdefault(key, (written // size, {}))[1].setdefault(kind, member)
            written += kind == "npy"
        for key, (batch, kinds) in members.items():
            if {"npy", "json"} <= kinds.keys():
                yield key, batch, kinds["npy"], kinds["json"]
            else:
                bad.append(BadRow(tar, 0, f"{key!r} has only {', '.join(kinds)}, expected npy and json"))


def _content(member: Member, most: int) -> bytes:
    if member.size > most:
        raise ValueError(f"{member.name} has {member.size:,} bytes; allowed: up to {most:,}")
    return member.read_bytes()
