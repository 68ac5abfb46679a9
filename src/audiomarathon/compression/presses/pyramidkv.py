"""PyramidKV: SnapKV that keeps more KV-cache entries in lower layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from audiomarathon.compression.method import kept_count
from audiomarathon.compression.press import ONE_TOKEN
from audiomarathon.compression.presses.snapkv import SnapKV


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """SnapKV's scores, with budgets of entries that fall linearly from layer to layer. The mean budget is k.

    Z. Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", arXiv 2406.02069,
    section 3: the last layer keeps k/β entries (β is the field `beta`) and the first 2k − k/β. Both move towards k if
    k/β would be below 1, or 2k − k/β above the number of entries.
    """

    key: ClassVar[str] = "pyramidkv"
    title: ClassVar[str] = "snapkv with budgets that fall from layer to layer; the ratio holds on average"
    paper: ClassVar[str] = "2406.02069"
    note: ClassVar[str] = f"the ratio holds on average over layers: lower ones keep more, upper ones less; {ONE_TOKEN}"

    beta: int = 20

    def budgets(self, total: int, layers: int) -> list[int]:
        """Return how many KV-cache entries each layer keeps: fewer from layer to layer, linearly, with mean k.

        `total` is the number of entries that may be removed.
        """
        kept = kept_count(total, self.ratio)
        if layers == 1:
            return [kept]
        # The first layer's budget is this much above k, and the last layer's as much below: k − k/β, or less near the
        # limits.
        spread = min(kept - max(1, kept / self.beta), total - kept)
        exact = [kept + spread * (1 - 2 * index / (layers - 1)) for index in range(layers)]
        sums = [0, *(round(sum(exact[: index + 1])) for index in range(layers - 1)), kept * layers]
        return [after - before for before, after in pairwise(sums)]
