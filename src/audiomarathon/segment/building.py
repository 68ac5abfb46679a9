"""Build a task's folder from a raw corpus: join its clips, group by group, and write the task's metadata.

A group has source clips that may be joined, such as those of a speaker. File listings are sorted, randomness is seeded,
and a group's joined clips depend on that group alone. So the same corpus gives the same bytes, with any number of jobs
and after any number of interruptions.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from audiomarathon.audio.decode import probe
from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.manifest import FILE_NAME as FACTS_FILE
from audiomarathon.benchmarks.selection import draw
from audiomarathon.errors import AudioError, DataError
from audiomarathon.files import write_json
from audiomarathon.segment.build_log import BuildLog, build_log, same_as
from audiomarathon.segment.corpus import Corpus, Group, Row, Source
from audiomarathon.segment.joining import Joining, Piece, Plan, Span, length_at, plan, write

TAIL = "a tail too short for a clip"
TOO_LONG = "longer than a clip may be"

_Ready = tuple[Source, Piece]


def build(corpus: Corpus, joining: Joining, folder: Path, *, limit: int = 0, jobs: int = 1) -> str:
    """Build a task's data folder from a raw corpus; return a text for the user: clips, hours, and what was left out.

    Parameters
    ----------
    corpus
        The corpus to read.
    joining
        Settings: lengths, gap or crossfade, sampling rate.
    folder
        The output folder. An interrupted build with the same settings continues there.
    limit
        Number of joined clips to make, one from each group in turn, with the groups in a seeded order; 0 makes all.
    jobs
        Number of groups to build at the same time.

    Raises
    ------
    DataError
        The corpus has an unexpected layout, no clip can be made from it, or the folder cannot be used.
    """
    if joining.low == joining.high and not corpus.cut:
        raise DataError(f"{corpus.title}: clips are joined whole, so --min must be less than --max")
    if within := next((root for root in corpus.roots if folder.resolve().is_relative_to(root.resolve())), None):
        raise DataError(f"{folder} lies within the raw corpus {within}; name a folder outside")
    settings = {"task": corpus.task, "seed": corpus.seed, **joining.settings, **corpus.options}
    with build_log(folder, settings, limit) as log:
        groups = corpus.groups()
        names = Counter(group.name for group in groups)
        if twice := next((name for name, count in names.items() if count > 1), ""):
            raise DataError(f"{corpus.title}: the group {twice} occurs twice; name only one of its folders")
        layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        total = limit or len(groups)
        with tqdm(total=total, desc=corpus.title, disable=None, bar_format=layout) as bar:
            _make(_Builder(corpus, joining, log, (lambda _: None) if limit else bar.update), groups, limit, jobs, bar)
        rows = log.rows()
        for source, reason in (*corpus.left_out, *corpus.write(folder, rows)):
            log.leave_out(source, reason)
        summary = log.finish(corpus.task, f"{sum(len(row['sources']) for row in rows)} source clips")
        loaded = get_task(corpus.task).load(folder)
        if loaded.bad_rows:
            raise DataError(f"{corpus.title}: the task cannot read the folder that was built: {loaded.bad_rows[0]}")
        expected = {"count": len(loaded.samples), "min_seconds": joining.low, "max_seconds": joining.high}
        facts = {"name": f"built from {corpus.title}", "licence": "that of the raw corpus"}
        write_json(folder / FACTS_FILE, {**facts, "tasks": {corpus.task: expected}})
        return summary


def _make(builder: _Builder, groups: list[Group], limit: int, jobs: int, bar: tqdm[Any]) -> None:
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
        builder.stopped = True  # an interruption waits only for the clips being written
        pool.shutdown(cancel_futures=True)


def _in_turns(makers: Iterable[Iterator[str]]) -> Iterator[str]:
    """Yield from each iterator in turn: the first item of each, then the second of each that has one, and so on."""
    waiting = deque(makers)
    while waiting:
        maker = waiting.popleft()
        if (path := next(maker, None)) is not None:
            yield path
            waiting.append(maker)


@dataclass
class _Builder:
    """Builds the joined clips of a corpus, group by group.

    The builder calls `advance` with the share of a group done since the last call. Once `stopped` is set, no further
    clip is started.
    """

    corpus: Corpus
    joining: Joining
    log: BuildLog
    advance: Callable[[float], object]
    stopped: bool = False

    def clips(self, group: Group) -> Iterator[str]:
        """Build the joined clips of a group one after another; yield their paths."""
        sources = self.corpus.sources(group)
        with tempfile.TemporaryDirectory(prefix="audiomarathon-") as scratch:
            index, path = 0, self.corpus.place(group, 0)
            if len(sources) == 1 and self.log.finished(path, lambda row: _is_alone_in(row, group, sources[0])):
                self.advance(1)
                yield path  # the log suffices: to get the audio, a slow speech command may have to run
                return
            rest: Iterator[_Ready] = self._pieces(sources, Path(scratch))
            while not self.stopped:
                path = self.corpus.place(group, index)
                ahead, rest = itertools.tee(rest)
                span = self.joining.span(self.corpus.chance("length", path), cut=self.corpus.cut)
                joined, used = plan((piece for _, piece in ahead), span)
                if not used:
                    return
                taken = list(itertools.islice(rest, used))
                if joined is None:
                    self._leave_out(taken, span)
                elif (broken := self._write(group, path, joined, taken, span)) is not None:
                    del taken[broken]
                    rest = itertools.chain(taken, rest)  # plan the clip again without the broken source
                else:
                    index += 1
                    yield path

    def _pieces(self, sources: Sequence[Source], scratch: Path) -> Iterator[_Ready]:
        """Yield (source clip, its :class:`Piece`) of a group's readable clips; log and report the unreadable ones.

        Audio that must first be made (by a speech synthesiser) goes into the folder `scratch`.
        """
        seen: set[str] = set()
        for source in sources:
            try:
                if source.name in seen:
                    self.log.leave_out(source.name, "is listed twice")
                elif reason := self.log.bad(source.name, source.path):
                    self.log.leave_out(source.name, reason, source.path, fixed=True)
                else:
                    audio = self.corpus.audio(source, scratch)
                    info = probe(audio)
                    yield source, Piece(audio, length_at(info.frames, info.sampling_rate, self.joining.rate))
            except AudioError as error:
                self._broken(source, error.reason)
            except OSError as error:
                self._broken(source, f"cannot be read ({error.strerror or error})")
            finally:
                seen.add(source.name)
                self.advance(1 / len(sources))

    def _write(self, group: Group, path: str, joined: Plan, taken: Sequence[_Ready], span: Span) -> int | None:
        """Write a joined clip unless it exists; return the index in `taken` of an unreadable source clip, or None."""
        row = self._row(group, joined, taken, span)
        if self.log.finished(path, same_as(row)):
            return None
        partial = self.log.partial(path)
        try:
            write(joined, partial, self.joining.rate, self.corpus.container)
        except AudioError as error:
            broken = next(i for i, (_, piece) in enumerate(taken) if piece.path == error.path)
            self._broken(taken[broken][0], error.reason)
            return broken
        self.log.add(path, partial, row)
        return None

    def _row(self, group: Group, joined: Plan, taken: Sequence[_Ready], span: Span) -> Row:
        """Return a joined clip's row of the manifest, with its source clips and their positions in samples."""
        parts = [
            {
                "path": source.name,
                "offset": part.offset,
                "frames": part.frames,
                "source_frames": part.piece.frames,
                "source_bytes": source.path.stat().st_size,
                "facts": dict(source.facts),
            }
            for (source, _), part in zip(taken, joined.parts, strict=True)
        ]
        row = {
            "group": group.name,
            "facts": dict(group.facts),
            "rate": self.joining.rate,
            "frames": joined.frames,
            "seconds": joined.frames / self.joining.rate,
            "seed": self.corpus.seed,
            "gap": span.gap,
            "crossfade": span.crossfade,
            "sources": parts,
        }
        return dict(json.loads(json.dumps(row)))  # tuples become lists, as in the manifest to compare with

    def _leave_out(self, taken: Sequence[_Ready], span: Span) -> None:
        """Log source clips that are not used: too long for a joined clip, or too short even when joined."""
        for source, piece in taken:
            reason = TOO_LONG if piece.frames > span.high and not self.corpus.cut else TAIL
            self.log.leave_out(source.name, reason, source.path, fixed=self.corpus.spoken)  # do not synthesise it again

    def _broken(self, source: Source, reason: str) -> None:
        """Log and report a source clip that cannot be read."""
        # A speech synthesiser that failed may work the next time; a damaged file will not.
        self.log.leave_out(source.name, reason, source.path, fixed=not self.corpus.spoken)
        # Don't take tqdm's lock: an interrupt while a bar is drawn leaves it held, and this call would wait for ever.
        tqdm.write(f"left out: {source.name}: {reason}", nolock=True)


def _is_alone_in(row: Row, group: Group, source: Source) -> bool:
    """Return whether a logged clip consists of this source clip alone, whose size and facts have not changed."""
    (first, *others) = row["sources"]
    logged = (first["path"], first["source_bytes"], first["facts"], row["facts"])
    wanted = (source.name, source.path.stat().st_size, dict(source.facts), dict(group.facts))
    return not others and logged == tuple(json.loads(json.dumps(wanted)))
