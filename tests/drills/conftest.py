"""Drills: what goes wrong in the field, done on purpose. Short among the tests; `make drills` runs the long form."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

LONG = os.environ.get("AUDIOMARATHON_DRILLS") == "long"


@pytest.fixture
def times() -> Callable[[int, int], int]:
    """Return the first number in the short form, the second in the long."""
    return lambda short, long: long if LONG else short


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print what a drill did and saw (`make drills` shows it)."""
    return lambda line: print(f"\n  {request.node.name}: {line}", flush=True)  # noqa: T201
