"""Make the clips of one group of a corpus, one after the other; what cannot be read is named and left out."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import soundfile
from tqdm import tqdm

from audiomarathon.audio.decode import probe
from audiomarathon.errors import AudioError, DataError
from audiomarathon.segment.build_log import Ledger, same_as
from audiomarathon.segment.corpus import Corpus, Group, Row, Source
from audiomarathon.segment.joining import Joining, Piece, Plan, Range, length_at, plan, write

TAIL = "a tail too short for a clip"
TOO_LONG = "longer than a clip may be"


class Builder:
    """Makes the clips of one corpus, group by group."""

    def __init__(self, corpus: Corpus, joining: Joining, ledger: Ledger, advance: Callable[[float], object]) -> None:
        self.corpus = corpus
        self.joining = joining
        self.ledger = ledger
        self.advance = advance
        #: Set to let no further clip begin.
        self.stopped = False

    def clips(self, group: Group) -> Iterator[str]:
        """Make a group's clips one after the other; yield their paths."""
        sources = self.corpus.sources(group)
        step = 1 / max(1, len(sources))
        with tempfile.TemporaryDirectory(prefix="audiomarathon-") as scratch:
            index, path = 0, self.corpus.place(group, 0)
            if len(sources) == 1 and self.ledger.finished(path, lambda row: _is_alone_in(row, group, sources[0])):
                self.advance(1)
                yield path  # without its audio, which may have to be spoken first
                return
            pending = _Pending(self._pieces(sources, Path(scratch), step))
            while not self.stopped:
                path = self.corpus.place(group, index)
                joined, used = plan((piece for _, piece in pending), self._range(path), self.joining.joint)
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
        seen: set[str] = set()
        for source in sources:
            if source.name in seen:
                self.ledger.leave_out(source.name, "is listed twice")
                self.advance(step)
                continue
            seen.add(source.name)
            try:
                size = source.path.stat().st_size
                if reason := self.ledger.bad(source.name, size):
                    self.ledger.leave_out(source.name, reason, fixed=True, size=size)
                    self.advance(step)
                    continue
                audio = self.corpus.audio(source, scratch)
                info = probe(audio)
            except AudioError as error:
                self._broken(source, error.reason)
                self.advance(step)
            except OSError as error:
                self._broken(source, f"cannot be read ({error.strerror or error})")
                self.advance(step)
            else:
                yield source, Piece(audio, length_at(info.frames, info.sampling_rate, self.joining.rate))

    def _range(self, path: str) -> Range:
        low, high = (round(seconds * self.joining.rate) for seconds in (self.joining.low, self.joining.high))
        return Range(low, high, self.corpus.chance("length", path).randint(low, high), self.corpus.cut)

    def _write(self, group: Group, path: str, joined: Plan, pending: _Pending) -> int | None:
        """Write a clip unless it is there; return which of its sources cannot be decoded, None where all can."""
        row = self._row(group, joined, [source for source, _ in itertools.islice(pending, len(joined.parts))])
        if self.ledger.finished(path, same_as(row)):
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
            "gap": self.joining.joint.gap,
            "crossfade": self.joining.joint.crossfade,
            "sources": parts,
        }
        return dict(json.loads(json.dumps(row)))  # as the manifest gives it back

    def _leave_out(self, pieces: list[tuple[Source, Piece]]) -> None:
        high = round(self.joining.high * self.joining.rate)
        for source, piece in pieces:
            reason = TOO_LONG if piece.frames > high and not self.corpus.cut else TAIL
            size = source.path.stat().st_size
            self.ledger.leave_out(source.name, reason, fixed=self.corpus.spoken, size=size)  # not to be spoken again

    def _broken(self, source: Source, reason: str) -> None:
        size = source.path.stat().st_size if source.path.is_file() else None
        # A speech synthesiser that failed may work the next time; a damaged file will not.
        self.ledger.leave_out(source.name, reason, fixed=not self.corpus.spoken, size=size)
        # Without tqdm's lock: an interrupt in the midst of drawing a bar leaves it held, and this would wait for ever.
        tqdm.write(f"left out: {source.name}: {reason}", nolock=True)


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


def _is_alone_in(row: Row, group: Group, source: Source) -> bool:
    (first, *others) = row["sources"]
    there = (first["path"], first["source_bytes"], first["facts"], row["facts"])
    wanted = (source.name, source.path.stat().st_size, dict(source.facts), dict(group.facts))
    return not others and there == tuple(json.loads(json.dumps(wanted)))
