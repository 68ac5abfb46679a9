"""Judge a run: ask for missing answers, and store each answer before the next.

`judgements-<judge>.jsonl` is the state. A killed process loses at most the answers in flight; the next process finds
those in the cache that a judge had already given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from audiomarathon.errors import RecordError
from audiomarathon.files import open_plain, writing
from audiomarathon.judges.cache import Cache
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Judgement, Request, judgements_file, read_judgements, request_of, second_of
from audiomarathon.judges.protocol import Protocol
from audiomarathon.lock import hold_run
from audiomarathon.records import Record


@dataclass(frozen=True)
class Bench:
    """A judge with its name and cache.

    Attributes
    ----------
    name
        Name in the file of its judgements.
    cache
        None uses no cache.
    """

    name: str
    judge: Judge
    cache: Cache | None = None


@dataclass(frozen=True)
class Case:
    """A run to judge: its folder, its records, the protocol, and whether only anchors are asked about."""

    folder: Path
    records: Sequence[Record]
    protocol: Protocol
    anchors_only: bool = False

    def asked(self) -> Iterator[Record]:
        """Yield the records to ask about: anchors first, since the certificate comes first."""
        answered = [record for record in self.records if record.answered]
        for record in answered:
            yield from (anchor.of(record) for anchor in self.protocol.anchors(record))
        yield from () if self.anchors_only else answered


@dataclass(frozen=True)
class Plan:
    """The work of judging a run.

    Attributes
    ----------
    on_file, cached, calls
        Number of requests: answered in the run's folder, answered in the cache or by a replayed judge, and left to ask.
        A second question counts only once the first is answered.
    characters, most_tokens
        Characters to send, and the most tokens to receive, in all calls.
    """

    on_file: int
    cached: int
    calls: int
    characters: int
    most_tokens: int


def plan_of(case: Case, bench: Bench, planned: set[str] | None = None) -> Plan:
    """Return the work of judging a run; asks and writes nothing.

    Parameters
    ----------
    planned
        Hashes of requests of earlier runs in the plan, which will be in the cache; this run's are added.
    """
    own = read_judgements(case.folder).get(bench.name, {})
    todo, done = _pending(case, own)
    before = set[str]() if planned is None else planned
    calls = []
    if not bench.judge.stored:
        calls = [request for request, _samples in todo.values() if not _is_known(request, bench, before)]
        before.update(todo)
    size = sum(len(turn["content"]) for request in calls for turn in request.messages)
    return Plan(done, len(todo) - len(calls), len(calls), size, sum(one.max_new_tokens for one in calls))


def _is_known(request: Request, bench: Bench, planned: Collection[str]) -> bool:
    return bench.cache is not None and (request.hash in planned or bench.cache.get(request) is not None)


def judge_run(case: Case, bench: Bench, *, step: Callable[[int], object] = lambda _more: None) -> int:
    """Ask a judge for every answer that a run's folder lacks; return the number of failed requests.

    Raises
    ------
    RecordError
        Another process uses the folder, it cannot be written, or it holds another judge's judgements under this name.
    ModelError
        The judge cannot be asked at all.
    """
    with hold_run(case.folder):
        own, identity = read_judgements(case.folder).get(bench.name, {}), dict(bench.judge.identity())
        for one in (one for requests in own.values() for one in requests.values()):
            if one.error is None and one.identity != identity:
                raise RecordError(
                    f"{judgements_file(case.folder, bench.name)}: holds judgements of another judge ({one.identity}); "
                    f"give this one a name of its own: --with NAME=…"
                )
        asked, failed = set[str](), 0
        file = judgements_file(case.folder, bench.name)
        with _appending(file) as stream:
            while todo := _pending(case, own, asked)[0]:  # then the second questions
                asked.update(todo)
                for request, reply, cached in _answers(bench, [request for request, _samples in todo.values()]):
                    failed += reply.error is not None
                    for sample in todo[request.hash][1]:
                        one = Judgement(
                            bench.name, case.protocol.name, case.protocol.version, sample, request.hash,
                            messages=request.messages, identity=identity, cached=cached, **asdict(reply),
                        )  # fmt: skip
                        with writing(file):
                            stream.write(one.to_line())
                            stream.flush()
                        own.setdefault(sample, {})[request.hash] = one
                    step(1)
        return failed


def _pending(
    case: Case, own: Mapping[str, Mapping[str, Judgement]], but: Collection[str] = ()
) -> tuple[dict[str, tuple[Request, list[str]]], int]:
    """Return the unanswered requests by hash, each with its samples, and the number of answered requests."""
    todo: dict[str, tuple[Request, list[str]]] = {}
    done = 0
    for record in case.asked():
        said = {hashed: one.text for hashed, one in own.get(record.id, {}).items() if one.error is None}
        request = request_of(case.protocol, record)
        if request is not None and (text := said.get(request.hash)) is not None:
            done += 1
            request = second_of(case.protocol, text, record)
            if request is not None and request.hash in said:
                done, request = done + 1, None
        if request is None or request.hash in but:
            continue
        if record.id not in (samples := todo.setdefault(request.hash, (request, []))[1]):
            samples.append(record.id)
    return todo, done


def _answers(bench: Bench, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply, bool]]:
    """Yield requests with their answers, and whether the answer was cached."""
    uncached = []
    for request in requests:
        if bench.cache and (kept := bench.cache.get(request)) is not None:
            yield request, kept, True
        else:
            uncached.append(request)
    if uncached:  # do not load a model for nothing
        for request, reply in bench.judge.ask(uncached):
            if bench.cache and reply.error is None:
                bench.cache.put(request, reply)
            yield request, reply, False


@contextmanager
def _appending(file: Path) -> Iterator[IO[bytes]]:
    """Open a file of lines to append to; cut off a half-written last line."""
    with writing(file):
        if file.exists():
            with open_plain(file, "r+b") as stream:
                stream.truncate(stream.read().rfind(b"\n") + 1)
        stream = open_plain(file, "ab")
    try:
        yield stream
    finally:
        with suppress(OSError):  # a full disk was already reported
            stream.close()
