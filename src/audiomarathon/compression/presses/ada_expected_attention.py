"""Expected attention's scores, with one budget of KV-cache entries for all heads of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from audiomarathon.compression.press import BY_HEAD, ONE_TOKEN
from audiomarathon.compression.presses.expected_attention import ExpectedAttention


@dataclass(frozen=True)
class AdaExpectedAttention(ExpectedAttention):
    """Expected attention with Ada-KV: a layer's heads share one budget of KV-cache entries.

    Ada-KV is by Y. Feng et al., arXiv 2407.11550.
    """

    key: ClassVar[str] = "ada_expected_attention"
    title: ClassVar[str] = "expected_attention with budgets that differ by head; the ratio holds on average"
    paper: ClassVar[str] = "2407.11550"
    note: ClassVar[str] = f"{BY_HEAD}; {ONE_TOKEN}"
    by_head: ClassVar[bool] = True
