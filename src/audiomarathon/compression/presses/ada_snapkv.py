"""Ada-SnapKV: SnapKV's scores, with one budget of KV-cache entries for all heads of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from audiomarathon.compression.press import BY_HEAD, ONE_TOKEN
from audiomarathon.compression.presses.snapkv import SnapKV


@dataclass(frozen=True)
class AdaSnapKV(SnapKV):
    """SnapKV with Ada-KV (Y. Feng et al., arXiv 2407.11550): heads with broad attention keep more KV-cache entries."""

    key: ClassVar[str] = "ada_snapkv"
    title: ClassVar[str] = "snapkv with budgets that differ by head; the ratio holds on average"
    paper: ClassVar[str] = "2407.11550"
    note: ClassVar[str] = f"{BY_HEAD}; {ONE_TOKEN}"
    by_head: ClassVar[bool] = True
