"""Probe an encoder on a task: encode, fit, and write each probe's predictions as a run like any other.

Every probe is a setting of the encoder: `linear`, `knn` and `knn-centred` are the corrected ones, `mlp-xares-0.1.3` and
`knn-xares-0.1.3` those that X-ARES' published tables come from. A record is a test clip, its reply the predicted label.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from audiomarathon.benchmarks.xares.framed import FramedTask
from audiomarathon.benchmarks.xares.graded import GradedTask
from audiomarathon.benchmarks.xares.task import Clip, Dataset, EncoderTask
from audiomarathon.encoders.check import hop_off
from audiomarathon.encoders.encoder import Encoder
from audiomarathon.engine.environment import environment
from audiomarathon.engine.run import Result, score
from audiomarathon.engine.sessions import now
from audiomarathon.errors import DataError, EncoderError, RecordError
from audiomarathon.metrics.events import counts_of, segments
from audiomarathon.metrics.statistics import Floats
from audiomarathon.probing import published, standard
from audiomarathon.probing.clips import Clips, Integers, Predictions, Split, grouped, held_out, rotated
from audiomarathon.probing.encode import encode_own, encode_published, hear
from audiomarathon.probing.frames import (
    Framed,
    activity,
    columns,
    frame_ridge,
    onsets_in,
    published_frames,
)
from audiomarathon.probing.grades import grade_probe
from audiomarathon.probing.store import FRAMES, FrameStore, Store
from audiomarathon.records import Record
from audiomarathon.runs.folder import RunFolder
from audiomarathon.scoring.grades import grades_to_reply
from audiomarathon.scoring.probe import PART, PROTOCOL, labels_to_reply, scores_to_reply
from audiomarathon.scoring.segments import counts_to_reply
from audiomarathon.text import counted

XARES = "xares-0.1.3"
STANDARD = ("linear", "knn", "knn-centred")
PUBLISHED = (f"mlp-{XARES}", f"knn-{XARES}")
PROTOCOLS = {"both": (*STANDARD, *PUBLISHED), "standard": STANDARD, "as_published": PUBLISHED}
_VERSION = 1  # of what is fitted: raise it when that changes a prediction
MOST_FAILED = 0.01  # of a task's clips, or of its rows; with more there is no score
_ALONE = "what makes clips dependent is not known: each counts alone"
_FEWEST = 3  # folds: to train, to validate, to test
_FOLDS = 5  # of whole clusters, where a task's own parts share some


Material = tuple[Sequence[Clip], Any]
"""Clips, and the embedding of each, shape (clips, dim); of a task of frames a list of frames, shape (frames, dim)."""


@dataclass(frozen=True)
class Encoded:
    """A task's embeddings: what every probe is fitted on.

    Attributes
    ----------
    name
        Of the encoder.
    identity
        What two runs must share to be one.
    own, released
        Makes the clips' own embeddings, and those as X-ARES batches and crops clips.
    failed
        Why clips have none, by id.
    seconds
        Of each clip, by id, where that is known.
    hop
        Milliseconds from frame to frame; 0 where there are none.
    """

    name: str
    task: EncoderTask
    data: Dataset
    identity: Mapping[str, Any]
    facts: Mapping[str, Any]
    own: Callable[[], Material]
    released: Callable[[], Material]
    failed: Mapping[str, str]
    seconds: Mapping[str, float]
    hop: float = 0.0


def probe(
    encoder: Encoder,
    task: EncoderTask,
    data: Dataset,
    results: Path,
    store: Store,
    *,
    protocol: str = "both",
    seeds: Sequence[int] = published.SEEDS,
    say: Callable[[str], None] = lambda _line: None,
    step: Callable[[int], object] = lambda _n: None,
) -> Iterator[Result]:
    """Encode a task's clips where that is not done, fit the probes, and yield the result of each setting.

    Parameters
    ----------
    results
        Run folders are made in it, `xares/<task>/<encoder>/<setting>`; those that are complete stay as they are.
    protocol
        "standard", "as_published" or "both".
    seeds
        Of the published linear probe.
    say, step
        Called with lines for the user, and with how many clips more are done.

    Raises
    ------
    DataError
        More than 1 % of the clips cannot be heard or encoded; what was encoded stays in the store.
    """
    encoded = embed(encoder, task, data, store, step)
    yield from fit(encoded, results, protocol=protocol, seeds=seeds, say=say)


def embed(
    encoder: Encoder,
    task: EncoderTask,
    data: Dataset,
    store: Store,
    step: Callable[[int], object] = lambda _n: None,
) -> Encoded:
    """Encode a task's clips where that is not done; X-ARES' batches only when they are asked for; see :func:`probe`."""
    framed, checkpoint = isinstance(task, FramedTask), store.folder.name
    store = FrameStore(store) if framed else store
    heard = hear(data.clips, encoder.sampling_rate)
    failed = {one.clip.id: one.error for one in heard if one.error}
    failed |= encode_own(encoder, [one for one in heard if not one.error], store, step)
    if len(failed) > MOST_FAILED * len(data.clips):
        first = next(f"{id_}: {why}" for id_, why in failed.items())
        raise DataError(f"{task.key}: {len(failed)} of {counted(len(data.clips), 'clip')} failed ({first}): no score")
    content = [[one.clip.id, one.audio, one.clip.labels, one.clip.cluster, *_facts_of(one.clip)] for one in heard]
    good = [one for one in heard if one.clip.id not in failed]
    lie_in: dict[str, set[str]] = {}
    for one in good:
        lie_in.setdefault(one.audio, set()).add(one.clip.part)
    twice = sum(len(lie_in[one.audio]) > 1 for one in good)
    parts = [[one for one in good if one.clip.part == part] for part in dict.fromkeys(one.clip.part for one in good)]

    def released() -> Material:
        items = [item for part in parts for item in encode_published(encoder, part, task.recipe, store)]
        return [item.clip for item in items], rows([item.row for item in items])

    def own() -> Material:
        if framed and (line := hop_off(encoder)):
            raise EncoderError(f"{encoder.name}: {line}; {task.name} needs the true hop, or --protocol as_published")
        return [one.clip for one in good], rows([one.audio for one in good])

    def rows(names: Sequence[str]) -> Any:
        found = [store.rows[name] for name in names]
        return found if framed else np.stack(found)

    return Encoded(
        encoder.name,
        task,
        data,
        {
            "checkpoint": checkpoint,
            "data": hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16],
            **({"frames": FRAMES} if framed else {}),
        },
        {
            "encoder": dict(encoder.identity),
            "note": f"{counted(twice, 'clip')} whose audio lies in another part too" * (twice > 0),
        },
        own,
        cache(released),
        failed,
        {one.clip.id: one.samples / encoder.sampling_rate for one in good},
        encoder.hop_size_in_ms,
    )


def fit(
    encoded: Encoded, results: Path, *, protocol: str, seeds: Sequence[int], say: Callable[[str], None]
) -> Iterator[Result]:
    """Fit the probes on a task's embeddings, write their run folders, and yield their results; see :func:`probe`."""
    task, told = encoded.task, set[str]()

    def once(line: str) -> None:
        if line not in told:
            told.add(line)
            say(line)

    for setting in settings_of(task, protocol, say):
        identity = {**encoded.identity, "probe": _VERSION, "method": setting}
        identity["splits"] = {role: task.part(role) for role in task.globs}
        identity |= {"recipe": asdict(task.recipe)} if setting in PUBLISHED else {}
        identity |= {"seeds": list(seeds)} if setting == PUBLISHED[0] else {}
        folder = results / task.key / encoded.name / setting
        run = RunFolder(folder, identity, task.scorer.fits)
        try:
            run.peek()
        except RecordError as error:
            why = "an encoder or task file that changed, another --limit, --mini or --seeds wants another --results"
            raise RecordError(f"{error}; {why}") from None
        with run:
            if run.records and run.run["samples"] == [id_ for id_, one in run.records.items() if one.answered]:
                say(f"{folder}: complete; nothing to do")
            else:
                predicted = _predicted(encoded, setting, seeds, once)
                records = _records(encoded, predicted, published=setting in PUBLISHED)
                facts = _facts(encoded) | {"method": setting, "samples": [one.id for one in records]}
                run.write_run(facts)
                for one in records:
                    if one != run.records.get(one.id):
                        run.append(one)
        yield score(folder)


def settings_of(task: EncoderTask, protocol: str, say: Callable[[str], None] = lambda _line: None) -> list[str]:
    """Return the probes that a task has."""
    settings = [one for one in PROTOCOLS[protocol] if task.one_label or not one.startswith("knn")]
    settings = [one for one in settings if task.recipe.knn or one != PUBLISHED[1]]
    if not task.in_release:
        if protocol != "standard":
            say(f"{task.name}: not a task of X-ARES 0.1.3, which has no figure to compare with; standard only")
        settings = [one for one in settings if one in STANDARD]
    if task.note:
        say(task.note)
        settings = [one for one in settings if one in PUBLISHED]
    return settings


def _facts_of(clip: Clip) -> list[Any]:
    return [clip.facts] if clip.facts else []  # clips without any keep the hash that they have on record


def _facts(encoded: Encoded) -> dict[str, Any]:
    return {
        "task": encoded.task.key,
        "model": encoded.name,
        "checkpoint": encoded.name,
        "checkpoint_name": encoded.name,
        "settings": {"seed": 42},
        "data_folder": str(encoded.data.folder),
        "bad_rows": [str(row) for row in encoded.data.bad_rows],
        "environment": environment(),
        "sessions": [{"started": now()}],
        **encoded.facts,
        "note": "; ".join(
            filter(None, [encoded.task.note, "" if encoded.data.clustered else _ALONE, encoded.facts["note"]])
        ),
    }


def _targets(task: EncoderTask, data: Dataset, clips: Sequence[Clip]) -> Integers:
    places = {label: place for place, label in enumerate(data.classes)}
    if task.one_label:
        return np.array([places[clip.labels[0]] for clip in clips])
    if not places:
        return np.zeros(len(clips), dtype=np.int64)  # all alike
    hot = np.zeros((len(clips), len(places)), dtype=np.int64)
    for row, clip in zip(hot, clips, strict=True):
        row[[places[label] for label in clip.labels]] = 1
    return hot


def standard_splits(
    task: EncoderTask, clips: Sequence[Clip], targets: Integers, say: Callable[[str], None]
) -> tuple[list[str], list[Split]]:
    """Return the part of each clip, and the splits of the corrected probes; no cluster is on both sides of one.

    A task's folds rotate, the next one validating. Given parts stay; where there is none to validate on, 15 % of train
    are held out, in whole clusters. Parts that share clusters, or have no third for validation, are drawn anew: five
    folds of whole clusters.
    """
    parts, clusters = [clip.part for clip in clips], [clip.cluster for clip in clips]
    tested = {(clip.cluster, clip.part if task.folds else clip.part == "test") for clip in clips}
    why = "share clusters" if len(tested) > len({*clusters}) else ""
    if (task.folds and len(task.parts) < _FEWEST) or not (task.folds or "train" in parts):
        why = f"are {len(task.parts)}, of which none is left to validate on"
    if why:
        say(f"{task.name}: its parts {why}; standard draws {_FOLDS} folds of whole clusters instead")
        parts = grouped(clusters, _FOLDS)
        return parts, rotated(sorted({*parts}))
    if task.folds:
        return parts, rotated([*task.parts])
    if "valid" not in parts:
        train = [place for place, part in enumerate(parts) if part == "train"]
        held = held_out([clusters[place] for place in train], targets[train])
        for place, out in zip(train, held, strict=True):
            parts[place] = "valid" if out else "train"
    return parts, [Split(("train",), "valid", "test")]


Predicted = tuple[Clip, str, Mapping[str, Any]]
"""A test clip, a probe's reply to it, and what a scorer has to know of it."""


def _predicted(encoded: Encoded, setting: str, seeds: Sequence[int], say: Callable[[str], None]) -> list[Predicted]:
    """Fit one probe; return its reply to each test clip. A clip that X-ARES counts twice is there twice."""
    task, labels, released = encoded.task, encoded.data.classes, setting in PUBLISHED
    clips, embeddings = encoded.released() if released else encoded.own()
    targets = _targets(task, encoded.data, clips)
    if released:
        parts, splits = [clip.part for clip in clips], published_splits(task)
    else:
        parts, splits = standard_splits(task, clips, targets, say)
    if isinstance(task, GradedTask):
        return _graded(task, clips, embeddings, np.array(parts), splits)
    if isinstance(task, FramedTask):
        return _framed(encoded, task, clips, embeddings, np.array(parts), splits, seeds if released else (), say)
    given = Clips(embeddings, targets, np.array(parts))
    last: list[list[str]] = []
    if setting == PUBLISHED[0]:
        recipe = task.recipe
        trained = published.linear_probe(
            given, splits, epochs=recipe.epochs, batch=recipe.batch, lr=recipe.lr, seeds=seeds
        )
        rows, scores = trained.rows, softmax(trained.logits, axis=-1) if not task.multi_label else trained.logits
        last = [[labels[one] for one in row] for row in trained.last_logits.argmax(axis=-1).T]
    else:
        found = _PROBES[setting](given, splits)
        rows, scores = found.rows, found.scores[None]
        scores = softmax(scores, axis=-1) if setting == "linear" and not task.multi_label else scores
    by_clip, tested = scores.swapaxes(0, 1), [clips[row] for row in rows]
    places = {label: place for place, label in enumerate(labels)}
    known: list[dict[str, Any]] = [{"answer": "; ".join(one.labels), "classes": len(places)} for one in tested]
    if task.multi_label:
        replies = [scores_to_reply(one) for one in by_clip]
        known = [
            one | {"positives": [places[label] for label in clip.labels]}
            for one, clip in zip(known, tested, strict=True)
        ]
    else:
        best = [[(labels[seed.argmax()], float(seed.max())) for seed in one] for one in by_clip]
        replies = [labels_to_reply(*pair) for pair in zip(best, last or [[] for _ in best], strict=True)]
    return [*zip(tested, replies, known, strict=True)]


def _graded(
    task: GradedTask, clips: Sequence[Clip], embeddings: Floats, parts: npt.NDArray[np.str_], splits: Sequence[Split]
) -> list[Predicted]:
    """Predict the grades that every clip has."""
    grades = np.array([clip.facts for clip in clips])
    whole = np.flatnonzero(~np.isnan(grades).any(axis=0))
    names = [task.grades[place] for place in whole]
    found = grade_probe(embeddings, grades[:, whole], parts, splits)
    predicted: list[Predicted] = []
    for row, values, spreads in zip(found.rows, found.values, found.spreads, strict=True):
        true = grades[row, whole].tolist()
        said = ", ".join(f"{name} {value:g}" for name, value in zip(names, true, strict=True))
        known = {"answer": said, "grades": names, "values": true, "spreads": spreads.tolist()}
        predicted.append((clips[row], grades_to_reply(values), known))
    return predicted


def _framed(
    encoded: Encoded, task: FramedTask, clips: Sequence[Clip], frames: Sequence[Floats], parts: npt.NDArray[np.str_],
    splits: Sequence[Split], seeds: Sequence[int], say: Callable[[str], None]
) -> list[Predicted]:  # fmt: skip
    """Label frames; with seeds as X-ARES does."""
    hop, labels = encoded.hop, [one for one in encoded.data.classes if not (seeds and one in task.unreleased)]
    if dropped := sum(label not in labels for clip in clips for *_, label in clip.facts):
        odd = ", ".join(sorted(task.unreleased))
        say(f"{task.name}: as_published leaves out {counted(dropped, 'event')}: X-ARES has no class for {odd}")
    active = [
        activity(one.facts, labels, hop, len(its), task.until, released=bool(seeds))
        for one, its in zip(clips, frames, strict=True)
    ]
    given = Framed(frames, active, parts, columns(task.segment, hop), task.average == "macro")
    found = list[tuple[int, npt.NDArray[np.int64], list[int] | None]]()
    timed = task.onset > 0 and hop <= 1000 * task.onset and not seeds
    if seeds:
        (split,) = splits
        tested = given.rows(split.test)
        counts = published_frames(given, split, task.recipe, seeds=seeds, positive=task.pos_weight).swapaxes(0, 1)
        found += [(row, each, None) for row, each in zip(tested, counts, strict=True)]
    else:
        for row, predicted in frame_ridge(given, splits):
            counts = counts_of(*(segments(each, given.segment) for each in (predicted, active[row])))
            onsets = onsets_in(predicted, clips[row].facts, labels, hop, task.onset) if timed else None
            found.append((row, counts[None], onsets))
    known = {"labels": labels, "average": task.average}
    return [
        (
            clips[row],
            counts_to_reply(
                [{labels[at]: one[at].tolist() for at in one.any(axis=1).nonzero()[0]} for one in each], on
            ),
            {"answer": "; ".join(clips[row].labels), **known},
        )
        for row, each, on in found
    ]


_PROBES: Mapping[str, Callable[[Clips, Sequence[Split]], Predictions]] = {
    "linear": standard.linear_probe,
    "knn": standard.knn,
    "knn-centred": partial(standard.knn, centred=True),
    PUBLISHED[1]: published.knn,
}


def published_splits(task: EncoderTask) -> list[Split]:
    """Return X-ARES' splits: it validates on the test fold, and where it has no validation part on test."""
    if task.folds:
        return rotated([*task.parts], as_published=True)
    return [Split((task.part("train"),), task.part("valid"), task.part("test"))]


def _records(encoded: Encoded, predicted: Sequence[Predicted], *, published: bool) -> list[Record]:
    """Return a record for each prediction, and for each test clip that failed."""
    found: dict[str, Record] = {}
    for clip, reply, known in predicted:
        groups = {PART: clip.part} | ({PROTOCOL: XARES} if published else {})
        id_ = next(name for name in chain([clip.id], (f"{clip.id}#{n}" for n in count(2))) if name not in found)
        seconds = round(encoded.seconds.get(clip.id, 0.0), 3)
        found[id_] = Record(id_, clip.cluster, reply=reply, reference=dict(known), groups=groups, clip_seconds=seconds)
    tested = {clip.part for clip, _, _ in predicted}
    lost = [clip for clip in encoded.data.clips if clip.id in encoded.failed and clip.part in tested]
    return [*found.values(), *(Record(clip.id, clip.cluster, error=encoded.failed[clip.id]) for clip in lost)]
