"""The interface of scorers: they judge stored replies, and compute a run's metrics from the verdicts.

Scoring is a separate step: it reads records, never a model, so a run can be scored again years later on a laptop.
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

from audiomarathon.code_hash import FORMER, code_hash
from audiomarathon.records import Figure, Record, Verdict

if TYPE_CHECKING:
    import pandas as pd

    from audiomarathon.judges.anchors import Certificate
    from audiomarathon.judges.protocol import Protocol
    from audiomarathon.metrics.statistics import Estimate, Sums

_ENCODER = json.JSONEncoder(sort_keys=True)  # json.dumps would make one for each record


class Scorer(ABC):
    """Turns each stored reply into a verdict, and computes a run's metrics from the verdicts. Instances hold no state.

    Attributes
    ----------
    key
        Name of the scorer, used in the name of the file `verdicts-<key>.jsonl`: letters, digits, `-` and `_`.
    figure
        The headline metric: name, title and limits of one of the metrics that :meth:`sums` returns.
    instant
        True if scoring a record is quick, so that the live view of a run may do it.
    needs
        Required fields of a record's reference.
    modules, packages
        Further code that verdicts depend on, besides the scorer's own file: modules and installed packages. When it
        changes, :attr:`version` changes, and stored verdicts are made again.
    protocols
        Protocols for asking judges (language models) about a reply: each makes the questions and reads the answers.
        Figures use the first; empty if rules alone score.
    """

    key: ClassVar[str]
    figure: ClassVar[Figure]
    instant: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ()
    modules: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    protocols: ClassVar[tuple[Protocol, ...]] = ()

    def judge(self, record: Record) -> dict[str, Any]:
        """Score one answered sample; return its verdict as {field: value}, which must fit into JSON.

        Parameters
        ----------
        record
            `record.text` is the reply without the model's thinking, `record.raw` with it, `record.reference` the task's
            reference.
        """
        raise NotImplementedError

    def verdicts(self, records: Sequence[Record]) -> Iterator[Verdict]:
        """Score answered samples in order, and yield a verdict for each. Override this to score in batches."""
        for record in records:
            yield Verdict(record, self.judge(record))

    @abstractmethod
    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the metrics, such as macro-F1, as sums over samples or clips; intervals and tests resample these by
        whole clusters.

        A cluster is a set of samples that are not independent, such as all questions about one clip.
        """

    @abstractmethod
    def own_score(self, verdict: Verdict) -> float | None:
        """Return one sample's score, between 0 and 1; None if unknown, such as for a reply without a judgement.

        The report uses it to sort and colour samples, and to plot the score over duration.
        """

    @property
    def own_title(self) -> str:
        """Name of the mean of :meth:`own_score` over samples. Margins (allowed losses) are tested on this mean."""
        return "accuracy" if type(self).right is not Scorer.right else "mean score of samples, 0 to 1"

    def uncapped(self, verdicts: Sequence[Verdict]) -> dict[str, float]:  # noqa: ARG002
        """Return metrics of errors that :meth:`own_score` hides because it stops at 0, as {name: value}; {} if none."""
        return {}

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:  # noqa: ARG002
        """Return {field: value} to add to `summary.json`, besides the metrics of :meth:`sums`; by default {}."""
        return {}

    def right(self, verdict: Verdict) -> bool | None:  # noqa: ARG002
        """Return whether the reply is right; None if this scorer can also find replies partly right."""
        return None

    def unparsed(self, verdict: Verdict) -> bool:  # noqa: ARG002
        """Return whether the reply could not be parsed.

        An unparsed reply counts as wrong, and a run reports how many there are.
        """
        return False

    def shown(self, verdict: Verdict) -> str:
        """Return the verdict as a short text, such as `right: B. Jazz`, for the report and `audiomarathon explain`."""
        right = self.right(verdict)
        if right is not None:
            return "right" if right else "wrong"
        return "not scored" if (score := self.own_score(verdict)) is None else f"{score:.2f}"

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:  # noqa: ARG002
        """Return notes for readers, one line each, to show wherever the score is shown."""
        return []

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:  # noqa: ARG002
        """Return tables for the task's section of the report, as {title: table}.

        `report/render.py` describes the columns.

        Parameters
        ----------
        verdicts
            The verdicts of each setting, as {setting: verdicts}.
        """
        return {}

    def chance(self, verdicts: Sequence[Verdict]) -> float | None:  # noqa: ARG002
        """Return the expected share of right replies of random guesses; None if unknown."""
        return self.figure.chance

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:  # noqa: ARG002
        """Return sums whose first metric is the score as the code released by the benchmark's authors computes it.

        Return None if there is no such score.
        """
        return None

    def certificates(self, verdicts: Sequence[Verdict]) -> Mapping[str, Certificate]:  # noqa: ARG002
        """Return {judge: :class:`Certificate`}: how many anchors of each kind the judge got right; {} for scorers
        without judges.

        Anchors are artificial replies whose right judgement is known: they show how reliable a judge is.
        """
        return {}

    def fits(self, record: Record) -> bool:
        """Return whether a record's reference has the fields that this scorer needs; a failed sample needs none."""
        return not record.answered or all(name in (record.reference or {}) for name in self.needs)

    def sound(self, verdict: Verdict) -> bool:  # noqa: ARG002
        """Return whether a stored verdict is valid and can be used; an unusable verdict is made again."""
        return True

    @property
    def version(self) -> str:
        """Hash of the code on which verdicts depend. Stored verdicts of another version are made again."""
        return _hash_of(type(self), self.modules, self.packages)

    def stamp(self, record: Record) -> str:
        """Return a hash of everything that a record's verdict depends on: the version, the reply, the reference, …

        The hash is stored with the verdict, which stays valid only while the hash is the same.
        """
        text, raw = record.text, record.raw
        parts = [self.key, self.version, text, record.reference]
        parts += [raw] if raw != text else []
        parts += [record.judgements] if record.judgements else []
        parts += [record.corpus.hash] if record.corpus else []
        what = _ENCODER.encode(parts)
        return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def clusters_of(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the name of each sample's cluster; samples that are not independent share one."""
    return tuple(verdict.record.cluster for verdict in verdicts)


def means(columns: Mapping[str, Sequence[float | None]], verdicts: Sequence[Verdict], *, shares: bool = False) -> Sums:
    """Return metrics that are means over samples, as sums that can be resampled.

    Samples whose value is None are left out.

    Parameters
    ----------
    columns
        The values of each metric, as {metric's name: one value per sample}.
    shares
        Whether every figure lies between 0 (all wrong) and 1 (all right).
    """
    from audiomarathon.metrics.statistics import means_of_items

    sums = means_of_items(columns, clusters_of(verdicts))
    return replace(sums, ends=dict.fromkeys(columns, (0.0, 1.0))) if shares else sums


def cells(name: str, estimate: Estimate) -> dict[str, Any]:
    """Return a metric's three cells of a table row: {name: value, name_low: …, name_high: …}, its interval's ends.

    The ends are None if the interval is unknown.
    """
    low, high = estimate.interval or (None, None)
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def fingerprint_of(scorer: Scorer, records: Iterable[Record]) -> str:
    """Return a hash of everything that a run's summary depends on.

    The hash covers which samples failed, and the reply, the reference and the scorer's version of each answered sample.
    """
    lines = sorted(f"{record.id} {scorer.stamp(record) if record.answered else 'failed'}" for record in records)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def sums_of(scorer: Scorer, verdicts: Sequence[Verdict]) -> Sums:
    """Return a scorer's metrics of the verdicts as sums, with the two ends of the headline metric set.

    The ends are the metric's values when all replies are wrong and when all are right. If the scorer does not set them,
    `low` and `high` of `scorer.figure`, the headline metric, are used.
    """
    sums, figure = scorer.sums(verdicts), scorer.figure
    if sums.ends or figure.low is None or figure.high is None:
        return sums
    return replace(sums, ends={figure.name: (figure.low, figure.high)})


def figures_of(scorer: Scorer, verdicts: Sequence[Verdict], *, seed: int) -> dict[str, Any]:
    """Compute the metrics of a run for `summary.json`.

    Returns
    -------
    dict
        `n` (number of samples), `unparsed`, each figure of the scorer's sums, `score` (the headline figure), `chance`,
        `intervals` of all figures (None if unknown), `notes`, and the fields of the scorer's `summary`. A figure
        without a value is None.
    """
    from audiomarathon.metrics.statistics import Resampler

    if not verdicts:
        return {"n": 0, "unparsed": 0, "score": None, "intervals": {"score": None}}
    estimates = Resampler(seed).of_sums(sums_of(scorer, verdicts))
    figures = {
        name: None if estimate.value != estimate.value else estimate.value for name, estimate in estimates.items()
    }
    intervals = {
        name: None if estimate.interval is None else list(estimate.interval) for name, estimate in estimates.items()
    }
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
    """Return a hash of the code of a scorer and of `modules` (see :func:`code_hash`), and of the packages' versions."""
    base_modules = [part.__module__ for part in scorer.__mro__ if issubclass(part, Scorer) and part is not Scorer]
    digest, files = hashlib.sha256(), list[Path]()
    for name in sorted({*base_modules, *modules}):
        spec = None if name in sys.modules else find_spec(name)  # the same whether or not it was imported before
        file = spec.origin if spec else getattr(sys.modules.get(name), "__file__", None)
        if file:
            files.append(Path(file))
        else:
            digest.update(name.encode())
    digest.update(code_hash(files).encode())
    for name in packages:
        digest.update(f"{name} {metadata.version(name)}".encode())
    made = digest.hexdigest()[:12]
    return FORMER.get(made, made)
