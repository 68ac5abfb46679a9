"""Probe an encoder on a task: encode the clips, fit the probes, and write each probe's predictions as a run folder.

Each probe counts as a setting of the encoder. `linear`, `knn` and `knn-centred` are ours; `mlp-xares-0.1.3` and
`knn-xares-0.1.3` are the probes behind X-ARES' published tables. Each test clip has a record, whose reply holds the
prediction.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.audio.member import Member
from audiomarathon.benchmarks.rows import shown
from audiomarathon.engine.environment import environment
from audiomarathon.engine.run import Result, score
from audiomarathon.engine.sessions import now
from audiomarathon.errors import DataError, EncoderError, RecordError
from audiomarathon.files import file_name
from audiomarathon.records import Record
from audiomarathon.runs.folder import RunFolder
from audiomarathon.settings import SEED
from audiomarathon.text import counted
from audiomarathon.wings.encoders.check import hop_off
from audiomarathon.wings.encoders.encoder import Encoder
from audiomarathon.wings.encoders.probing import published_probes
from audiomarathon.wings.encoders.probing.encode import Heard, encode_own, encode_published, hear
from audiomarathon.wings.encoders.probing.frames import predict_frames
from audiomarathon.wings.encoders.probing.grades import predict_grades
from audiomarathon.wings.encoders.probing.labels import predict_labels
from audiomarathon.wings.encoders.probing.probe_input import (
    PROTOCOLS,
    PUBLISHED,
    STANDARD,
    XARES,
    Encoded,
    Material,
    Predicted,
    Problem,
    problem_of,
)
from audiomarathon.wings.encoders.probing.recognition import predict_transcripts
from audiomarathon.wings.encoders.probing.retrieval import predict_places
from audiomarathon.wings.encoders.probing.store import FRAMES, FrameStore, Store
from audiomarathon.wings.encoders.scoring.probe import PART, PROTOCOL
from audiomarathon.wings.encoders.xares.tars import CUT
from audiomarathon.wings.encoders.xares.task import Dataset, EncoderTask

#: {kind of task: function that predicts its test clips}.
_PREDICT: Mapping[str, Callable[[Problem], list[Predicted]]] = {
    "labels": predict_labels,
    "graded": predict_grades,
    "framed": predict_frames,
    "captioned": predict_places,
    "spoken": predict_transcripts,
}
_VERSION = 1  # version of the probes: raise it when their predictions change
MOST_FAILED = 0.01  # a score allows at most this share of failed clips or bad rows
_ALONE = "clusters of dependent clips are unknown: clips count as independent"


def probe(
    encoder: Encoder,
    task: EncoderTask,
    data: Dataset,
    results: Path,
    store: Store,
    *,
    protocol: str = "both",
    seeds: Sequence[int] = published_probes.SEEDS,
    say: Callable[[str], None] = lambda _line: None,
    step: Callable[[int], object] = lambda _n: None,
) -> Iterator[Result]:
    """Encode the clips of a task that are not in the store, fit the probes, and yield the result of each probe.

    Parameters
    ----------
    results
        Results folder; runs are in `xares/<task>/<encoder>/<setting>` below it, and complete runs stay.
    protocol
        "standard", "as_published" or "both".
    seeds
        Seeds of the probes that start from random weights, such as X-ARES' linear probe.
    say, step
        Called with lines for the user, and with the number of clips done since the last call.

    Raises
    ------
    DataError
        More than 1 % of the clips cannot be decoded or encoded. Encoded clips stay in the store.
    """
    if settings := found_for(task, protocol, say):
        yield from fit(embed(encoder, task, data, store, step), results, settings=settings, seeds=seeds, say=say)


def embed(
    encoder: Encoder,
    task: EncoderTask,
    data: Dataset,
    store: Store,
    step: Callable[[int], object] = lambda _n: None,
) -> Encoded:
    """Encode the clips of a task that are not in the store, and return the embeddings of all its clips.

    X-ARES' batches are encoded only when a probe first asks for them. `step` is called with the number of clips done
    since its last call.
    """
    checkpoint, store = store.folder.name, FrameStore(store) if task.framed else store
    heard = hear(data.clips, encoder.sampling_rate)
    failed = {clip_heard.clip.id: clip_heard.error for clip_heard in heard if clip_heard.error}
    failed |= encode_own(encoder, [clip_heard for clip_heard in heard if not clip_heard.error], store, step)
    if len(failed) > MOST_FAILED * len(data.clips):
        first = next(f"{id_}: {why}" for id_, why in failed.items())
        many = f"{len(failed)} of {counted(len(data.clips), 'clip')} failed ({first})"
        raise DataError(f"{task.key}: {many}, so there is no score; at most {MOST_FAILED:.0%} may fail")
    content = [
        # If a clip has no facts, the last entry is omitted, so that its hash equals that of earlier records.
        [
            clip_heard.clip.id,
            clip_heard.audio,
            clip_heard.clip.labels,
            clip_heard.clip.cluster,
            *([clip_heard.clip.facts] if clip_heard.clip.facts else []),
        ]
        for clip_heard in heard
    ]
    good = [clip_heard for clip_heard in heard if clip_heard.clip.id not in failed]
    parts_of = Counter(audio for audio, _part in {(clip_heard.audio, clip_heard.clip.part) for clip_heard in good})
    twice = sum(parts_of[clip_heard.audio] > 1 for clip_heard in good)
    items_of: dict[str, dict[Member, list[Heard]]] = {}  # by part and audio file; a user's file can yield several clips
    for heard_clip in good:
        items_of.setdefault(heard_clip.clip.part, {}).setdefault(heard_clip.clip.audio, []).append(heard_clip)

    def released() -> Material:
        parts = [[its[0] for its in part.values()] for part in items_of.values()]
        items = [item for part in parts for item in encode_published(encoder, part, task.recipe, store)]
        each = [(member.clip, item.row) for item in items for member in items_of[item.clip.part][item.clip.audio]]
        return [clip for clip, _ in each], rows([row for _, row in each])

    def gather() -> Material:
        if task.kind == "framed" and (line := hop_off(encoder)):
            raise EncoderError(f"{encoder.name}: {line}; {task.name} needs the true hop, or --protocol as_published")
        return [clip_heard.clip for clip_heard in good], rows([clip_heard.audio for clip_heard in good])

    def rows(names: Sequence[str]) -> Any:
        arrays = [store.rows[name] for name in names]
        return arrays if task.framed else np.stack(arrays)

    hashed = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    note = f"{counted(twice, 'clip')} whose audio lies in another part too"
    return Encoded(
        encoder.name,
        task,
        data,
        identity={"checkpoint": checkpoint, "data": hashed, **({"frames": FRAMES} if task.framed else {})},
        facts={"encoder": dict(encoder.identity), "note": note * (twice > 0)},
        per_clip=cache(gather),
        released=cache(released),
        failed=failed,
        seconds={clip_heard.clip.id: clip_heard.samples / encoder.sampling_rate for clip_heard in good},
        hop=encoder.hop_size_in_ms,
        device=encoder.device,
    )


def fit(
    encoded: Encoded, results: Path, *, settings: Sequence[str], seeds: Sequence[int], say: Callable[[str], None]
) -> Iterator[Result]:
    """Fit the probes named `settings` on a task's embeddings, write a run folder for each, and yield their results.

    The parameters are those of :func:`probe`.
    """
    task, once = encoded.task, cache(say)
    for setting in settings:
        if setting in STANDARD:
            try:
                encoded.per_clip()
            except EncoderError as error:  # a wrong hop; X-ARES' probes do not use it
                if not {*settings} & {*PUBLISHED}:
                    raise
                say(f"left out {setting}: {error}")
                continue
        identity = {"method": setting, **encoded.identity, "probe": _VERSION}
        identity["splits"] = {role: task.part(role) for role in task.globs}
        identity |= {"recipe": asdict(task.recipe)} if setting in PUBLISHED else {}
        trained = setting == PUBLISHED[0] or task.kind == "captioned"
        identity |= {"seeds": list(seeds[:1] if task.kind == "spoken" else seeds)} if trained else {}
        identity |= task.made_with(released=setting in PUBLISHED)
        folder = results / task.key / file_name(encoded.name) / setting
        run = RunFolder(folder, identity, task.scorer.fits)
        try:
            run.peek()
        except RecordError as error:
            why = "the encoder, the task file or an option changed; name another folder with --results"
            raise RecordError(f"{error}; {why}") from None
        with run:
            if run.records and run.run["samples"] == [id_ for id_, stored in run.records.items() if stored.answered]:
                say(f"{folder}: complete; nothing to do")
            else:
                predicted = _PREDICT[task.kind](problem_of(encoded, setting, seeds, once))
                records = _records(encoded, predicted, published=setting in PUBLISHED)
                facts = _facts(encoded) | {"method": setting, "samples": [new_record.id for new_record in records]}
                run.write_run(facts)
                for record in records:
                    if record != run.records.get(record.id):
                        run.append(record)
        yield score(folder)


def check_data(task: EncoderTask, data: Dataset, say: Callable[[str], None], *, allow: bool) -> None:
    """Check that a task's data can be used and can tell encoders apart; print a line for each weakness.

    Weaknesses are bad rows, unknown clusters (of dependent clips), and parts in which all clips have one class.

    Parameters
    ----------
    allow
        Whether to accept tars that are cut off, and more than 1 % of bad rows (rows that give no clip).

    Raises
    ------
    DataError
        A tar is cut, so that its lost content is unknown; too many rows are bad; or all clips have the same labels, so
        that every probe is always right.
    """
    cut = next((row for row in data.bad_rows if row.reason.startswith(CUT)), None)
    if cut and not allow:
        raise DataError(f"{task.key}: {cut}; get the file again, or leave out what it has lost with --allow-bad-rows")
    if not allow and len(data.bad_rows) > MOST_FAILED * data.rows:
        many = f"{counted(len(data.bad_rows), 'bad row')} of {data.rows:,}, the first: {data.bad_rows[0]}"
        raise DataError(f"{task.key}: {many}; fix them, or leave them out with --allow-bad-rows")
    if task.label and len({clip.labels for clip in data.clips}) == 1:
        same = shown("; ".join(data.clips[0].labels))
        alike = f"all clips ({len(data.clips):,}) are of one class, {same}, which every probe gets right"
        raise DataError(f"{task.key}: {alike}; needed: two classes or more")
    if data.bad_rows:
        say(f"{task.name}: left out {counted(len(data.bad_rows), 'bad row')}, the first: {data.bad_rows[0]}")
    if not data.clustered:
        say(f"{task.name}: which clips depend on each other (clusters) is unknown, so all count as independent")
    labels: dict[str, set[tuple[str, ...]]] = {}
    for clip in data.clips:
        labels.setdefault(clip.part, set()).add(clip.labels)
    if single := [part for part, part_labels in labels.items() if len(part_labels) == 1] if task.label else []:
        say(f"{task.name}: all clips of {', '.join(single)} are of one class, so scores there say little")


def found_for(task: EncoderTask, protocol: str, say: Callable[[str], None]) -> list[str]:
    """Return the names of a task's probes, after a check that the causal LM or tokenizer that they need is available.

    Raises
    ------
    ModelError
        The causal LM or the tokenizer is not available.
    """
    settings = settings_of(task, protocol, say)
    for setting in settings:
        task.made_with(released=setting in PUBLISHED)
    return settings


def settings_of(task: EncoderTask, protocol: str, say: Callable[[str], None] = lambda _line: None) -> list[str]:
    """Return the names of a task's probes: ours if `protocol` is "standard", X-ARES' if "as_published", or "both"."""
    settings = [setting for setting in PROTOCOLS[protocol] if task.one_label or not setting.startswith("knn")]
    settings = [setting for setting in settings if task.recipe.knn or setting != PUBLISHED[1]]
    if task.lacking:
        if protocol != "standard":
            say(f"{task.name}: X-ARES' probes are left out: {task.lacking}")
        settings = [setting for setting in settings if setting in STANDARD]
    if task.note:
        say(task.note)
        settings = [setting for setting in settings if setting in PUBLISHED]
    return settings


def _facts(encoded: Encoded) -> dict[str, Any]:
    return {
        "task": encoded.task.key,
        "model": encoded.name,
        "checkpoint": encoded.name,
        "checkpoint_name": encoded.name,
        "settings": {"seed": SEED},
        "data_folder": str(encoded.data.folder),
        "bad_rows": [str(row) for row in encoded.data.bad_rows],
        "environment": environment(),
        "sessions": [{"started": now()}],
        **encoded.facts,
        "note": "; ".join(
            filter(None, [encoded.task.note, "" if encoded.data.clustered else _ALONE, encoded.facts["note"]])
        ),
    }


def _records(encoded: Encoded, predicted: Sequence[Predicted], *, published: bool) -> list[Record]:
    """Return a record of each test clip: with the prediction, or with an error if the clip could not be encoded.

    `published` tells whether X-ARES' own probe made the predictions.
    """
    records: dict[str, Record] = {}
    for clip, reply, known in predicted:
        groups = {PART: clip.part} | ({PROTOCOL: XARES} if published else {})
        id_ = next(name for name in chain([clip.id], (f"{clip.id}#{n}" for n in count(2))) if name not in records)
        seconds = round(encoded.seconds.get(clip.id, 0.0), 3)
        records[id_] = Record(
            id_, clip.cluster, reply=reply, reference=dict(known), groups=groups, clip_seconds=seconds
        )
    tested = {clip.part for clip, _, _ in predicted}
    lost = [clip for clip in encoded.data.clips if clip.id in encoded.failed and clip.part in tested]
    return [*records.values(), *(Record(clip.id, clip.cluster, error=encoded.failed[clip.id]) for clip in lost)]
