"""The result of one check of `audiomarathon certify`."""

from __future__ import annotations

from dataclasses import dataclass

from audiomarathon.engine.stamp import FAIL, PASS

NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """The verdict of a check (`pass`, `fail`, …), and a text with the measured numbers behind it."""

    verdict: str
    figure: str

    @classmethod
    def ok(cls, figure: str) -> Finding:
        """Return the result of a check that passed."""
        return cls(PASS, figure)

    @classmethod
    def fail(cls, figure: str) -> Finding:
        """Return the result of a check that failed."""
        return cls(FAIL, figure)

    @classmethod
    def of(cls, good: bool, figure: str) -> Finding:
        """Return the result of a check that passed if `good`, and failed otherwise."""
        return cls(PASS if good else FAIL, figure)

    @classmethod
    def not_applicable(cls, why: str) -> Finding:
        """Return the result of a check that does not apply to this model; `why` gives the reason."""
        return cls(NOT_APPLICABLE, why)
