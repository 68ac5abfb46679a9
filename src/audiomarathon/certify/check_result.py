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
        """Return a passed check."""
        return cls(PASS, figure)

    @classmethod
    def fail(cls, figure: str) -> Finding:
        """Return a failed check."""
        return cls(FAIL, figure)

    @classmethod
    def of(cls, good: bool, figure: str) -> Finding:
        """Return a check that passed if `good`, and failed otherwise."""
        return cls(PASS if good else FAIL, figure)

    @classmethod
    def not_applicable(cls, why: str) -> Finding:
        """Return a check that does not apply to this model."""
        return cls(NOT_APPLICABLE, why)
