"""Turn the entries of a log into a run: of a task whose data are there, of choices, or of the log's own scores."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks.declared import CHOICE
from audiomarathon.benchmarks.rows import RowError, for_each, one_line_each, replied, shown
from audiomarathon.benchmarks.task import Sample
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import file_name
from audiomarathon.records import LETTERS, Record
from audiomarathon.text import Say
from audiomarathon.wings.exchange.entries import Entry, Log, name_of_score, score_of
from audiomarathon.wings.exchange.matching import letter_of, matched
from audiomarathon.wings.exchange.reported import REPORTED

if TYPE_CHECKING:
    from audiomarathon.engine.run import Result

#: A lettered option: at the start of a line ("A. bus", "(A) bus"), or within a line if the letter is in brackets.
_OPTION = re.compile(r"(?:^[ \t]*\(?|[ \t]\()([A-Z])[).:][ \t]+", re.MULTILINE)


def as_results(
    file: Path, log: Log, results: Path, say: Say, *, task: str = "", data: Path | None = None, choices: bool = False,
    score: str = "", out_of: float = 1.0, cluster: str = "", model: str = "", setting: str = "",
) -> Result:  # fmt: skip
    """Write a log's entries to a run folder under `results`, and score the run.

    Parameters
    ----------
    task, data
        A task whose samples the log's entries are, and the data root; "" for none.
    choices
        Whether to read the options from the prompts, and to score the replies as choices.
    score, out_of
        The log's score to take as the verdict ("" for its only one), and the best score of a sample.
    cluster
        The field with the cluster; "" for a sample's own cluster or id.
    model, setting
        Names for tables; "" takes the model that the log names, and the setting "imported".

    Raises
    ------
    AudioMarathonError
        An entry is wrong, the entries match no samples, or another run is in the folder. Nothing is written.
    """
    from audiomarathon.cli.options import load_task
    from audiomarathon.engine.run import IMPORTED, as_run

    if choices and (task or score):
        raise SettingsError("--choices: not with --task or --score; name one of them")
    if not 0 < out_of < float("inf"):
        raise SettingsError(f"--out-of {out_of:g}: not allowed; allowed: a number above 0, such as 5")
    if not log.entries:
        raise DataError(f"{file}: holds no samples")
    home, loaded = load_task(task, data) if task else (None, None)
    samples = matched(file, log, home, loaded.samples, say) if home and loaded else [None] * len(log.entries)
    score = "" if choices or (home and not score) else name_of_score(log, score, out_of)
    several, records = max(one.epoch for one in log.entries) > 1, dict[str, Record]()

    def add(pair: tuple[Entry, Sample | None]) -> None:
        entry, sample = pair
        base = sample.id if sample else entry.id
        id_ = f"{base}#{entry.epoch}" if several else base
        if id_ in records:
            raise RowError(f"second {log.noun} of {shown(id_)}")
        own = entry.at(cluster) if cluster else sample.cluster if sample else base
        groups = (home.groups(sample) if home and sample else None) or {}
        reference = home.reference(sample) if home and sample else {"answer": entry.target}
        extra: dict[str, Any] = {"log": dict(entry.extra)}
        if several:
            groups["epoch"] = str(entry.epoch)
        if choices:
            reference = _choices(entry)
        if score:
            reference["scored_by"] = score
            extra[REPORTED] = None if entry.error else score_of(entry.scores.get(score), out_of)
        made = Record(id_, own, reference=reference, groups=groups or None, finish=entry.finish, extra=extra)
        records[id_] = replied(made, entry.reply) if entry.error is None else replace(made, error=entry.error)

    for_each(file, log.noun, zip(log.entries, samples, strict=True), add)
    # A key names no file: without dots and colons.
    name = re.sub(r"[^\w-]+", "-", home.key if home else log.task).strip("-") or "log"
    key = f"{REPORTED}/{name}" if score else home.key if home else f"{CHOICE}/{name}"
    model, setting = model or log.model, setting or IMPORTED
    folder = results / Path(*map(file_name, (*key.split("/"), model, setting)))
    corpus = home.corpus(loaded) if home and loaded else ()
    facts = {"method": setting, "suite": log.suite}
    found = as_run(folder, key, file, model, list(records.values()), corpus=corpus, facts=facts)
    if score:
        say(f"verdict of each sample: {score!r}, as {log.suite} reports it")
    return found


def options_in(prompt: str) -> list[str]:
    """Return the lettered options in a prompt: of the last list that begins with A, as few-shot examples come first.

    Raises
    ------
    RowError
        There are no two options, or an option is empty.
    """
    marks = list(_OPTION.finditer(prompt))
    start = max((place for place, mark in enumerate(marks) if mark[1] == "A"), default=len(marks))
    own = [mark for mark, letter in zip(marks[start:], LETTERS, strict=False) if mark[1] == letter]
    ends = [mark.start() for mark in own[1:]] + [len(prompt)]
    texts = [prompt[mark.end() : end].partition("\n")[0].strip() for mark, end in zip(own, ends, strict=False)]
    if len(texts) < 2 or not all(texts):
        raise RowError(f"no lettered options (A. …, B. …) in the prompt {shown(prompt)}")
    return texts


def _choices(entry: Entry) -> dict[str, Any]:
    """Return the reference of a question with options."""
    options = list(entry.options) or options_in(entry.prompt)
    one_line_each(options)
    if not 2 <= len(options) <= len(LETTERS):
        raise RowError(f"has {len(options)} options, expected 2 to {len(LETTERS)}")
    labels = [LETTERS[options.index(option)] for option in options]  # options of the same text are one option
    return {"answer": letter_of(entry.target, options), "options": options, "labels": labels}
