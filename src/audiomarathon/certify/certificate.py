"""Running every check, and the stamp that later runs of the same checkpoint on the same machine carry."""

from __future__ import annotations

import datetime
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from audiomarathon.certify import method_checks, model_checks, timing_checks
from audiomarathon.certify.bench import Bench
from audiomarathon.certify.check_result import Finding
from audiomarathon.compression.layers import window_of
from audiomarathon.compression.method import Method
from audiomarathon.compression.press import KVPress
from audiomarathon.compression.registry import all_methods
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.engine.environment import environment
from audiomarathon.engine.local import LocalEngine
from audiomarathon.engine.stamp import FAIL, PASS, about, place
from audiomarathon.errors import AudioMarathonError
from audiomarathon.files import write_json
from audiomarathon.version import __version__

_SECONDS = 30.0


@dataclass(frozen=True)
class Check:
    """One row of the certificate: what is looked at, and what it means when it fails."""

    name: str
    meaning: str
    look: Callable[[Bench], Finding]


@dataclass(frozen=True)
class Certificate:
    """What all checks found.

    Attributes
    ----------
    about
        What was certified: checkpoint, device, precision, attention, versions. A run must have the same.
    rows
        Each check and its finding, in order.
    """

    about: dict[str, str]
    model: str
    commit: str | None
    date: str
    audio_seconds: float
    took_seconds: float
    rows: tuple[tuple[Check, Finding], ...]

    @property
    def verdict(self) -> str:
        """`pass`, or `fail` when any check failed."""
        return FAIL if any(finding.verdict == FAIL for _, finding in self.rows) else PASS

    def as_json(self) -> dict[str, Any]:
        """Return the whole certificate; `checks` by name."""
        checks = {
            check.name: {"verdict": finding.verdict, "figure": finding.figure, "when it fails": check.meaning}
            for check, finding in self.rows
        }
        return {
            "verdict": self.verdict,
            "date": self.date,
            "version": __version__,
            "commit": self.commit,
            "model": self.model,
            "about": self.about,
            "audio_seconds": self.audio_seconds,
            "took_seconds": round(self.took_seconds, 1),
            "checks": checks,
        }


def checks(own: Sequence[Method] = ()) -> Iterator[Check]:
    """Yield every check in the order in which they are made; those of methods from the registry, and of the user's."""
    yield Check("documented", "base is not what the model's authors mean by a reply", model_checks.documented)
    yield Check("noise floor", "rounding hides what the other checks look for", model_checks.noise_floor)
    yield Check("greedy", "replies change from run to run, or are sampled", model_checks.greedy)
    yield Check("hears", "answers do not come from the audio, or not from all of it", model_checks.hears)
    yield Check("audio mask", "text would be pruned as audio, or audio missed", model_checks.audio_mask)
    yield Check("adapter", "the speech adapter is off: replies are another model's", model_checks.adapter)
    methods = tuple({method.key: method for method in (*all_methods(), *own)}.values())
    zero = functools.partial(method_checks.ratio_zero, methods=methods)
    yield Check("ratio 0", "a method changes the model even where it removes nothing", zero)
    for method in methods:
        if isinstance(method, TokenPruner):
            look: Any = functools.partial(method_checks.dropping, method=method)
            yield Check(f"dropping {method.key}", "other tokens are dropped than said, or not everywhere", look)
        elif isinstance(method, KVPress):
            look = functools.partial(method_checks.pressing, method=method)
            yield Check(f"pressing {method.key}", "other cache entries go than said, or decode sees them", look)
    yield Check("batch", "a reply depends on what shares its batch", model_checks.batch)
    yield Check("timing", "times in records are not those of the stages", timing_checks.timing)
    yield Check(
        "shared encoder", "a setting hears another sample, or times are not shared", timing_checks.shared_encoder
    )
    yield Check("leftovers", "one setting changes what the next one runs", model_checks.leftovers)


def usual_seconds(engine: LocalEngine) -> float:
    """Return a length for the clips: 30 s, or as many windows of it as outgrow those of the model's attention."""
    config: Any = engine.lm.decoder.config
    widest = max(window_of(config, layer) or 0 for layer in range(config.num_hidden_layers))
    return _SECONDS * max(1, math.ceil(widest / engine.setup.spec.tokens_per_second / _SECONDS))


def certify(
    engine: LocalEngine,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda _line: None,
    methods: Sequence[Method] = (),
) -> Certificate:
    """Make every check on a loaded model.

    Parameters
    ----------
    seconds
        Length of the synthetic clips; one is three times as long. None for :func:`usual_seconds`.
    methods
        Methods of the user's own to check beside those of the registry.
    """
    start = time.monotonic()
    seconds = seconds or usual_seconds(engine)
    bench = Bench(engine.lm, engine.setup.checkpoint.path, seconds)
    rows = []
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # one check sets a sampling config on purpose
    try:
        for check in checks(methods):
            finding = _made(check, bench)
            say(f"{check.name}: {finding.verdict}")
            rows.append((check, finding))
    finally:
        transformers_logging.set_verbosity(verbosity)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    took = time.monotonic() - start
    what, model = about(engine.setup), engine.setup.spec.key
    return Certificate(what, model, environment()["commit"], date, seconds, took, tuple(rows))


def _made(check: Check, bench: Bench) -> Finding:
    """Make a check; one that cannot even be made has failed."""
    try:
        return check.look(bench)
    except (AudioMarathonError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return Finding.fail(f"{type(error).__name__}: {reason.strip()}")


def store(certificate: Certificate) -> Path:
    """Keep a certificate, passed or failed, for later runs; return its file."""
    path = place(certificate.about)
    write_json(path, certificate.as_json())
    return path
