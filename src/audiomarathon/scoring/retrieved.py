"""Score retrieval: the rank of a clip's captions among all captions, and of the clip among all clips."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.probe import Probed

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Floats, Sums

Places = Mapping[str, Sequence[int]]
"""Of a clip: "captions", the places of its captions among all, and "clips", for each caption the clip's among all."""


def places_to_reply(seeds: Iterable[Places]) -> str:
    """Return a reply: per seed a line of JSON with ranks from 1."""
    return "\n".join(json.dumps(one) for one in seeds)


class Retrieved(Probed):
    """The mean of recall at 1 from clip to captions and from caption to clip; also recall at 1, 5 and 10 each way.

    Mean average precision counts the first 10. A clip counts by its best caption in recall, and by all in precision.
    """

    key = "places"
    figure = Figure("recall_at_1", "R@1")
    needs = ("answer", "clips", "captions")
    modules = ("audiomarathon.metrics.retrieval",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the figures of one clip, each the mean over seeds, and the seeds' own scores."""
        from audiomarathon.metrics.retrieval import average_precision, recall

        seeds = [json.loads(line) for line in record.text.split("\n")]
        most = {name: record.reference[name] for name in ("clips", "captions")}
        if any(not one[name] or not all(1 <= at <= most[name] for at in one[name]) for one in seeds for name in most):
            raise ValueError("holds no places of captions and of clips, from 1")
        asked = [
            {"clip_to_caption": [one["captions"]], "caption_to_clip": [[at] for at in one["clips"]]} for one in seeds
        ]
        figures: dict[str, float] = {}
        for way in asked[0]:
            figures |= {f"{way}_r{k}": fmean(recall(one[way], k) for one in asked) for k in (1, 5, 10)}
            figures[f"{way}_map10"] = fmean(average_precision(one[way], 10) for one in asked)
        return {"figures": figures, "seeds": [fmean(recall(queries, 1) for queries in one.values()) for one in asked]}

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return means over clips."""
        from audiomarathon.metrics.statistics import means_of_items

        columns = {self.figure.name: self._released(verdicts).tolist()}
        columns |= {name: [one.values["figures"][name] for one in verdicts] for name in verdicts[0].values["figures"]}
        found = means_of_items(columns, tuple(one.record.cluster for one in verdicts))
        return replace(found, ends=dict.fromkeys(columns, (0.0, 1.0)))

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return the seeds' scores and their spread."""
        seeds = [fmean(each) for each in zip(*(one.values["seeds"] for one in verdicts), strict=True)]
        return {"seeds": seeds, "sd": stdev(seeds) if len(seeds) > 1 else None}

    def chance(self, verdicts: Sequence[Verdict]) -> float | None:
        """Return 1 / number of clips."""
        return 1 / verdicts[0].record.reference["clips"] if verdicts else None

    def own_score(self, verdict: Verdict) -> float:
        """Return the mean over seeds and both directions."""
        return fmean(verdict.values["seeds"])

    def shown(self, verdict: Verdict) -> str:
        """Return the rank of the clip's best caption for the first seed."""
        place = min(json.loads(verdict.record.text.split("\n")[0])["captions"])
        return f"its best caption has place {place} of {verdict.record.reference['captions']:,}"

    def _released(self, verdicts: Sequence[Verdict]) -> Floats:
        return np.array([self.own_score(one) for one in verdicts])
