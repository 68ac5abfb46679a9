"""Score retrieval: the rank of a clip's captions among all captions, and of the clip among all clips."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.scorer import means
from audiomarathon.wings.encoders.scoring.probe import Probed, spread

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Sums

Places = Mapping[str, Sequence[int]]
"""Ranks of one clip, from 1. "captions": the rank of each caption of the clip among all captions. "clips": for each
caption of the clip, the rank of the clip among all clips."""


def places_to_reply(seeds: Iterable[Places]) -> str:
    """Write a clip's ranks as the text of a reply: a line of JSON per training seed.

    A line has the ranks of the clip's captions among all captions, and, for each of these captions, the clip's rank
    among all clips.
    """
    return "\n".join(json.dumps(ranks) for ranks in seeds)


class Retrieved(Probed):
    """Score retrieval by recall at 1, averaged over both directions: from clip to captions, and from caption to clip.

    Each direction also has recall at 1, 5 and 10, and mean average precision at 10. From clip to captions, recall uses
    the clip's best-ranked caption only, average precision uses all its captions.
    """

    key = "places"
    figure = Figure("recall_at_1", "R@1")
    needs = ("answer", "clips", "captions")
    modules = ("audiomarathon.wings.encoders.metrics.retrieval",)

    def judge(self, record: Record) -> dict[str, Any]:
        """Return a clip's retrieval scores, as a dict with `figures` and `seeds`.

        `figures` is {name, such as `clip_to_caption_r5`: mean over training seeds}; `seeds` has each seed's recall at
        1, averaged over both directions.
        """
        from audiomarathon.wings.encoders.metrics.retrieval import average_precision, recall

        seeds = [json.loads(line) for line in record.text.split("\n")]
        most = {name: record.reference[name] for name in ("clips", "captions")}
        if any(
            not ranks[name] or not all(1 <= at <= most[name] for at in ranks[name]) for ranks in seeds for name in most
        ):
            raise ValueError("its reply lacks ranks of captions and of clips, each from 1 to their number")
        asked = [
            {"clip_to_caption": [ranks["captions"]], "caption_to_clip": [[at] for at in ranks["clips"]]}
            for ranks in seeds
        ]
        figures: dict[str, float] = {}
        for way in asked[0]:
            figures |= {f"{way}_r{k}": fmean(recall(queries[way], k) for queries in asked) for k in (1, 5, 10)}
            figures[f"{way}_map10"] = fmean(average_precision(queries[way], 10) for queries in asked)
        return {
            "figures": figures,
            "seeds": [fmean(recall(queries, 1) for queries in queries.values()) for queries in asked],
        }

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the headline score and the scores of both directions, each a mean over clips, as :class:`Sums`."""
        columns = {self.figure.name: [self.own_score(verdict) for verdict in verdicts]}
        columns |= {
            name: [verdict.values["figures"][name] for verdict in verdicts] for name in verdicts[0].values["figures"]
        }
        return means(columns, verdicts, shares=True)

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return `seeds` (score of each training seed) and `sd` (their standard deviation; None for a single seed)."""
        return spread([fmean(each) for each in zip(*(verdict.values["seeds"] for verdict in verdicts), strict=True)])

    def chance(self, verdicts: Sequence[Verdict]) -> float | None:
        """Return the expected recall at 1 of guessing which clip a caption belongs to: 1 / number of clips."""
        return 1 / verdicts[0].record.reference["clips"] if verdicts else None

    def own_score(self, verdict: Verdict) -> float:
        """Return the clip's recall at 1, averaged over training seeds and both directions."""
        return fmean(verdict.values["seeds"])

    def shown(self, verdict: Verdict) -> str:
        """Return as text the best rank among the clip's captions, for the first training seed."""
        place = min(json.loads(verdict.record.text.split("\n")[0])["captions"])
        return f"its best caption has rank {place} of {verdict.record.reference['captions']:,}"
