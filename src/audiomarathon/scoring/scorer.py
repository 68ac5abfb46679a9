"""What a scorer is: it judges stored replies, and says how the verdicts add up to figures.

Scoring is a step of its own: it reads records, never a model, so a run can be judged again years later on a laptop.
"""

from __future__ import annotations

import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.records import Figure, Record, Verdict

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.metrics.statistics import Sums


class Scorer(ABC):
    """Judges replies one by one, or in batches, and makes figures of the verdicts. Instances hold no state.

    Attributes
    ----------
    key
        Names the file of verdicts, `verdicts-<key>.jsonl`: letters, digits, `-` and `_`.
    figure
        The headline; one of the names of :meth:`sums`.
    instant
        Whether a verdict is a quick function of its record, so that the live view may ask for it.
    needs
        Fields of a record's reference without which it cannot be judged.
    modules, packages
        The code that verdicts rest on beside the scorer's own file, by module and by installed package: when it
        changes, :attr:`version` does, and stored verdicts are made anew.
    """

    key: ClassVar[str]
    figure: ClassVar[Figure]
    instant: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ()
    modules: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the verdict's values for one answered sample, JSON-compatible.

        Parameters
        ----------
        record
            `record.text` is what was replied, `record.reference` what the task put there.
        """
        raise NotImplementedError

    def verdicts(self, records: Sequence[Record]) -> Iterator[Verdict]:
        """Judge answered samples, in their order. A scorer that judges in batches overrides this."""
        for record in records:
            yield Verdict(record, self.judge(record))

    @abstractmethod
    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the figures as sums over units, with the cluster of each: every interval and test comes from these."""

    @abstractmethod
    def own_score(self, verdict: Verdict) -> float | None:
        """Return what one sample is worth by itself, 0…1; None where that is not known: no judge has read the reply.

        By it the report sorts, colours and draws by duration.
        """

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:  # noqa: ARG002
        """Return what `summary.json` says beside the figures of :meth:`sums`."""
        return {}

    def right(self, verdict: Verdict) -> bool | None:  # noqa: ARG002
        """Return whether the reply is right; None where replies can be partly right."""
        return None

    def unparsed(self, verdict: Verdict) -> bool:  # noqa: ARG002
        """Return whether the reply could not be read. Such a reply is wrong, and counted."""
        return False

    def shown(self, verdict: Verdict) -> str:
        """Return the verdict in a few words, for the page and for `explain`."""
        right = self.right(verdict)
        if right is not None:
            return "right" if right else "wrong"
        return "not scored" if (own := self.own_score(verdict)) is None else f"{own:.2f}"

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:  # noqa: ARG002
        """Return what a reader of the figures has to know, a line each; they stand wherever the score does."""
        return []

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:  # noqa: ARG002
        """Return tables of a task's own section of the page, by title; `report/render.py` says how a frame is read.

        Parameters
        ----------
        verdicts
            By the name of the setting.
        """
        return {}

    def chance(self, verdicts: Sequence[Verdict]) -> float | None:  # noqa: ARG002
        """Return what guessing gives on these samples, as a share of right replies."""
        return self.figure.chance

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:  # noqa: ARG002
        """Return the score as the benchmark's release counted it, first of the figures; None where it has none."""
        return None

    def fits(self, record: Record) -> bool:
        """Return whether a record holds what judging it takes; error records do."""
        return not record.answered or all(name in (record.reference or {}) for name in self.needs)

    def sound(self, verdict: Verdict) -> bool:  # noqa: ARG002
        """Return whether a stored verdict can be worked with; one that cannot is made anew."""
        return True

    @property
    def version(self) -> str:
        """Return a hash of the code that verdicts rest on: verdicts of another version are made anew."""
        return _hash_of(type(self), self.modules, self.packages)

    def stamp(self, record: Record) -> str:
        """Return what a stored verdict must carry to be this version's of this reply and of all that it rests on."""
        own = [self.key, self.version, record.text, record.reference]
        own += [record.judgements] if record.judgements else []
        own += [record.corpus.hash] if record.corpus else []
        what = json.dumps(own, sort_keys=True)
        return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def fingerprint_of(scorer: Scorer, records: Iterable[Record]) -> str:
    """Return a hash of what a summary rests on: the scorer's version, the failed samples, and every reply."""
    lines = sorted(f"{one.id} {scorer.stamp(one) if one.answered else 'failed'}" for one in records)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sums_of(scorer: Scorer, verdicts: Sequence[Verdict]) -> Sums:
    """Return a scorer's sums; one that names no ends has those of its headline's range."""
    sums, figure = scorer.sums(verdicts), scorer.figure
    if sums.ends or figure.low is None or figure.high is None:
        return sums
    return replace(sums, ends={figure.name: (figure.low, figure.high)})


def figures_of(scorer: Scorer, verdicts: Sequence[Verdict], *, seed: int) -> dict[str, Any]:
    """Return the metrics of a run for `summary.json`.

    Returns
    -------
    dict
        `n`, `unparsed`, each figure of the scorer's sums, `score` (the headline), `chance`, `intervals` of all of them
        (None where there is none), `notes`, and what else the scorer says. A figure without a value is None.
    """
    from audiomarathon.metrics.statistics import Resampler

    if not verdicts:
        return {"n": 0, "unparsed": 0, "score": None, "intervals": {"score": None}}
    estimates = Resampler(seed).of_sums(sums_of(scorer, verdicts))
    figures = {name: None if one.value != one.value else one.value for name, one in estimates.items()}
    intervals = {name: None if one.interval is None else list(one.interval) for name, one in estimates.items()}
    return {
        "n": len(verdicts),
        "unparsed": sum(map(scorer.unparsed, verdicts)),
        **figures,
        **scorer.summary(verdicts),
        "chance": scorer.chance(verdicts),
        "notes": scorer.notes(verdicts),
        "score": figures[scorer.figure.name],
        "intervals": {**intervals, "score": intervals[scorer.figure.name]},
    }


@cache
def _hash_of(scorer: type[Scorer], modules: tuple[str, ...], packages: tuple[str, ...]) -> str:
    own = [part.__module__ for part in scorer.__mro__ if issubclass(part, Scorer) and part is not Scorer]
    found = hashlib.sha256()
    for name in sorted({*own, *modules}):
        spec = None if name in sys.modules else find_spec(name)  # whether it was imported already must not matter
        file = spec.origin if spec else getattr(sys.modules.get(name), "__file__", None)
        found.update(Path(file).read_bytes() if file else name.encode())
    for name in packages:
        found.update(f"{name} {metadata.version(name)}".encode())
    return found.hexdigest()[:12]
