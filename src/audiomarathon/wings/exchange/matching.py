"""Find which sample of a task each entry of a log is: by its id, by its text, or by its place; each is checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from audiomarathon.benchmarks.rows import RowError, shown, words_of
from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.errors import DataError
from audiomarathon.records import LETTERS
from audiomarathon.text import Say, counted
from audiomarathon.wings.exchange.entries import Log

_SHIFTS = 21  # the check of an order is tried on so many orders, of which all but one are wrong
_Words = tuple[frozenset[str], Sequence[str]]  # possible targets, and texts in the prompt


def matched(file: Path, log: Log, task: Task, samples: Sequence[Sample], say: Say) -> list[Sample]:
    """Return the sample of each entry, and say how they were matched.

    An entry agrees with a sample if its target is the sample's answer (its letter, text, label or number from 0) and
    its prompt has all the options. Entries are matched by id if all their ids are samples' ids; else by text, if each
    entry agrees with exactly one sample; else by their places among the sorted ids, or among the rows of the data.
    Every entry must agree, and an order counts only if not every entry agrees when it is shifted.

    Raises
    ------
    DataError
        The entries cannot be matched; the message says why.
    """
    asked = [(_words(one.target), _words(" ".join((one.prompt, *one.options)))) for one in log.entries]
    facts, where, failed = [_facts(one) for one in samples], f"{counted(len(samples), 'sample')} of {task.key}", ""

    def odd(places: Sequence[int], shift: int = 0) -> list[int]:
        """Return which entries do not agree with the samples at these places."""
        own = [None if place < 0 else facts[(place + shift) % len(facts)] for place in places]
        return [number for number, one in enumerate(own) if one is None or not _agree(one, *asked[number])]

    for how, places in _ways(log, asked, samples, facts):
        if wrong := odd(places):
            entry = log.entries[wrong[0]]
            failed = f"by {how}, {log.noun} {wrong[0] + 1} has another target ({shown(entry.target)}) or other options"
        elif "order" in how and not all(odd(places, shift) for shift in range(1, min(_SHIFTS, max(2, len(facts))))):
            failed = f"{how} cannot be checked, since neighbours have the same answers and options"
        else:
            say(f"matched {counted(len(places), log.noun)} by {how} to the {where}; every answer agrees")
            return [samples[place] for place in places]
    raise DataError(f"{file}: does not match the {where}: {failed}; --score takes the log's own scores, without --task")


def letter_of(target: str, options: Sequence[str]) -> str:
    """Return the letter of the right option, for a target that is a letter, an option's text, or its number from 0.

    Raises
    ------
    RowError
        The target is none of these, or the text of several options.
    """
    bare, letters = target.strip(" ().").upper(), list(LETTERS[: len(options)])
    if bare in letters:
        return bare
    same = [letter for letter, option in zip(letters, options, strict=True) if _words(option) == _words(target)]
    same = same or [letter for place, letter in enumerate(letters) if bare == str(place)]
    if len(same) != 1:
        raise RowError(f"target {shown(target)} is not one of the options {shown(list(options))}")
    return same[0]


def _facts(sample: Sample) -> _Words:
    """Return what an entry of a sample must say, in words."""
    answers, place = {sample.answer}, LETTERS.find(sample.answer or "-")
    if sample.options and place >= 0:
        answers |= {sample.options[place], sample.labels[place], sample.right}
        answers |= set() if any(map(str.isdecimal, "".join(sample.options))) else {str(place)}
    return frozenset(map(_words, answers)), [*map(_words, sample.options)]


def _agree(facts: _Words, target: str, prompt: str) -> bool:
    return target in facts[0] and all(option in prompt for option in facts[1])


def _words(text: str) -> str:
    return f" {' '.join(words_of(text))} "


def _ways(
    log: Log, asked: Sequence[tuple[str, str]], samples: Sequence[Sample], facts: Sequence[_Words]
) -> Iterator[tuple[str, list[int]]]:
    """Yield ways to match, each with the place of every entry's sample; -1 for none."""
    by_id = {one.id: place for place, one in enumerate(samples)}
    if all(one.id in by_id for one in log.entries) and not all(one.id.isdecimal() for one in log.entries):
        yield "id", [by_id[one.id] for one in log.entries]
        return
    by_answer: dict[str, list[int]] = {}
    for place, (answers, _) in enumerate(facts):
        for answer in answers:
            by_answer.setdefault(answer, []).append(place)
    found = []
    for target, prompt in asked:
        fitting = [place for place in by_answer.get(target, ()) if _agree(facts[place], target, prompt)]
        fitting = [place for place in fitting if _words(samples[place].question) in prompt] or fitting
        found += fitting if len(fitting) == 1 else []
    if len(found) == len(asked):
        yield "text", found
    by_row = {one.row - 1: place for place, one in enumerate(samples) if one.row}
    yield "the order of the data", [by_row.get(one.place, -1) for one in log.entries]
    yield "the order of sorted ids", [one.place if one.place < len(samples) else -1 for one in log.entries]
