"""Tasks for audio encoders: clips in webdataset tars, labels of the clips, and how X-ARES trains its probe on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

from audiomarathon.audio.member import Member
from audiomarathon.benchmarks.rows import MAX_ID_LENGTH, shown
from audiomarathon.benchmarks.selection import draw
from audiomarathon.benchmarks.shards import check_shards
from audiomarathon.benchmarks.task import BadRow, Filters, Loaded, Sample, Task, storable
from audiomarathon.errors import DataError, MissingDataError, SettingsError, told
from audiomarathon.scoring.scorer import Scorer
from audiomarathon.wings.encoders.scoring.probe import Classified, Tagged
from audiomarathon.wings.encoders.xares.tars import read_tar

#: Function from a clip's JSON to its label, or to its labels in a multi-label task.
LabelRule = Callable[[Any], str | tuple[str, ...]]

_NAMED = 5  # limit of labels shown in a message
_PART = re.compile(r"fold-([^-]+)-|^(train|valid|test)")  # part in the default names of tars
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
UNUSABLE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, AssertionError)
"""Errors that a rule for labels may raise on unusable JSON."""


@dataclass(frozen=True)
class Recipe:
    """How X-ARES encodes a task's clips and trains its linear probe on them.

    Attributes
    ----------
    crop
        Length in seconds of the pieces into which a clip is cut; None keeps clips whole.
    weight
        Weight of the task in the published mean.
    """

    batch: int = 32
    epochs: int = 10
    lr: float = 1e-3
    crop: float | None = None
    encode_batch: int = 16
    knn: bool = True
    weight: int = 0


@dataclass(frozen=True, slots=True)
class Clip:
    """One clip of an encoder task.

    The `id` is "<part>/<key>" (part of the data, such as "train" or a fold; key in the tar), unique in the task. Only
    multi-label tasks have several `labels`. `facts` holds other facts, such as grades or events.
    """

    id: str
    part: str
    audio: Member
    labels: tuple[str, ...]
    cluster: str
    facts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """The clips of an encoder task, as read from its tars.

    Attributes
    ----------
    clips
        Clips in stored order: parts in the task's order, tars by name, members in order.
    classes
        Sorted labels of all data, even if only some clips were taken.
    rows
        Number of items in all data (mostly one per clip), plus the number of unusable clips.
    clustered
        Whether the task's rule gives every clip a cluster (a group of dependent clips, such as a speaker's); a clip
        without one is its own cluster.
    """

    folder: Path
    clips: tuple[Clip, ...]
    classes: tuple[str, ...]
    bad_rows: tuple[BadRow, ...]
    clustered: bool
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class EncoderTask(Task):
    """A task for encoders, as in X-ARES: a probe predicts the label of each clip.

    Attributes
    ----------
    globs
        {role: glob of its tars}. Roles are train, valid and test, or the folds. `{00..02}` stands for 00, 01 and 02.
    mini
        {role: glob} for the roles whose tars differ in the small variant of the data.
    label
        The JSON field with the label (in a multi-label task joined by `;`), or a rule; "" if clips have no labels.
    classes
        All labels that clips may have, or their number.
    names
        {label: readable name}, for labels that are numbers or letters.
    kind
        Kind of a probe's predictions: "labels", or the `kind` of a derived class.
    framed
        Whether probes read the frames of an embedding, instead of their mean.
    labelled
        Whether X-ARES turns a clip's JSON into the probe's targets, instead of reading it unchanged.
    exact
        Whether every class must occur in the data.
    cluster, cluster_fields
        How to find a clip's cluster (group of dependent clips, such as a speaker's): the first group of the pattern
        `cluster`, searched in the clip's key; else the first JSON field of `cluster_fields` that exists.
    n_test
        Published number of test clips; with folds, the number in one fold.
    in_release
        Whether X-ARES 0.1.3 has the task.
    swapped
        Whether X-ARES validates on the test clips of the original corpus and tests on its validation clips.
    made
        Function from a user's task file that turns a clip's key and JSON into the JSON of each item made from it; None
        if each clip is one item.
    """

    key: str
    formal_name: str
    title: str
    domain: str
    globs: Mapping[str, str] = field(hash=False)
    label: str | LabelRule = ""
    classes: int | frozenset[str] = 0
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    aliases: tuple[str, ...] = ()
    folds: bool = False
    multi_label: bool = False
    recipe: Recipe = Recipe()
    mini: Mapping[str, str] = field(default_factory=dict, hash=False)
    cluster: str = ""
    cluster_fields: tuple[str, ...] = ()
    n_test: int = 0
    zenodo: str = ""
    private: bool = False
    disabled: bool = False
    in_release: bool = True
    swapped: bool = False
    made: Callable[[str, Any], Sequence[Any]] | None = None
    exact: bool = True
    max_new_tokens: int = 0
    own_command: str = "audiomarathon encoder run ENCODER --tasks NAME"
    kind: ClassVar[str] = "labels"
    framed: ClassVar[bool] = False
    labelled: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The task's key without the benchmark's name; also the name of the folder with the task's data."""
        return self.key.rpartition("/")[2]

    @property
    def scorer(self) -> Scorer:  # type: ignore[override]  # follows from another field
        """The scorer: accuracy, or mean average precision if clips can have several labels."""
        return Tagged() if self.multi_label else Classified()

    @property
    def one_label(self) -> bool:
        """Whether each clip has exactly one label, as kNN probes need."""
        return bool(self.label) and not self.multi_label

    @property
    def lacking(self) -> str:
        """Why X-ARES' probes are not run on this task; "" if they are."""
        return "" if self.in_release else "not a task of X-ARES 0.1.3, which has no figure to compare with"

    def made_with(self, *, released: bool) -> dict[str, str]:  # noqa: ARG002
        """Return the facts on which a probe's predictions depend, besides those of all tasks, as {name: text}.

        If `released`, the facts are for X-ARES' own probe, else for our corrected probe.
        """
        return {}

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the data as {part: glob of its tars}; roles with the same glob are one part (:meth:`part`)."""
        return {self.part(role): glob for role, glob in self.globs.items()}

    def part(self, role: str) -> str:
        """Return the name of the part of the data that contains a role's clips.

        Roles (train, valid, test) with the same glob are one part, called "test" if that is one of them, else like the
        first.
        """
        same = [other for other, glob in self.globs.items() if glob == self.globs[role]]
        return role if self.folds else "test" if "test" in same else same[0]

    @property
    def note(self) -> str:
        """A warning about the task for readers of its scores; "" for none."""
        alone = not self.folds and len(self.parts) == 1
        return f"{self.name}: its test clips are its training clips; use protocol as_published only" if alone else ""

    def find(self, root: Path) -> Path:
        """Return the folder with the task's tars: `<root>/<name>`, `<root>/xares/<name>`, or the root itself.

        Raises
        ------
        MissingDataError
            No such folder has a tar of the task; the message says how to get the data.
        """
        for folder in (root / self.name, root / self.key, root):
            if any(tars_of(folder, glob) for glob in self.globs.values()):
                return folder.absolute()
        raise self._missing(root / self.name, *self.globs.values())

    def missing(self, folder: Path) -> list[str]:
        """Return the task's globs that match no tar in `folder`; each number of `{00..02}` is a separate glob."""
        globs = [text for glob in dict.fromkeys(self.globs.values()) for text in written_out(glob)]
        return [glob for glob in globs if not tars_of(folder, glob)]

    def placed(self, root: Path) -> bool:
        """Tell whether the task's folder has a tar for every part, and no unfinished download."""
        folder = root / self.name
        return not self.missing(folder) and not [*folder.glob(".*.partial")]

    def read(self, root: Path, *, limit: int = 0, mini: bool = False) -> Dataset:
        """Index the task's tars, read every label, and return the clips.

        Parameters
        ----------
        limit
            Number of clips to take from each part, evenly from all classes and at least one of each; 0 takes all. A
            smaller limit takes a subset of the clips of a larger limit.

        Raises
        ------
        DataError
            Tars or shards of a series are missing, a part has no usable clip, or the number of classes is wrong.
        """
        if limit < 0:
            raise SettingsError(f"limit {limit}: must be 0 (all) or more")
        folder = self.find(root)
        chosen = {role: self.mini.get(role, glob) if mini else glob for role, glob in self.globs.items()}
        clips: dict[str, Clip] = {}
        bad: list[BadRow] = []
        clustered = True
        for part, glob in {self.part(role): glob for role, glob in chosen.items()}.items():
            before = len(clips)
            if lost := [text for text in written_out(glob) if not tars_of(folder, text)]:
                raise self._missing(folder, *lost)
            check_shards(tars := tars_of(folder, glob))
            for tar in tars:
                entries, flaws = read_tar(tar)
                bad += flaws
                for entry in entries:
                    try:
                        items = [*self.items(entry.key, entry.meta)]
                    except ValueError as error:
                        bad.append(BadRow(tar, entry.row, str(error)))
                        continue
                    id_ = f"{part}/{entry.key}"
                    if first := clips.get(id_):  # webdataset allows the same key in another tar of the part
                        if items and first.labels == items[0][1] and _same_bytes(first.audio, entry.audio):
                            twice = (
                                f"{entry.key!r} is also in {first.audio.archive.name}, with the same audio and labels"
                            )
                            bad.append(BadRow(tar, entry.row, twice))
                            continue
                        id_ = f"{part}/{tar.stem}/{entry.key}"
                    for mark, labels, cluster, facts in items:
                        clustered &= bool(cluster)
                        clips[id_ + mark] = Clip(id_ + mark, part, entry.audio, labels, cluster or id_, facts)
            if len(clips) == before:
                why = f"; first of {len(bad):,} bad rows: {bad[0]}" if bad else ""
                raise DataError(f"{self.key}: no usable clip in {folder / glob}{why}")
        classes = self._classes(folder, clips.values(), mini)
        kept = limited(clips.values(), limit) if limit else tuple(clips.values())
        return Dataset(folder, kept, classes, tuple(bad), clustered, len(clips) + len(bad))

    def described(self, key: str, meta: Any) -> tuple[tuple[str, ...], str]:
        """Return (labels of a clip, its cluster), from its key and its JSON.

        A cluster is a group of dependent clips, such as a speaker's; it is "" if none of the task's rules applies.

        Raises
        ------
        ValueError
            The label is missing or not allowed.
        """
        try:
            labels = self._labels(meta)
        except UNUSABLE as error:
            raise ValueError(f"{key!r} has no usable label: {told(error)}") from error
        if self.cluster and (match := re.search(self.cluster, key)):
            return labels, match[1]
        fields = meta if isinstance(meta, dict) else {}
        return labels, next((str(fields[name]) for name in self.cluster_fields if name in fields), "")

    def items(self, key: str, meta: Any) -> Iterator[tuple[str, tuple[str, ...], str, tuple[Any, ...]]]:
        """Yield (ending for the clip's id, labels, cluster, facts) of each item of a clip.

        A clip is one item, unless the functions of a user's task file make several of it.

        Raises
        ------
        ValueError
            The label is missing or not allowed.
        """
        for number, clip_meta in enumerate(self.made(key, meta) if self.made else (meta,), start=1):
            yield f"#{number}" if number > 1 else "", *self.described(key, clip_meta), self.facts(clip_meta)

    def facts(self, meta: Any) -> tuple[Any, ...]:  # noqa: ARG002
        """Return the values to predict for a clip that are not labels (grades, events, captions, …), from its JSON.

        Return () for tasks of labels.
        """
        return ()

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:  # noqa: ARG002
        """Return the clips of all the task's tars as samples without prompts, so that the report can play them.

        If the task has no globs, read the tars with X-ARES' default names.
        """
        if not self.globs:
            check_shards(tars := sorted(folder.glob("*.tar")))
            samples = [
                Sample(f"{match[1] or match[2]}/{entry.key}", (cast("Path", entry.audio),), "", "", entry.key)
                for tar in tars
                if (match := _PART.search(tar.name))
                for entry in read_tar(tar)[0]
            ]
            return Loaded(folder, tuple(samples))
        clips = self.read(folder).clips
        return Loaded(
            folder,
            tuple(
                Sample(clip.id, (cast("Path", clip.audio),), "", "; ".join(clip.labels), clip.cluster) for clip in clips
            ),
        )

    def prompt(self, sample: Sample) -> str:  # noqa: ARG002
        """Return "", since encoders get no prompt."""
        return ""

    def _missing(self, folder: Path, *globs: str) -> MissingDataError:
        named = ", ".join(dict.fromkeys(globs))
        if self.private:
            return MissingDataError(f"{self.name}: private task, no public data; put its tars ({named}) into {folder}")
        if not self.key.startswith("xares/"):
            there = ", ".join(sorted(tar.name for tar in folder.glob("*.tar"))[:_NAMED]) or "none"
            return MissingDataError(f"{folder}: no {named}; tars there: {there}")
        return MissingDataError(f"{folder}: no {named}; next: audiomarathon encoder download {self.name}")

    def _named(self, meta: Any) -> set[str]:
        if not self.label:
            self.facts(meta)  # raises an error for unusable facts
            return set()
        if isinstance(self.label, str):
            value = meta[self.label]
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if not isinstance(value, str | int) or value == "":
                raise TypeError(f"{self.label!r} is {value!r}; allowed: text or a whole number")
            return set(str(value).split(";")) if self.multi_label else {str(value)}
        value = self.label(meta)
        return {value} if isinstance(value, str) else {*value}

    def _labels(self, meta: Any) -> tuple[str, ...]:
        labels = self._named(meta)
        if odd := {label for label in labels if not label.isprintable() or len(label) > MAX_ID_LENGTH}:
            raise ValueError(f"{shown(min(odd))} is not one line of at most {MAX_ID_LENGTH} characters")
        if isinstance(self.classes, frozenset) and (odd := labels - self.classes):
            raise ValueError(f"{min(odd)!r} is none of the task's {len(self.classes)} classes")
        return tuple(sorted(map(storable, labels)))

    def _classes(self, folder: Path, clips: Iterable[Clip], mini: bool) -> tuple[str, ...]:
        """Return the sorted classes of the clips; raise :class:`DataError` if there are too few or too many."""
        counts = Counter(label for clip in clips for label in clip.labels)
        known = self.classes if isinstance(self.classes, frozenset) else frozenset(counts)
        wanted = self.classes if isinstance(self.classes, int) else len(known)
        if len(counts) > wanted or (len(counts) < wanted and self.exact and not mini):
            rare = sorted(counts, key=lambda label: (counts[label], label))[:_NAMED]
            odd = f"missing: {', '.join(sorted(lack)[:_NAMED])}" if (lack := known - {*counts}) else f"rarest: {rare}"
            raise DataError(f"{self.key}: {len(counts)} classes in {folder}, must be {wanted}; {odd}")
        return tuple(sorted(known))


def _same_bytes(member: Member, other: Member) -> bool:
    return member.size == other.size and member.read_bytes() == other.read_bytes()


def tars_of(folder: Path, glob: str) -> list[Path]:
    """Return the tars in a folder that match a glob, sorted; `{00..02}` in a glob stands for 00, 01 and 02."""
    return [tar for text in written_out(glob) for tar in sorted(folder.glob(text))] if folder.is_dir() else []


def written_out(glob: str) -> list[str]:
    """Return the globs that `{00..02}` in a glob stands for: one each with 00, 01 and 02."""
    if not (braces := _BRACES.search(glob)):
        return [glob]
    numbers = range(int(braces[1]), int(braces[2]) + 1)
    texts = [f"{glob[: braces.start()]}{number:0{len(braces[1])}}{glob[braces.end() :]}" for number in numbers]
    return [name for text in texts for name in written_out(text)]


def limited(clips: Collection[Clip], limit: int) -> tuple[Clip, ...]:
    """Choose `limit` clips of each part, spread evenly over the classes; return them in the given order.

    At least one clip of each class is chosen, even if there are more classes than `limit`.

    Clips are ranked within their class by a hash of their id, and chosen by rank; a clip with several labels has its
    best rank.
    """
    order = sorted(clips, key=lambda clip: draw(0, clip.id))
    counts: Counter[tuple[str, str]] = Counter()
    ranks: dict[str, int] = {}
    for clip in order:
        seen = [(clip.part, label) for label in clip.labels or ("",)]
        ranks[clip.id] = min(counts[label] for label in seen)
        counts.update(seen)
    taken: set[str] = set()
    sizes: Counter[str] = Counter()
    for clip in sorted(order, key=lambda clip: ranks[clip.id]):  # stable: by hash within a rank
        if ranks[clip.id] == 0 or sizes[clip.part] < limit:
            taken.add(clip.id)
            sizes[clip.part] += 1
    return tuple(clip for clip in clips if clip.id in taken)
