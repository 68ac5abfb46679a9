"""Running every check, and the stamp that later runs of the same checkpoint on the same machine carry."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from audiomarathon import __version__
from audiomarathon.certify import method_checks, model_checks, timing_checks
from audiomarathon.certify.bench import Bench
from audiomarathon.certify.finding import FAIL, PASS, Finding
from audiomarathon.errors import AudioMarathonError
from audiomarathon.evaluation.environment import device_name, environment
from audiomarathon.evaluation.files import write_json
from audiomarathon.evaluation.records import identity_hash
from audiomarathon.evaluation.session import Session
from audiomarathon.kvpress.press import KVPress
from audiomarathon.pruning.layers import window_of
from audiomarathon.pruning.registry import all_methods
from audiomarathon.pruning.token_pruner import TokenPruner
from audiomarathon.settings import cache_folder

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


def checks() -> Iterator[Check]:
    """Yield every check in the order in which they are made; those of methods from the registry."""
    yield Check("documented", "base is not what the model's authors mean by a reply", model_checks.documented)
    yield Check("noise floor", "rounding hides what the other checks look for", model_checks.noise_floor)
    yield Check("greedy", "replies change from run to run, or are sampled", model_checks.greedy)
    yield Check("hears", "answers do not come from the audio, or not from all of it", model_checks.hears)
    yield Check("audio mask", "text would be pruned as audio, or audio missed", model_checks.audio_mask)
    yield Check("adapter", "the speech adapter is off: replies are another model's", model_checks.adapter)
    methods = all_methods()
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


def usual_seconds(session: Session) -> float:
    """Return a length for the clips: 30 s, or as many windows of it as outgrow those of the model's attention."""
    config: Any = session.lm.decoder.config
    widest = max(window_of(config, layer) or 0 for layer in range(config.num_hidden_layers))
    return _SECONDS * max(1, math.ceil(widest / session.spec.tokens_per_second / _SECONDS))


def certify(
    session: Session, seconds: float | None = None, say: Callable[[str], None] = lambda _line: None
) -> Certificate:
    """Make every check on a loaded model.

    Parameters
    ----------
    seconds
        Length of the synthetic clips; one is three times as long. None for :func:`usual_seconds`.
    """
    start = time.monotonic()
    seconds = seconds or usual_seconds(session)
    bench = Bench(session.lm, session.checkpoint.path, seconds)
    rows = []
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # one check sets a sampling config on purpose
    try:
        for check in checks():
            finding = _made(check, bench)
            say(f"{check.name}: {finding.verdict}")
            rows.append((check, finding))
    finally:
        transformers_logging.set_verbosity(verbosity)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    took = time.monotonic() - start
    return Certificate(about(session), session.spec.key, environment()["commit"], date, seconds, took, tuple(rows))


def _made(check: Check, bench: Bench) -> Finding:
    """Make a check; one that cannot even be made has failed."""
    try:
        return check.look(bench)
    except (AudioMarathonError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return Finding.fail(f"{type(error).__name__}: {reason.strip()}")


def about(session: Session) -> dict[str, str]:
    """Return what a certificate is of: where any of it differs, it says nothing about a run."""
    hardware, settings = session.hardware, session.settings
    return {
        "checkpoint": session.checkpoint_hash,
        "device": device_name(hardware.device, settings.device_map),
        "dtype": hardware.dtype,
        "attention": settings.attn_implementation,
        "audiomarathon": __version__,
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
    }


def store(certificate: Certificate) -> Path:
    """Keep a certificate, passed or failed, for later runs; return its file."""
    path = _place(certificate.about)
    write_json(path, certificate.as_json())
    return path


def stamp(session: Session) -> dict[str, Any] | None:
    """Return the stamp for `run.json`: date, version, verdicts of all and of each check; None without a certificate.

    Warns when the certificate of this checkpoint on this machine is one that failed.
    """
    path = _place(about(session))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        checks = {name: finding["verdict"] for name, finding in content["checks"].items()}
        held = {name: content[name] for name in ("date", "version", "commit", "audio_seconds", "verdict")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if held["verdict"] != PASS:
        failed = ", ".join(name for name, verdict in checks.items() if verdict == FAIL)
        warnings.warn(f"{session.spec.key} FAILED its certificate ({failed}); see {path}", stacklevel=2)
    return {**held, "checks": checks}


def _place(about_: dict[str, str]) -> Path:
    return cache_folder() / "certificates" / f"{identity_hash(about_)}.json"
