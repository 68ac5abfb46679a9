"""Samples in another suite's log: the fields that all kinds of logs share, and readers of their JSON and scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks.rows import Row, RowError, shown, unique_fields
from audiomarathon.errors import SettingsError, told
from audiomarathon.text import did_you_mean

_DEEPEST = 100  # limit of nested lists and objects: deeper values could not be written again
_WORDS: Mapping[str, float | None] = {  # letters as scores, as in Inspect: correct, incorrect, partial, no answer
    "c": 1.0, "i": 0.0, "p": 0.5, "n": 0.0, "yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "nan": None,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One sample of a log of another suite.

    Attributes
    ----------
    id, epoch
        The sample's id in the log, and the number of this reply among several replies to the sample, from 1.
    place
        Position of the sample in the task's data, in the log's order, from 0.
    prompt, target, options
        The text of the question, the right answer as the log states it, and the answer options if the log lists them.
    reply, finish, error
        The reply, the reason why it ended, and the reason why there is no reply (None without an error).
    scores
        The log's scores as {name: value}, as written; a score inside an object is named `outer.inner`.
    extra
        The log's fields to keep in the run's record of the sample.
    """

    id: str
    place: int
    prompt: str
    target: str
    reply: str
    scores: Mapping[str, Any]
    extra: Mapping[str, Any]
    options: Sequence[str] = ()
    epoch: int = 1
    finish: str = "stop"
    error: str | None = None

    def at(self, path: str) -> str:
        """Return the text or number in a field of `extra`, such as `metadata.speaker`.

        Raises
        ------
        RowError
            The field is missing, or is neither text nor number.
        """
        value: Any = self.extra
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return Row(Path(), {path: value}).id(path)


@dataclass(frozen=True)
class Log:
    """A log of another suite: its task, model and samples (`entries`), and all samples' ids if the log lists them."""

    task: str
    model: str
    entries: Sequence[Entry]
    ids: Sequence[str] = ()


def parsed(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object from text; NaN and infinities become strings.

    Raises
    ------
    RowError
        The text is not a JSON object, or is nested too deeply.
    """
    try:
        fields = json.loads(text, object_pairs_hook=unique_fields, parse_constant=str, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON ({told(error)})") from error
    if not isinstance(fields, dict):
        raise RowError(f"expected an object, found {shown(fields)}")
    level: list[Any] = [fields]
    for _ in range(_DEEPEST):
        level = [value for node in level for value in (node.values() if isinstance(node, dict) else node)]
        if not (level := [node for node in level if isinstance(node, dict | list)]):
            return fields
    raise RowError(f"nested deeper than {_DEEPEST} levels")


def _number(text: str) -> float | str:
    """Return a JSON number as a float; a number too large for a float stays a string."""
    return number if math.isfinite(number := float(text)) else text


def flat(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten {name: score or object of scores}: a score inside an object gets the name `outer.inner`."""
    objects = {name: value if isinstance(value, dict) else {"": value} for name, value in scores.items()}
    return {
        f"{name}.{inner}".rstrip("."): score
        for name, inner_scores in objects.items()
        for inner, score in inner_scores.items()
    }


def score_of(value: object, most: float) -> float | None:
    """Divide a log's score by the best score `most`, giving 0…1; None if the log states that there is no score.

    Raises
    ------
    RowError
        The value is not a score, or not from 0 to `most`.
    """
    score = _share(value, most)
    if score is not None and not 0 <= score <= 1:  # NaN is not
        raise RowError(f"{shown(value)} is not a score from 0 to {most:g}; --out-of sets the best score")
    return score


def name_of_score(log: Log, name: str, most: float) -> str:
    """Return the name of the score to use: `name` if it is given, else the name of the log's only score.

    Only scores from 0 to `most` count as candidates when no name is given.

    Raises
    ------
    SettingsError
        The log has no score called `name`. Or no name is given, and the log has no score or several.
    """
    scores = [(each, value) for entry in log.entries if entry.error is None for each, value in entry.scores.items()]
    names = dict.fromkeys(each for each, value in scores if value is not None)
    odd = {each for each, value in scores if not 0 <= (_share(value, most) or 0.0) <= 1}
    fitting = [each for each in names if each not in odd]
    allowed = f"allowed: {', '.join([*(names if name else fitting)][:20]) or 'none of this log'}"
    if name and name not in names:
        raise SettingsError(f"--score {name}: the log has no such score{did_you_mean(name, names)}; {allowed}")
    if not name and len(fitting) != 1:
        why = f"name one with --score; {allowed}"
        if not fitting:
            why = f"its scores: {', '.join([*names][:20]) or 'none'}; --out-of sets the best score"
        raise SettingsError(f"the log has {len(fitting)} scores from 0 to {most:g}; {why}")
    return name or fitting[0]


def _share(value: Any, most: float) -> float | None:
    """Divide a log's score by the best score `most`; None if the value means "no score", NaN if it is not a number."""
    number = _WORDS.get(value.strip().lower(), value) if isinstance(value, str) else value
    with suppress(ValueError, TypeError, OverflowError):
        return None if number is None else float(number) / most
    return math.nan
