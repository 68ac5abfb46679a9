"""Judge a run: ask a judge for the answers that are missing, and store each answer as it arrives.

The file `judgements-<judge>.jsonl` is the only state. A killed process loses at most the answers still on the way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from audiomarathon.errors import RecordError, blaming
from audiomarathon.files import MAX_RECORD_BYTES, Appending, open_plain, read_stream, writing
from audiomarathon.judges.cache import Cache
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Judgement, Request, judgements_file, read_judgements, request_of, second_of
from audiomarathon.judges.protocol import Protocol
from audiomarathon.lock import hold_run
from audiomarathon.records import Record
from audiomarathon.terminal import Step


@dataclass(frozen=True)
class Bench:
    """A judge with its name and the cache of its answers.

    Attributes
    ----------
    name
        The judge's name, which is part of the name of the file with its judgements.
    cache
        Cache of the judge's answers; None if no cache is used.
    """

    name: str
    judge: Judge
    cache: Cache | None = None


@dataclass(frozen=True)
class Case:
    """A run to judge, with the protocol that makes the questions about each reply.

    Attributes
    ----------
    anchors_only
        Whether to ask only about anchors (artificial replies with a known right judgement).
    """

    folder: Path
    records: Sequence[Record]
    protocol: Protocol
    anchors_only: bool = False

    def asked(self) -> Iterator[Record]:
        """Yield the records to ask about: first anchors (artificial replies that test the judge), then real replies."""
        answered = [record for record in self.records if record.answered]
        for record in answered:
            with self.naming(record):
                anchors = [anchor.of(record) for anchor in self.protocol.anchors(record)]
            yield from anchors
        yield from () if self.anchors_only else answered

    def naming(self, record: Record) -> AbstractContextManager[None]:
        """Inside the block, turn an error of the protocol into a :class:`RecordError` that names the sample."""
        return blaming(f"{self.folder}: no question can be made of sample {record.id}", RecordError)


@dataclass(frozen=True)
class Plan:
    """How many requests it takes to judge a run.

    Attributes
    ----------
    on_file, cached, calls
        Number of requests with an answer in the run's folder, with an answer in the cache or a replayed file, and still
        to send. A second question counts only after the first is answered.
    characters, most_tokens
        Number of characters to send in all calls, and the largest possible number of tokens to receive.
    unshared, shared
        Hashes of this run's unanswered requests. `shared` has those that runs judged earlier also need, so that their
        answers will be in the cache by then; `unshared` has all others.
    """

    on_file: int
    cached: int
    calls: int
    characters: int
    most_tokens: int
    unshared: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()


def plan_of(case: Case, bench: Bench, planned: set[str] | None = None) -> Plan:
    """Return how many requests judging a run would take, without asking the judge or writing anything.

    Parameters
    ----------
    planned
        Hashes of the requests of runs that will be judged earlier, so their answers will be in the cache by then. The
        hashes of this run's requests are added to the set.
    """
    pending, n_answered = _pending(case, read_judgements(case.folder).get(bench.name, {}))
    planned = set() if planned is None else planned
    calls = [] if bench.judge.stored else [request for request, _samples in pending.values()]
    if bench.cache:
        calls = [call for call in calls if call.hash not in planned and bench.cache.get(call) is None]
    shared = frozenset(planned & pending.keys()) if bench.cache else frozenset[str]()
    planned.update(pending)
    size = sum(len(turn["content"]) for request in calls for turn in request.messages)
    most_tokens = sum(request.max_new_tokens for request in calls)
    unshared = frozenset(pending) - shared
    return Plan(n_answered, len(pending) - len(calls), len(calls), size, most_tokens, unshared, shared)


def judge_run(case: Case, bench: Bench, *, leave: Collection[str] = (), step: Step = lambda _done, more=0: more) -> int:
    """Ask a judge for the answers that a run's folder lacks, and store them; return the number of failed requests.

    Parameters
    ----------
    leave
        Hashes of requests to leave out.
    step
        Function that shows progress. It is called with 1 after each request, and with the number of second questions
        (such as retries), which the plan cannot know.

    Raises
    ------
    RecordError
        Another process uses the folder, the folder cannot be written, or a different judge with this name has already
        judged the run.
    ModelError
        The judge cannot answer any request.
    """
    file = judgements_file(case.folder, bench.name)
    with hold_run(case.folder):
        known, identity = read_judgements(case.folder).get(bench.name, {}), dict(bench.judge.identity())
        for judgement in (judgement for requests in known.values() for judgement in requests.values()):
            if judgement.error is None and judgement.identity != identity:
                raise RecordError(
                    f"{file}: holds judgements by another judge ({judgement.identity}); give this judge another name: "
                    "--with NAME=…"
                )
        asked, failed, rounds = set(leave), 0, 0
        with _appending(file) as lines:
            while pending := _pending(case, known, asked)[0]:  # the second round asks the second questions
                if rounds:
                    step(0, len(pending))
                rounds += 1
                asked.update(pending)
                for request, reply, cached in _answers(bench, [request for request, _samples in pending.values()]):
                    failed += reply.error is not None
                    for sample in pending[request.hash][1]:
                        judgement = Judgement(
                            bench.name, case.protocol.name, case.protocol.version, sample, request.hash,
                            messages=request.messages, identity=identity, cached=cached, **asdict(reply),
                        )  # fmt: skip
                        with writing(file):
                            lines.add(judgement.to_line())
                        known.setdefault(sample, {})[request.hash] = judgement
                    step(1)
        return failed


def _pending(
    case: Case, known: Mapping[str, Mapping[str, Judgement]], asked: Collection[str] = ()
) -> tuple[dict[str, tuple[Request, list[str]]], int]:
    """Find the requests about a run that the judge has not answered.

    Parameters
    ----------
    known
        The judge's stored judgements, as {sample's id: {request's hash: judgement}}.
    asked
        Hashes of requests to leave out, since they were already sent in this call.

    Returns
    -------
    dict
        The unanswered requests, as {hash: (request, ids of its samples)}.
    int
        Number of answered requests.
    """
    pending: dict[str, tuple[Request, list[str]]] = {}
    n_answered = 0
    for record in case.asked():
        answers = {
            hashed: judgement.text for hashed, judgement in known.get(record.id, {}).items() if judgement.error is None
        }
        with case.naming(record):
            request = request_of(case.protocol, record)
        if request is not None and (text := answers.get(request.hash)) is not None:
            n_answered += 1
            request = second_of(case.protocol, text, record)
            if request is not None and request.hash in answers:
                n_answered, request = n_answered + 1, None
        if request is None or request.hash in asked:
            continue
        if record.id not in (samples := pending.setdefault(request.hash, (request, []))[1]):
            samples.append(record.id)
    return pending, n_answered


def _answers(bench: Bench, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply, bool]]:
    """Get answers to requests, from the cache or else from the judge.

    Yield (request, answer, whether it came from the cache).
    """
    uncached = []
    for request in requests:
        if bench.cache and (reply := bench.cache.get(request)) is not None:
            yield request, reply, True
        else:
            uncached.append(request)
    if uncached:  # otherwise a local judge would load its model without need
        for request, reply in bench.judge.ask(uncached):
            if bench.cache and reply.error is None:
                bench.cache.put(request, reply)
            yield request, reply, False


@contextmanager
def _appending(file: Path) -> Iterator[Appending]:
    """Inside the block, hold a file open to append lines, after cutting off an incomplete last line."""
    with writing(file):
        if file.exists():
            with open_plain(file, "r+b") as stream:
                stream.truncate(read_stream(stream, MAX_RECORD_BYTES).rfind(b"\n") + 1)
        lines = Appending(file)
    try:
        yield lines
    except BaseException:
        with suppress(OSError):  # a full disk was already reported
            lines.close()
        raise
    with writing(file):
        lines.close()
