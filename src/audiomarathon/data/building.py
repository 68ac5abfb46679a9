"""Build a task's folder from a raw corpus: join its clips, group by group, and write the task's metadata.

Listings are sorted, chance is seeded, and each group's clips depend on that group alone; so the same corpus gives the
same bytes, with any number of jobs and however often the build was interrupted.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile
from tqdm import tqdm

from audiomarathon.audio import probe
from audiomarathon.corpora.corpus import Corpus, Group, Row, Source
from audiomarathon.data.joining import Joint, Piece, Plan, Range, length_at, plan, write
from audiomarathon.data.ledger import Ledger, write_json
from audiomarathon.errors import AudioError, DataError
from audiomarathon.tasks import get_task
from audiomarathon.tasks.manifest import FILE_NAME as FACTS_FILE
from audiomarathon.tasks.selection import draw

TAIL = "a tail too short for a clip"
TOO_LONG = "longer than a clip may be"


@dataclass(frozen=True)
class Joining:
    """How clips are joined: the range of lengths and what lies between two clips, in seconds; the rate in Hz."""

    low: float
    high: float
    gap: float
    crossfade: float
    rate: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise DataError(f"--min {self.low:g} --max {self.high:g}: expected 0 < min <= max, in seconds")
        if self.gap < 0 or self.crossfade < 0 or (self.gap and self.crossfade):
            raise DataError(f"--gap {self.gap:g} --crossfade {self.crossfade:g}: expected one of them, 0 or more")
        if not 1_000 <= self.rate <= 192_000:
            raise DataError(f"--rate {self.rate}: expected 1000 to 192000 Hz")

    @property
    def settings(self) -> dict[str, float]:
        """By the names under which they stand in `build.json`."""
        lengths = {"min_seconds": self.low, "max_seconds": self.high}
        return {**lengths, "gap_seconds": self.gap, "crossfade_seconds": self.crossfade, "rate": self.rate}


@dataclass(frozen=True)
class Built:
    """What a build did.

    Attributes
    ----------
    clips, new
        Clips in the folder, and how many of them this run made.
    seconds
        Their length in all.
    sources
        Source clips in them.
    left_out
        (source, reason) of those in none.
    """

    clips: int
    new: int
    seconds: float
    sources: int
    left_out: tuple[tuple[str, str], ...]


def build(
    corpus: Corpus, joining: Joining, folder: Path, *, limit: int = 0, jobs: int = 1, progress: bool = True
) -> Built:
    """Build a task's folder.

    Parameters
    ----------
    corpus
        What to read.
    joining
        Lengths, gap or crossfade, rate.
    folder
        Where to write; an interrupted build of the same settings is continued there.
    limit
        How many clips to make, one of each group in turn, in a seeded order of groups; 0 makes all.
    jobs
        Groups to work on at the same time.
    progress
        Show a progress bar.

    Raises
    ------
    DataError
        The corpus is not laid out as expected, no clip can be made of it, or the folder cannot be used.
    """
    if joining.low == joining.high and not corpus.cut:
        raise DataError(f"{corpus.title}: clips are joined whole, so --min must be less than --max")
    settings = {"task": corpus.task, "seed": corpus.seed, **joining.settings, **corpus.options}
    with Ledger(folder, settings, limit) as ledger:
        groups = corpus.groups()
        for file, reason in corpus.left_out:
            ledger.leave_out(file, reason)
        total = limit or len(groups)
        layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        with tqdm(total=total, desc=corpus.title, disable=not progress, bar_format=layout) as bar:
            _make(Builder(corpus, joining, ledger, (lambda _: None) if limit else bar.update), groups, limit, jobs, bar)
        return _finish(corpus, joining, folder, ledger)


def _make(builder: Builder, groups: list[Group], limit: int, jobs: int, bar: tqdm[Any]) -> None:
    if limit:
        order = sorted(groups, key=lambda group: draw(builder.corpus.seed, "group", group.name))
        for _ in itertools.islice(_in_turns([builder.clips(group) for group in order]), limit):
            bar.update()
        return
    pool = ThreadPoolExecutor(jobs)
    try:
        for _ in pool.map(lambda group: deque(builder.clips(group), 0), groups):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _in_turns(makers: Iterable[Iterator[str]]) -> Iterator[str]:
    """Yield the first of each, then the second of each that has one, and so on."""
    waiting = deque(makers)
    while waiting:
        maker = waiting.popleft()
        if (made := next(maker, None)) is not None:
            yield made
            waiting.append(maker)


def _finish(corpus: Corpus, joining: Joining, folder: Path, ledger: Ledger) -> Built:
    for clip, reason in corpus.write(folder, ledger.rows()):
        ledger.leave_out(clip, reason)
    ledger.finish()
    rows = [(row["seconds"], len(row["sources"])) for row in ledger.rows()]
    left_out = tuple((row["path"], row["reason"]) for row in ledger.left_out)
    if not rows:
        told = f", such as {left_out[0][0]}: {left_out[0][1]}" if left_out else ""
        raise DataError(f"{corpus.title}: no clip could be made; {len(left_out)} sources left out{told}")
    task = get_task(corpus.task)
    loaded = task.load(folder)
    if loaded.bad_rows:
        raise DataError(f"{corpus.title}: what was built is not what {task.key} expects: {loaded.bad_rows[0]}")
    expected = {"count": len(loaded.samples), "min_seconds": joining.low, "max_seconds": joining.high}
    facts = {"name": f"built from {corpus.title}", "licence": "that of the raw corpus", "tasks": {task.key: expected}}
    write_json(folder / FACTS_FILE, facts)
    seconds, sources = (sum(column) for column in zip(*rows, strict=True))
    return Built(len(rows), ledger.added, seconds, int(sources), left_out)


class Builder:
    """Makes the clips of one corpus, group by group."""

    def __init__(self, corpus: Corpus, joining: Joining, ledger: Ledger, advance: Callable[[float], object]) -> None:
        self.corpus = corpus
        self.joining = joining
        self.ledger = ledger
        self.advance = advance
        self.joint = Joint(round(joining.gap * joining.rate), round(joining.crossfade * joining.rate))

    def clips(self, group: Group) -> Iterator[str]:
        """Make a group's clips one after the other; yield their paths."""
        sources = self.corpus.sources(group)
        step = 1 / max(1, len(sources))
        with tempfile.TemporaryDirectory(prefix="audiomarathon-") as scratch:
            index, path = 0, self.corpus.place(group, 0)
            if len(sources) == 1 and self.ledger.finished(path, lambda row: _is_alone_in(row, sources[0])):
                self.advance(1)
                yield path  # without its audio, which may have to be spoken first
                return
            pending = _Pending(self._pieces(sources, Path(scratch), step))
            while True:
                path = self.corpus.place(group, index)
                joined, used = plan((piece for _, piece in pending), self._range(path), self.joint)
                if not used:
                    return
                if joined is None:
                    self._leave_out(pending.taken(used))
                elif (broken := self._write(group, path, joined, pending)) is not None:
                    pending.remove(broken)  # and this clip is planned again without it
                    used = 1
                else:
                    pending.taken(used)
                    index += 1
                    yield path
                self.advance(step * used)

    def _pieces(self, sources: Iterable[Source], scratch: Path, step: float) -> Iterator[tuple[Source, Piece]]:
        """Yield what can be read; leave out and name what cannot."""
        for source in sources:
            try:
                size = source.path.stat().st_size
                if reason := self.ledger.bad(source.name, size):
                    raise AudioError(source.path, reason)
                audio = self.corpus.audio(source, scratch)
                info = probe(audio)
            except AudioError as error:
                self._broken(source, error.reason)
                self.advance(step)
            else:
                yield source, Piece(audio, length_at(info.frames, info.sampling_rate, self.joining.rate))

    def _range(self, path: str) -> Range:
        low, high = (round(seconds * self.joining.rate) for seconds in (self.joining.low, self.joining.high))
        return Range(low, high, self.corpus.chance("length", path).randint(low, high), self.corpus.cut)

    def _write(self, group: Group, path: str, joined: Plan, pending: _Pending) -> int | None:
        """Write a clip unless it is there; return which of its sources cannot be decoded, None where all can."""
        row = self._row(group, joined, [source for source, _ in itertools.islice(pending, len(joined.parts))])
        if self.ledger.finished(path, lambda old: {name: old.get(name) for name in row} == row):
            return None
        partial = self.ledger.partial(path)
        try:
            write(joined, partial, self.joining.rate, self.corpus.container)
        except AudioError as error:
            partial.unlink()
            broken = next(i for i, part in enumerate(joined.parts) if part.piece.path == error.path)
            self._broken(next(itertools.islice(pending, broken, None))[0], error.reason)
            return broken
        except soundfile.LibsndfileError as error:
            raise DataError(f"{partial} cannot be written ({error.error_string}); is the disk full?") from error
        self.ledger.add(path, partial, row)
        return None

    def _row(self, group: Group, joined: Plan, sources: list[Source]) -> Row:
        """Return a clip's row of the manifest: what is where in it, in samples at its rate."""
        rate = self.joining.rate
        parts = [
            {
                "path": source.name,
                "offset": part.offset,
                "frames": part.frames,
                "source_frames": part.piece.frames,
                "source_bytes": source.path.stat().st_size,
                "facts": dict(source.facts),
            }
            for source, part in zip(sources, joined.parts, strict=True)
        ]
        row = {
            "group": group.name,
            "facts": dict(group.facts),
            "rate": rate,
            "frames": joined.frames,
            "seconds": joined.frames / rate,
            "seed": self.corpus.seed,
            "gap": self.joint.gap,
            "crossfade": self.joint.crossfade,
            "sources": parts,
        }
        return dict(json.loads(json.dumps(row)))  # as the manifest gives it back

    def _leave_out(self, pieces: list[tuple[Source, Piece]]) -> None:
        high = round(self.joining.high * self.joining.rate)
        for source, piece in pieces:
            reason = TOO_LONG if piece.frames > high and not self.corpus.cut else TAIL
            self.ledger.leave_out(source.name, reason)

    def _broken(self, source: Source, reason: str) -> None:
        size = source.path.stat().st_size if source.path.is_file() else None
        self.ledger.leave_out(source.name, reason, fixed=True, size=size)
        tqdm.write(f"left out: {source.name}: {reason}")


class _Pending:
    """Pieces yet to be joined, drawn from a generator as far as somebody looks ahead."""

    def __init__(self, rest: Iterator[tuple[Source, Piece]]) -> None:
        self._rest = rest
        self._ready: list[tuple[Source, Piece]] = []

    def __iter__(self) -> Iterator[tuple[Source, Piece]]:
        yield from self._ready
        for following in self._rest:
            self._ready.append(following)
            yield following

    def taken(self, count: int) -> list[tuple[Source, Piece]]:
        """Remove the first pieces and return them."""
        first, self._ready = self._ready[:count], self._ready[count:]
        return first

    def remove(self, index: int) -> None:
        """Remove one piece."""
        del self._ready[index]


def _is_alone_in(row: Row, source: Source) -> bool:
    (first, *others) = row["sources"]
    return not others and (first["path"], first["source_bytes"]) == (source.name, source.path.stat().st_size)
