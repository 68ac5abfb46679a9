"""Decide which runs may be compared: in their scores, in their times, and as a run and its base.

All views use these rules, so that a table, a picture and a summary of one folder agree. Fields of a run's identity
belong to

* the question (prompts, data, …): if they differ, the runs' scores may not be compared;
* the conditions (checkpoint, precision, seed, …): scores may be compared, but neither run is the other's base;
* decode, as a graph or eagerly: scores may be compared, and a run may be the other's base, but times of decode may not;
* the machine: scores may be compared, and a run on another machine may be a run's base, but times may not be compared;
* the method, which all other fields describe.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from audiomarathon.compression.method import Base
from audiomarathon.fingerprint import same
from audiomarathon.records import Record
from audiomarathon.runs.folder import CODE
from audiomarathon.runs.read import Run
from audiomarathon.runs.summary import CASCADE, IMPORTED, foreign_count

ACROSS = "times come from different sessions on the same machine, which was quiet in both"

#: Note on a cascade, which has medians of times but no speed-up.
APART = "a cascade's parts are timed one after the other, not side by side with the reference; medians"

ELSEWHERE = "times of an imported run, since the load of the machine that took them is unknown"

LATENCIES = "latencies of an endpoint are not compared: they include the network and the server's queue"

OTHER_AUDIO, SHARED = "times of different audio", "times of workers that shared a GPU or cores in one run only"

NO_BASE = "base was not run under the same conditions"

_QUESTION = ("origin", "corpus", "version", "prompts", "max_new_tokens", "data")
_SAID = {
    "corpus": "word weights from different reference texts",
    "origin": "the prompts of an imported run are unknown",
}
_CONDITIONS: Mapping[str, str] = {
    "checkpoint": "other checkpoint",
    "dtype": "{}",
    "attention": "{}",
    "seed": "seed {}",
    "transcripts": "transcripts {:.6}",
}
_MODEL_CODE = f"{CODE}model "
_MACHINE = ("cpu", "threads", "cuda")
#: Settings on which times depend, most of them on a GPU. Runs of older versions lack them, and did not run in chunks.
_TIMED_AS = {
    "sdpa_backends": "with other attention kernels",
    "timing": "with and without a warm pass",
    "prefill_chunk": "with prefill in other chunks, 0 for the whole prompt",
}

_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{4,}\b")

Timed = list[tuple[Record, Record]]


def conditions_of(run: Run) -> dict[str, str]:
    """Return the conditions of a run, such as precision and seed, as {field of its identity: text to show}.

    A text such as `seed {}` has a place for the value.
    """
    conditions = {name: form for name, form in _CONDITIONS.items() if name in run.identity}
    return conditions | {name: "model code {:.6}" for name in run.identity if name.startswith(_MODEL_CODE)}


def _differing(run: Run, other: Run, names: Iterable[str]) -> list[str]:
    identity, theirs = run.identity, other.identity
    return [name for name in dict.fromkeys(names) if not same(identity.get(name), theirs.get(name))]


def _other_questions(run: Run, other: Run) -> list[str]:
    """Return the identity fields about the question (prompts, data, …) in which two runs differ, by name.

    The data of a control run (silence, noise) differs on purpose, so it is not compared.
    """
    asked = [name for name in _QUESTION if name != "data" or run.control == other.control]
    if CASCADE in (origins := _origins(run, other)) and origins <= {CASCADE, None}:
        asked.remove("origin")  # a cascade is asked the same questions
    code = [name for name in run.identity if name.startswith(f"{CODE}task ") and name in other.identity]
    return _differing(run, other, [*asked, *code])


def _origins(*runs: Run) -> set[object]:
    return {run.identity.get("origin") for run in runs}


def other_question(run: Run, other: Run) -> str:
    """Return why the scores of two runs of one task may not be compared; "" if they may."""
    if not (differing := _other_questions(run, other)):
        return ""
    plain = [_SAID[name] for name in differing if name in _SAID][:1]
    shown = plain or (f"{name} {run.identity.get(name)} and {other.identity.get(name)}" for name in differing)
    shown = (_HASH.sub(r"\1", text) for text in shown)
    return f"the two runs were not asked the same questions ({', '.join(shown)})"


def other_conditions(run: Run, other: Run) -> list[str]:
    """Return the conditions in which two runs differ, as texts such as `seed 7`; skip fields that only one run has."""
    forms = {name: form for name, form in conditions_of(run).items() if name in other.identity}
    texts = [forms[name].format(run.identity[name]) for name in _differing(run, other, forms)]
    return texts + [f"[{run.control}]"] * (run.control != other.control and bool(run.control))


def marks_of_graphs(runs: Iterable[Run]) -> Callable[[Run], str]:
    """Make a function that returns "as a graph" for a run that decoded as a CUDA graph, and "" for any other run.

    The function returns "" for all runs of a checkpoint unless one of its settings was run both ways: in one sweep,
    some methods may decode as a graph and others not.
    """
    ways: dict[tuple[str, str, str, str], set[object]] = {}
    for run in runs:
        ways.setdefault((run.checkpoint, run.key, run.method, run.control), set()).add(run.identity.get("decode"))
    both = {checkpoint for (checkpoint, *_), each in ways.items() if len(each) > 1}
    return lambda run: "as a graph" if run.identity.get("decode") and run.checkpoint in both else ""


def apart(run: Run, other: Run) -> str:
    """Return a text that names what differs between two runs (prompts, data, seed, …), to tell their lines apart in a
    picture.

    "" if nothing differs.
    """
    named = [
        f"{name} {run.identity.get(name)}" if name == "max_new_tokens" else f"other {name.removeprefix(CODE)}"
        for name in _other_questions(run, other)
    ]
    return ", ".join([*named, *other_conditions(run, other)])


def is_base(run: Run) -> bool:
    """Tell whether a run is base, the run in which no method removed anything."""
    return run.method == Base().label


def base_among(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the run without compression (base) that has a run's task and conditions; None if there is none.

    Of several, prefer a run that was asked the same question, then a run with comparable times, including decode.
    """
    fitting = [
        candidate
        for candidate in runs
        if is_base(candidate)
        and (candidate.key, candidate.control) == (run.key, run.control)
        and not other_conditions(run, candidate)
    ]

    def unlike(candidate: Run) -> tuple[bool, ...]:
        return (
            bool(other_question(run, candidate)),
            bool(other_machine(run, candidate)),
            bool(_differing(run, candidate, ["decode"])),
        )

    return min(fitting, key=unlike, default=None)


def other_machine(run: Run, base: Run) -> str:
    """Return why the times of two runs may not be compared, even if they come from one session; "" if they may."""
    if why := _other_kind(run, base):
        return why
    if CASCADE in _origins(run, base) or any(
        record.latency for side in (run, base) for record in side.records.values()
    ):
        return APART if CASCADE in _origins(run, base) else LATENCIES
    device, other = (side.identity.get("device") for side in (run, base))
    if device is None or other is None:
        return "untimed runs"
    if device != other:
        return f"times of other devices ({device} and {other})"
    for name, what in _TIMED_AS.items():
        values = [str(side.identity.get(name, 0 if name == "prefill_chunk" else "unknown")) for side in (run, base)]
        if values[0] != values[1]:
            return f"times {what} ({' and '.join(values)})"
    return "" if _sharing(run) == _sharing(base) else SHARED


def _other_kind(run: Run, base: Run) -> str:
    return OTHER_AUDIO if run.control != base.control else ELSEWHERE if IMPORTED in _origins(run, base) else ""


def _costs(both: Sequence[tuple[Record, Record]]) -> str:
    """Return a text with the median time to first token, peak memory and money charged, of a run and of the reference.

    `both` has (reference's record, run's record) of each sample that both answered.
    """
    records, theirs = ([pair[side] for pair in both] for side in (1, 0))
    told = [f"{_first_token(records)} to the first token, the reference {_first_token(theirs)}"]
    if any(known := [_peak(records), _peak(theirs)]):
        told.append("{} of memory at the peak, the reference {}".format(*(amount or "unknown" for amount in known)))
    if any(known := [_charged(records), _charged(theirs)]):
        told.append("cost {}, the reference {}".format(*(amount or "none" for amount in known)))
    return "; ".join(told)


def _first_token(records: Sequence[Record]) -> str:
    """Return the median seconds to the first token as text; for an endpoint, the median latency."""
    known = [record.time["prefill"] if record.time else (record.latency or {}).get("first_token") for record in records]
    seconds = [time for time in known if time is not None]
    return f"{statistics.median(seconds):.3g} s" if seconds else "an unknown time"


def _peak(records: Sequence[Record]) -> str:
    peaks = [record.peak_memory_bytes for record in records if record.peak_memory_bytes]
    return f"{max(peaks) / 1e9:.3g} GB" if peaks else ""


def _charged(records: Sequence[Record]) -> str:
    charges = [record.cost for record in records if record.attempts is not None]
    if not charges:
        return ""
    return "unknown" if None in charges else f"{sum(filter(None, charges)):.3g}"


def timed_pairs(run: Run, base: Run, both: Sequence[tuple[Record, Record]]) -> tuple[Timed, bool, str]:
    """Return the samples whose times may be compared between a run and its base.

    Preferred are samples that both answered in one session (one call of a command), as in a sweep. If there are none,
    all timed samples are returned, provided that machine and precision agree and no other process was busy.

    Parameters
    ----------
    both
        (base's record, run's record) of each sample that both answered.

    Returns
    -------
    list
        The pairs of `both` whose times may be compared.
    bool
        Whether they come from different sessions.
    str
        Why there are none; "" if there are some.
    """
    if why := other_machine(run, base):
        return [], False, f"{why}: {_costs(both)}" if why == APART else why
    measured = [pair for pair in both if pair[0].time and pair[1].time]
    if together := [pair for pair in measured if pair[0].session == pair[1].session]:
        return together, False, ""
    if why := other_session(run, base) if measured else "untimed runs":
        return [], False, why
    return measured, True, ""


def batched_pairs(run: Run, base: Run, both: Sequence[tuple[Record, Record]]) -> tuple[Timed, str]:
    """Return the samples that both runs answered in batches with comparable seconds, and why there are none.

    The rule is that of :func:`timed_pairs`, but devices are not compared, since untimed runs do not name them.

    Returns
    -------
    list
        (base's record, run's record) of these samples.
    str
        Why there are none; "" if there are some, or if one of the runs did not run in batches.
    """
    if not (measured := [pair for pair in both if pair[0].batch and pair[1].batch]):
        return [], ""
    if why := _other_kind(run, base):
        return [], why
    if _sharing(run) != _sharing(base):
        return [], SHARED
    together = [pair for pair in measured if pair[0].session == pair[1].session]
    why = "" if together else other_session(run, base)
    return (together or measured) if not why else [], why


def other_session(run: Run, base: Run) -> str:
    """Return why times of two runs from different sessions may not be compared; "" if they may."""
    sessions, other = (list(_sessions(side).values()) for side in (run, base))
    machines = [[(session.get("environment") or {}).get(name) for name in _MACHINE] for session in (*sessions, *other)]
    if not sessions or not other or None in machines[0][:2] or any(machine != machines[0] for machine in machines):
        return "times of another session, on another or an unknown machine"
    if _differing(run, base, ("dtype", "attention")):
        return "times of another session, in another precision"
    loads = [session.get(name) or {} for session in (*sessions, *other) for name in ("load_before", "load_after")]
    if any(load.get("foreign_processes") is None for load in loads):
        return "times of another session with unknown load of the machine"
    if any(map(foreign_count, loads)):  # only within a session do settings take turns, which evens out load
        return "times of another session, on a machine with other busy processes"
    return ""


def timed_sessions(runs: Iterable[Run]) -> set[str]:
    """Return the sessions (calls of a command) in which the runs' times were taken, each as text: start time and
    process.
    """
    return {str(record.session) for run in runs for record in run.records.values() if record.time}


def _sessions(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return the sessions (calls of a command) that wrote the run's records, as {start time: the session's facts}."""
    starts = {str(record.session).partition(" ")[0] for record in run.records.values() if record.session}
    return {
        session["started"]: session for session in run.facts.get("sessions") or () if session.get("started") in starts
    }


def _sharing(run: Run) -> set[int]:
    """Return the numbers of Ray workers that shared a GPU or a machine's cores, one for each session that ran samples.

    A session is one call of a command. The result is a set, so equal numbers appear once; 1 means that nothing was
    shared.
    """
    return {
        session.get("workers_sharing", 1) for session in run.facts.get("sessions", []) if session.get("samples") != 0
    }
