"""Turn the samples of another suite's log into a run folder.

The samples are matched to a task with local data, or read as questions with options, or keep the log's own scores.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks.declared import CHOICE
from audiomarathon.benchmarks.rows import RowError, for_each, replied, shown, words_of
from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import file_name
from audiomarathon.records import LETTERS, Record
from audiomarathon.runs.summary import IMPORTED
from audiomarathon.text import Say, counted, plain
from audiomarathon.wings.exchange.entries import Entry, Log, name_of_score, score_of
from audiomarathon.wings.exchange.reported import REPORTED

if TYPE_CHECKING:
    from audiomarathon.engine.run import Result

#: A lettered option: at the start of a line ("A. bus", "(A) bus"), or within a line if the letter is in brackets.
_OPTION = re.compile(r"(?:^[ \t]*\(?|[ \t]\()([A-Z])[).:][ \t]+", re.MULTILINE)
_SHIFTS = 21  # number of orders to compare when the log's order is checked; all but one are shifted, so wrong
_Words = tuple[frozenset[str], Sequence[str]]  # possible targets, and texts that the prompt must contain, as words


def as_results(
    file: Path, log: Log, results: Path, say: Say, *, task: str = "", data: Path | None = None, choices: bool = False,
    score: str = "", out_of: float = 1.0, cluster: str = "", model: str = "", setting: str = "",
) -> Result:  # fmt: skip
    """Write the samples of another suite's log to a run folder under `results`, and score the run.

    Parameters
    ----------
    task, data
        The task to whose samples the log's entries belong ("" for none), and the folder of the data.
    choices
        Whether to read the answer options from the prompts, and to score which option each reply chooses.
    score, out_of
        Name of the log's score to use as the verdict ("" for its only score), and the best score of a sample.
    cluster
        Name of the log's field with the cluster (samples of one cluster are dependent); "" uses the cluster of the
        task's sample, or else the sample's id.
    model, setting
        Names of the model and its setting in tables; "" takes the model that the log names, and "imported".

    Raises
    ------
    AudioMarathonError
        An entry of the log is malformed, the entries match no samples, or the folder holds another run. Nothing is
        written.
    """
    from audiomarathon.cli.options import load_task
    from audiomarathon.engine.run import as_run

    if choices and (task or score):
        raise SettingsError("--choices: not with --task or --score; name one of them")
    if not 0 < out_of < float("inf"):
        raise SettingsError(f"--out-of {out_of:g}: not allowed; allowed: a number above 0, such as 5")
    if not log.entries:
        raise DataError(f"{file}: holds no samples")
    home, loaded = load_task(task, data) if task else (None, None)
    samples = matched(file, log, home, loaded.samples, say) if home and loaded else [None] * len(log.entries)
    score = "" if choices or (home and not score) else name_of_score(log, score, out_of)
    epochs, records = max(entry.epoch for entry in log.entries), dict[str, Record]()

    def add(pair: tuple[Entry, Sample | None]) -> None:
        entry, sample = pair
        base = sample.id if sample else entry.id
        id_ = f"{base}#{entry.epoch}" if epochs > 1 else base
        if id_ in records:
            raise RowError(f"second sample of {shown(id_)}")
        cluster_id = entry.at(cluster) if cluster else sample.cluster if sample else base
        groups = (home.groups(sample) if home and sample else None) or {}
        reference = home.reference(sample) if home and sample else {"answer": entry.target}
        extra: dict[str, Any] = {"log": dict(entry.extra)}
        if epochs > 1:
            groups["epoch"] = str(entry.epoch)
        if choices:
            reference = _choices(entry)
        if score:
            reference["scored_by"] = score
            extra[REPORTED] = None if entry.error else score_of(entry.scores.get(score), out_of)
        made = Record(id_, cluster_id, reference=reference, groups=groups or None, finish=entry.finish, extra=extra)
        records[id_] = replied(made, entry.reply) if entry.error is None else replace(made, error=entry.error)

    for_each(file, "sample", zip(log.entries, samples, strict=True), add)
    # A key without dots and colons, so that it cannot be mistaken for a file.
    name = re.sub(r"[^\w-]+", "-", home.key if home else log.task).strip("-") or "log"
    key = f"{REPORTED}/{name}" if score else home.key if home else f"{CHOICE}/{name}"
    model, setting = model or plain(log.model)[:200] or "unknown", setting or IMPORTED
    folder = results / Path(*map(file_name, (*key.split("/"), model, setting)))
    corpus = home.corpus(loaded) if home and loaded else ()
    there = {(entry.id, entry.epoch) for entry in log.entries}
    lacking = {*itertools.product(log.ids, {epoch for _, epoch in there})} - there
    listed = [*records, *(f"{id_}#{epoch}" if epochs > 1 else id_ for id_, epoch in sorted(lacking))]
    facts = {"method": setting, "samples": listed}
    imported = as_run(folder, key, file, model, list(records.values()), corpus=corpus, facts=facts)
    if score:
        say(f"verdict of each sample: {score!r}, as the log reports it")
    return imported


def options_in(prompt: str) -> list[str]:
    """Return the texts of a prompt's answer options (A. …, B. …).

    A prompt with few-shot examples has several such lists; the last list that begins with A counts.

    Raises
    ------
    RowError
        The prompt has fewer than two options, or an option is empty.
    """
    marks = list(_OPTION.finditer(prompt))
    start = max((place for place, mark in enumerate(marks) if mark[1] == "A"), default=len(marks))
    option_marks = [mark for mark, letter in zip(marks[start:], LETTERS, strict=False) if mark[1] == letter]
    ends = [mark.start() for mark in option_marks[1:]] + [len(prompt)]
    texts = [prompt[mark.end() : end].partition("\n")[0].strip() for mark, end in zip(option_marks, ends, strict=False)]
    if len(texts) < 2 or not all(texts):
        raise RowError(f"no lettered options (A. …, B. …) in the prompt {shown(prompt)}")
    return texts


def _choices(entry: Entry) -> dict[str, Any]:
    """Return, as {name: value}, the values in a record by which the chosen option is scored.

    The names are `answer` (the right option's letter), `options`, and `labels` (a letter for each option; options with
    the same text share a letter).
    """
    options = list(entry.options) or options_in(entry.prompt)
    if not 2 <= len(options) <= len(LETTERS):
        raise RowError(f"has {len(options)} options, expected 2 to {len(LETTERS)}")
    labels = [LETTERS[options.index(option)] for option in options]  # options with the same text count as one option
    return {"answer": letter_of(entry.target, options), "options": options, "labels": labels}


def matched(file: Path, log: Log, task: Task, samples: Sequence[Sample], say: Say) -> list[Sample]:
    """Match each entry (sample) of a log to a sample of the task's data; return the task's samples in the log's order.

    `say` gets a line that tells how they were matched.

    An entry agrees with a sample if its target is the sample's answer (its letter, text, label or number from 0) and
    its prompt has all the options. Entries are matched by id if all their ids are ids of samples; else by text, if each
    entry agrees with exactly one sample; else by position, among the sorted ids or the rows of the data. Every entry
    must agree, and an order is accepted only if shifting it breaks enough entries. Only the order tells entries with
    the same answer and options apart.

    Raises
    ------
    DataError
        The entries cannot be matched; the message says why.
    """
    asked = [(_words(entry.target), _words(" ".join((entry.prompt, *entry.options)))) for entry in log.entries]
    facts, where = [_facts(sample) for sample in samples], f"{counted(len(samples), 'sample')} of {task.key}"
    failed, shifts = list[str](), range(1, min(_SHIFTS, max(2, len(facts))))
    # In data sorted by answer, hardly an entry notices a wrong order: require half of what a random order breaks.
    same = sum(count**2 for count in Counter(target for target, _ in asked).values()) / len(asked)
    least = max(1, (len(asked) - same) / 2)

    def odd(places: Sequence[int], shift: int = 0) -> list[int]:
        """Return the indices of the log's entries that disagree with their samples.

        `places` has the index of each entry's sample (-1 for none), to which `shift` is added.
        """
        shifted = [None if place < 0 else facts[(place + shift) % len(facts)] for place in places]
        return [number for number, fact in enumerate(shifted) if fact is None or not _agree(fact, *asked[number])]

    for how, places in _ways(log, asked, samples, facts):
        if wrong := odd(places):
            target = shown(log.entries[wrong[0]].target)
            failed.append(f"by {how}, sample {wrong[0] + 1} has another target ({target}) or other options")
        elif "order" in how and any(len(odd(places, shift)) < least for shift in shifts):
            failed.append(f"{how} cannot be checked, since a shifted order fits as well, or nearly")
        else:
            say(f"matched {counted(len(places), 'sample')} by {how} to the {where}; every answer agrees")
            return [samples[place] for place in places]
    why = "; ".join(failed)
    raise DataError(f"{file}: does not match the {where}: {why}; --score takes the log's own scores, without --task")


def letter_of(target: str, options: Sequence[str]) -> str:
    """Return the letter of the right option, for a target that is an option's letter, its text, or its number from 0.

    Raises
    ------
    RowError
        The target is none of these, or it is the text of several options.
    """
    bare, places = target.strip(" ().").upper(), range(len(options))
    same = [LETTERS[place] for place in places if bare == LETTERS[place]]
    same = same or [LETTERS[place] for place in places if _words(target) in _targets(options, place)]
    if len(same) != 1:
        raise RowError(f"target {shown(target)} is not one of the options {shown(list(options))}")
    return same[0]


def _targets(options: Sequence[str], place: int) -> set[str]:
    """Return the ways a log may state that the option at `place` is right: its letter, its text, both, or its number.

    Each is normalised to plain words.
    """
    numbers = [] if any(map(str.isdecimal, "".join(options))) else [str(place)]
    return {_words(text) for text in (LETTERS[place], options[place], f"{LETTERS[place]} {options[place]}", *numbers)}


def _facts(sample: Sample) -> _Words:
    """Return (targets, texts): the right answers that a log may state for this sample, and its options' texts."""
    place, answers = LETTERS.find(sample.answer or "-"), {_words(sample.answer)}
    if sample.options and place >= 0:
        answers |= _targets(sample.options, place) | {_words(sample.labels[place])}
    return frozenset(answers), [*map(_words, sample.options)]


def _agree(facts: _Words, target: str, prompt: str) -> bool:
    return target in facts[0] and all(option in prompt for option in facts[1])


def _words(text: str) -> str:
    return f" {' '.join(words_of(text))} "


def _ways(
    log: Log, asked: Sequence[tuple[str, str]], samples: Sequence[Sample], facts: Sequence[_Words]
) -> Iterator[tuple[str, list[int]]]:
    """Yield (name, indices) for each way to match a log's entries to samples: by id, by text, by position.

    `indices` has, for each entry, the index of its sample (-1 for none). `asked` has each entry's (target, prompt) in
    plain words. `facts` has, for each sample, (targets, option texts): a matching entry has one of these targets, and
    all of these texts in its prompt.
    """
    by_id = {sample.id: place for place, sample in enumerate(samples)}
    if all(entry.id in by_id for entry in log.entries) and not all(entry.id.isdecimal() for entry in log.entries):
        yield "id", [by_id[entry.id] for entry in log.entries]
        return
    by_answer: dict[str, list[int]] = {}
    for place, (answers, _) in enumerate(facts):
        for answer in answers:
            by_answer.setdefault(answer, []).append(place)
    matches = []
    for target, prompt in asked:
        fitting = [place for place in by_answer.get(target, ()) if _agree(facts[place], target, prompt)]
        fitting = [place for place in fitting if _words(samples[place].question) in prompt] or fitting
        matches += fitting if len(fitting) == 1 else []
    if len(matches) == len(asked):
        yield "text", matches
    by_row = {sample.row - 1: place for place, sample in enumerate(samples) if sample.row}
    yield "the order of the data", [by_row.get(entry.place, -1) for entry in log.entries]
    yield "the order of sorted ids", [entry.place if entry.place < len(samples) else -1 for entry in log.entries]
