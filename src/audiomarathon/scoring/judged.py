"""Base of the scorers that let judges rate replies. A judge is a language model.

A verdict holds, for each judge, its reading of a reply: the values read from the judge's stored answer, such as a
rating.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from audiomarathon.judges.agreement import agreement
from audiomarathon.judges.anchors import Certificate, certificate_of
from audiomarathon.judges.judgements import reading_of, request_of
from audiomarathon.judges.protocol import Protocol, was_shielded
from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.scorer import Scorer
from audiomarathon.text import counted

_UNJUDGED = "no judge has judged these replies; next: audiomarathon judge RUN --with JUDGE"
_MOST_MISSING = 0.02  # above this share of missing judgements, tables show a mark


class Judged(Scorer):
    """A scorer whose verdicts are judges' readings of a reply; a subclass computes the metrics from them.

    A verdict has five values. Three are mappings with the judges' names as keys: `readings` (the values read from the
    judge's answer), `missing` (why there is no reading: `absent`, `failed`, `unreadable`) and `anchors`. An anchor is
    an artificial reply with a known reading. `anchors` lists [kind, whether the judge read it correctly] for each
    anchor of the first protocol that has answered anchors. `fixed` is True if the protocol asks no judge about the
    reply. `shielded` lists the changes made in the reply before judges saw it.
    """

    instant: ClassVar[bool] = False
    modules: ClassVar[tuple[str, ...]] = ("audiomarathon.judges.judgements", "audiomarathon.judges.protocol")

    @property
    def protocol(self) -> Protocol:
        """The protocol (the questions to a judge, and how its answers are read) from whose answers the metrics are
        computed.
        """
        return self.protocols[0]

    @property
    def version(self) -> str:
        """Hash of the scorer's code, with the versions of all its protocols."""
        return "-".join([super().version, *(protocol.version for protocol in self.protocols)])

    def judge(self, record: Record) -> dict[str, Any]:
        """Return a record's verdict, as {name: value}, from the judges' stored answers; the class lists the values."""
        values: dict[str, Any] = {"readings": {}, "missing": {}, "anchors": {}}
        for name, said in sorted(record.judgements.items()):
            reading = reading_of(self.protocol, record, said)
            if reading.values is None:
                values["missing"][name] = reading.missing
            else:
                values["readings"][name] = dict(reading.values)
            each = (_anchors_read(protocol, record, said) for protocol in self.protocols)
            if rows := next(filter(None, each), None):
                values["anchors"][name] = rows
        shielded = was_shielded(record, self.protocol.longest_reply)
        return values | {"fixed": request_of(self.protocol, record) is None, "shielded": shielded}

    @abstractmethod
    def own_score(self, verdict: Verdict) -> float | None:
        """Return the reply's score, between 0 and 1; None if no judge's answer could be read."""

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return {"judged": …} for `summary.json`: how good and how complete the judges' answers are.

        The value has `protocol` (its name), `judges` (for each judge: numbers of complete judgements and of missing
        ones by reason, and its results on anchors) and `agreement` (between judges).
        """
        certificates, judges = self.certificates(verdicts), {}
        for name in judges_of(verdicts):
            missing = Counter(why for verdict in verdicts if (why := self.lacks(verdict, name)))
            counts = {"n": len(verdicts) - missing.total(), "missing": dict(missing)}
            judges[name] = counts | certificates[name].to_json()
        between = self.agreement(verdicts)
        return {"judged": {"protocol": self.protocol.name, "judges": judges, "agreement": between}}

    def agreement(self, verdicts: Sequence[Verdict]) -> dict[str, dict[str, Any]]:
        """Return how well judges agree, as {name of a judged value, such as `rating`: {"n", "alpha", "pairs"}}.

        See :func:`~audiomarathon.judges.agreement.agreement` for the fields.
        """
        readings = {
            name: [verdict.values["readings"].get(name) for verdict in verdicts] for name in judges_of(verdicts)
        }
        return {
            field: agreement({name: [row and row.get(field) for row in rows] for name, rows in readings.items()}, scale)
            for field, scale in self.protocol.scales.items()
        }

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return warnings about the judges, one line each; [] if there is nothing to warn of.

        Warnings say that a judge misjudged anchors (replies with a known verdict) or was shown none, that many of a
        judge's judgements are missing, or that there is no judge.
        """
        notes, certificates = [], self.certificates(verdicts)
        for name in judges_of(verdicts):
            if mark := certificates[name].mark:
                notes.append(f"judge {name}: {mark}")
            missing = sum(bool(self.lacks(verdict, name)) for verdict in verdicts)
            if missing > _MOST_MISSING * len(verdicts):
                total = counted(len(verdicts), "judgement")
                notes.append(f"judge {name}: {missing:,} of {total} missing (not counted as 0)")
        return notes or ([] if judges_of(verdicts) else [_UNJUDGED])

    def lacks(self, verdict: Verdict, judge: str) -> str:
        """Return why the values read from a judge's answer about a reply are missing or incomplete; "" if they are
        complete.

        The reason is `absent`, `failed` or `unreadable`.
        """
        reading = verdict.values["readings"].get(judge)
        if reading is None:
            return str(verdict.values["missing"].get(judge, "absent"))
        return "unreadable" if any(reading.get(name) is None for name in self.protocol.scales) else ""

    def certificates(self, verdicts: Sequence[Verdict]) -> Mapping[str, Certificate]:
        """Return {judge: :class:`Certificate`}: how many anchors of each kind the judge got right, and was asked about.

        Anchors are artificial replies whose right judgement is known.
        """
        names = {*judges_of(verdicts), *(name for verdict in verdicts for name in verdict.values["anchors"])}
        return {
            name: certificate_of(row for verdict in verdicts for row in verdict.values["anchors"].get(name, ()))
            for name in sorted(names)
        }


def judges_of(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the names of the judges that were asked about any of the given replies, sorted."""
    asked = [verdict.values for verdict in verdicts if not verdict.values["fixed"]]
    tried = {name for values in asked for name, why in values["missing"].items() if why != "absent"}
    return sorted(tried.union(*(values["readings"] for values in asked)))


def _anchors_read(protocol: Protocol, record: Record, said: Mapping[str, str | None]) -> list[list[Any]]:
    """Return a list of `[kind, correct]`, one for each anchor (an artificial reply with a known reading) that a judge
    answered.

    `correct` tells whether the values read from the judge's answer are the known ones.

    Parameters
    ----------
    said
        The judge's answers, as {hash of the request: answer}.
    """
    read = [(anchor, reading_of(protocol, anchor.of(record), said)) for anchor in protocol.anchors(record)]
    answered = ("", "unreadable")
    return [[anchor.kind, anchor.right(reading.values)] for anchor, reading in read if reading.missing in answered]
