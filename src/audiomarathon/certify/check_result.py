"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass

from audiomarathon.engine.stamp import FAIL, PASS

NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """A check's verdict, and the measured figure behind it."""

    verdict: str
    figure: str

    @classmethod
    def ok(cls, figure: str) -> Finding:
        """The check passed."""
        return cls(PASS, figure)

    @classmethod
    def fail(cls, figure: str) -> Finding:
        """The check failed."""
        return cls(FAIL, figure)

    @classmethod
    def of(cls, good: bool, figure: str) -> Finding:
        """The check passed if `good`, and failed otherwise."""
        return cls(PASS if good else FAIL, figure)

    @classmethod
    def not_applicable(cls, why: str) -> Finding:
        """The check does not apply to this model."""
        return cls(NOT_APPLICABLE, why)
