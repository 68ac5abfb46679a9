"""Score the sound events that a probe finds in a clip's frames: F1 over segments of time, and over onsets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import clusters_of
from audiomarathon.wings.encoders.scoring.probe import PROTOCOL, Probed, spread

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Floats, Sums

Counts = Mapping[str, Sequence[int]]
"""{label: (true positives, false positives, false negatives)}; a label whose counts are all 0 may be left out."""


def counts_to_reply(seeds: Sequence[Counts], onsets: Sequence[int] | None = None) -> str:
    """Write a clip's counts of true positives, false positives and false negatives as the text of a reply.

    The reply has a line of JSON per training seed. If onsets are scored, each line repeats their counts.
    """
    return "\n".join(json.dumps({"segments": counts} | ({"onsets": onsets} if onsets else {})) for counts in seeds)


class Segmented(Probed):
    """Score sound events by F1 over segments of time and, if the task asks for it, by F1 of onsets.

    A label counts once per segment.
    """

    key = "segments"
    figure = Figure("segment_f1", "segment F1")
    needs = ("answer", "labels", "average")
    modules = ("audiomarathon.wings.encoders.metrics.events",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return a clip's true positives, false positives and false negatives, as {"segments": …, "onsets": …}.

        `segments` holds {label: the three counts} for each training seed. `onsets` holds the three counts summed over
        labels; it is None if onsets are not scored.
        """
        lines = [json.loads(line) for line in record.text.split("\n")]
        labels = {label for line in lines for label in line["segments"]}
        counts = [*(count for line in lines for count in line["segments"].values()), lines[0].get("onsets", [0, 0, 0])]
        if any(len(count) != 3 or min(count) < 0 for count in counts) or not labels <= {*record.reference["labels"]}:
            raise ValueError("its reply must hold three counts, 0 or more, for each label, and only labels of the task")
        return {"segments": [line["segments"] for line in lines], "onsets": lines[0].get("onsets")}

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the sums over clips from which the scores and their intervals are computed, as :class:`Sums`.

        The scores are the F1 of segments, averaged over training seeds, and the F1 of onsets if onsets are scored.
        """
        import numpy as np

        from audiomarathon.metrics.statistics import Sums
        from audiomarathon.wings.encoders.metrics.events import f1

        counts = self._counts(verdicts)
        onsets = np.array([verdict.values["onsets"] or [0, 0, 0] for verdict in verdicts])
        size = counts[0].size

        def statistic(totals: Floats) -> Floats:
            seeds = self._f1(verdicts[0].record, totals[:, :size].reshape(-1, *counts.shape[1:]))
            return np.stack([seeds.mean(axis=1), f1(totals[:, size:])], axis=1)[:, :many]

        names = (self.figure.name, "onset_f1") if verdicts[0].values["onsets"] else (self.figure.name,)
        many = len(names)
        columns = np.hstack([counts.reshape(len(counts), -1), onsets])
        return Sums(names, columns, statistic, clusters_of(verdicts), dict.fromkeys(names, (0.0, 1.0)))

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return details for a run's summary, as a dict.

        Keys: `seeds` (F1 of each training seed) and `sd` (their standard deviation), both missing if a seed's F1 is
        undefined; `classes` (number of labels); `f1_by_label`, as {label: F1 averaged over seeds}, None for a label
        without events.
        """
        from audiomarathon.wings.encoders.metrics.events import f1

        counts = self._counts(verdicts).sum(axis=0)
        seeds = self._f1(verdicts[0].record, counts[None])[0].tolist()
        by_label = dict(zip(verdicts[0].record.reference["labels"], f1(counts).mean(axis=0).tolist(), strict=True))
        return {
            **({} if any(map(isnan, seeds)) else spread(seeds)),  # NaN: no clip has an event, or none lasts a segment
            "classes": len(by_label),
            "f1_by_label": {label: None if isnan(value) else value for label, value in by_label.items()},
        }

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:  # noqa: ARG002
        """Return None: for a copy of X-ARES' own probe, :meth:`sums` already computes F1 as X-ARES does."""
        return None

    def own_score(self, verdict: Verdict) -> float | None:
        """Return the clip's F1 over all labels' counts; None if the clip has no events and the probe found none."""
        seeds = [
            [sum(column) for column in zip(*counts.values(), strict=True)] for counts in verdict.values["segments"]
        ]
        f1_scores = [2 * hits / (2 * hits + extra + missed) for hits, extra, missed in filter(None, seeds)]
        return fmean(f1_scores) if f1_scores else None

    def shown(self, verdict: Verdict) -> str:
        """Return the clip's F1 and its true labels, as text."""
        score, answer = self.own_score(verdict), verdict.record.reference["answer"]
        return "no events" if score is None else f"F1 {score:.2f}: {answer or 'no events'}"

    def _counts(self, verdicts: Sequence[Verdict]) -> Any:
        """Return true positives, false positives and false negatives, shape (clips, seeds, labels, 3)."""
        import numpy as np

        labels, none = verdicts[0].record.reference["labels"], [0, 0, 0]
        counts = [
            [[seed.get(label, none) for label in labels] for seed in verdict.values["segments"]] for verdict in verdicts
        ]
        return np.array(counts, dtype=np.int64).reshape(len(verdicts), -1, len(labels), 3)

    def _f1(self, record: Record, counts: Any) -> Any:
        """Return F1 from counts of shape (..., labels, 3): the mean of the labels' F1, or F1 of all labels together.

        The task's `average` ("macro" or "micro") chooses between the two.

        For a copy of X-ARES' own probe, a label without events counts 0 in the mean of the labels' F1.
        """
        import numpy as np

        from audiomarathon.wings.encoders.metrics.events import f1, mean_f1

        macro = record.reference["average"] == "macro"
        if macro and PROTOCOL in (record.groups or {}):
            return np.nan_to_num(f1(counts)).mean(axis=-1)
        return mean_f1(counts, macro=macro)
