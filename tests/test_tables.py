"""Tables copied from papers, releases and model cards: a wrong number would look like any other number."""

from __future__ import annotations

import hashlib
import json
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import pytest

from audiomarathon.benchmarks.audiomarathon import published as audiomarathon_paper
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.costs.config_facts import DTYPE_BYTES
from audiomarathon.models.registry import BUILT_IN
from audiomarathon.segment import corpora
from audiomarathon.segment.corpus import Corpus
from audiomarathon.wings.encoders.xares import published as xares_readme
from audiomarathon.wings.encoders.xares.tasks import TASKS
from audiomarathon.wings.jasco.benchmark import DEPENDENCE, JASCO, JUDGES


def plain(value: Any) -> Any:
    """Convert values that json cannot write to plain values: dataclasses, sets, functions."""
    if is_dataclass(value):
        return [type(value).__name__, vars(value)]
    return sorted(value) if isinstance(value, frozenset) else value.__name__


def attributes(classes: Iterable[type]) -> list[dict[str, Any]]:
    """Return the texts, numbers and tuples that classes and their bases define, except texts for readers."""
    return [
        {
            name: value
            for part in cls.__mro__[::-1]
            for name, value in vars(part).items()
            if not name.startswith("_")
            and name not in ("title", "layout", "example")
            and isinstance(value, (str, float, int, tuple))
        }
        for cls in classes
    ]


def raw_corpora() -> list[dict[str, Any]]:
    modules = [import_module(f"{corpora.__name__}.{module.name}") for module in pkgutil.iter_modules(corpora.__path__)]
    types = [member for module in modules for member in vars(module).values() if isinstance(member, type)]
    return attributes(cls for cls in types if issubclass(cls, Corpus) and hasattr(cls, "task"))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        pytest.param(
            lambda: [audiomarathon_paper.SCORES, audiomarathon_paper.ROW_OF, AUDIOMARATHON.facts],
            "ce5cae6764312181",
            id="our scores",
        ),
        pytest.param(lambda: attributes(map(type, AUDIOMARATHON.tasks)), "7d23c93f882421fa", id="the ten tasks"),
        pytest.param(lambda: [JASCO.facts, JASCO.published, DEPENDENCE, JUDGES], "b3f534b93ea023fa", id="JASCO"),
        pytest.param(raw_corpora, "c02ffe9b05bfa547", id="raw corpora"),
        pytest.param(lambda: [xares_readme.TABLES, xares_readme.STATED], "adecbdb25d4059df", id="X-ARES' scores"),
        pytest.param(lambda: TASKS, "1d88d887f2e42b72", id="X-ARES' tasks"),
        pytest.param(lambda: [BUILT_IN, DTYPE_BYTES], "dd5cb30bdf6a97dd", id="models"),
    ],
)
def test_a_table_copied_from_a_publication_matches_its_stored_digest(table: Callable[[], Any], expected: str) -> None:
    digest = hashlib.sha256(json.dumps(table(), sort_keys=True, default=plain).encode()).hexdigest()[:16]
    assert digest == expected, f"{digest}: compare the changed entry with its source, then write this digest here"
