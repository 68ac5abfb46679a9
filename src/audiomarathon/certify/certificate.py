"""Run every check of `certify`, and store the certificate for later runs of this checkpoint on this machine."""

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

from audiomarathon.certify import method_checks, model_checks, place_checks, timing_checks
from audiomarathon.certify.bench import Bench
from audiomarathon.certify.check_result import Finding
from audiomarathon.compression.method import Method
from audiomarathon.compression.press import KVPress
from audiomarathon.compression.registry import all_methods
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.engine.engine import LocalEngine
from audiomarathon.engine.environment import environment
from audiomarathon.engine.stamp import FAIL, PASS, about, place
from audiomarathon.errors import AudioMarathonError
from audiomarathon.files import write_json
from audiomarathon.models.layers import attention_windows
from audiomarathon.version import __version__

_SECONDS = 30.0


@dataclass(frozen=True)
class Check:
    """One check of `certify`: its name, what a failure means, and the function that runs it."""

    name: str
    meaning: str
    run: Callable[[Bench], Finding]


@dataclass(frozen=True)
class Certificate:
    """The results of all checks of one checkpoint on one machine.

    Attributes
    ----------
    about
        The certified checkpoint, device, precision, attention and versions. The certificate is valid only for runs in
        which all of these are equal.
    rows
        Each check and its result, in order.
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
        """`pass`, or `fail` if any check failed."""
        return FAIL if any(finding.verdict == FAIL for _, finding in self.rows) else PASS

    def as_json(self) -> dict[str, Any]:
        """Return the certificate as a dict for JSON: `verdict`, `date`, `model`, `about`, `checks` and others.

        `checks` is {name of a check: {"verdict": …, "figure": the measured result as text, "when it fails": meaning}}.
        """
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


def checks(users_methods: Sequence[Method] = (), *, on_gpu: bool = False) -> Iterator[Check]:
    """Yield every check in order: of the model, of each method (registered or the user's), of batches and times."""
    yield Check("documented", "base replies differently from the model's documented code", model_checks.documented)
    yield Check(
        "noise floor", "rounding errors hide the differences that other checks look for", model_checks.noise_floor
    )
    yield Check("greedy", "replies change from run to run, or are sampled", model_checks.greedy)
    yield Check("hears", "replies ignore the audio, or part of it", model_checks.hears)
    yield Check("audio mask", "text may be pruned as if it were audio, or audio overlooked", model_checks.audio_mask)
    yield Check("adapter", "the speech adapter is off: these are another model's replies", model_checks.adapter)
    methods = tuple({method.key: method for method in (*all_methods(), *users_methods)}.values())
    zero = functools.partial(method_checks.ratio_zero, methods=methods)
    yield Check("ratio 0", "a method changes the model even if it removes nothing", zero)
    for method in methods:
        if isinstance(method, TokenPruner):
            meaning = "the tokens dropped are not those reported, or some layers still see them"
            if "layer" in method.places:
                run = functools.partial(method_checks.dropping, method=method)
                yield Check(f"dropping {method.key}", meaning, run)
            for place, check in (("input", place_checks.dropping_at_input), ("tower", place_checks.dropping_in_tower)):
                if place in method.places and not method.scored:
                    run = functools.partial(check, method=method)
                    yield Check(f"dropping {method.key} at {place}", meaning, run)
        elif isinstance(method, KVPress):
            meaning = "the cache entries removed are not those reported, or decode still uses them"
            yield Check(f"pressing {method.key}", meaning, functools.partial(method_checks.pressing, method=method))
    meaning = "PRUNE_SCHEDULE drops other tokens than are reported, or some layers still see them"
    yield Check("dropping in steps", meaning, method_checks.dropping_in_steps)
    meaning = "decode as a graph (DECODE=graph) gives other replies than the model's own loop"
    yield Check("graph equals eager", meaning, method_checks.graph_equals_eager)
    meaning = "prefill in chunks (PREFILL_CHUNK) gives other replies than whole prompts"
    yield Check("chunks equal whole", meaning, method_checks.chunks_equal_whole)
    yield Check("batch", "a reply depends on the other samples of its batch", model_checks.batch)
    yield Check("timing", "recorded times are not the stages' times", timing_checks.timing)
    if on_gpu:
        meaning = "the first call at a length takes longer than later ones, so speed-ups are wrong"
        yield Check("fresh lengths", meaning, timing_checks.fresh_lengths)
    meaning = "a setting may get another sample's audio, or the encoder runs too often"
    yield Check("shared encoder", meaning, timing_checks.shared_encoder)
    yield Check("leftovers", "one setting changes the result of the next setting", model_checks.leftovers)


def usual_seconds(engine: LocalEngine) -> float:
    """Return the length of the synthetic clips: the smallest multiple of 30 s that fills the LLM's sliding attention
    windows.
    """
    config: Any = engine.lm.decoder.config
    widest = max(attention_windows(config), default=0)
    return _SECONDS * max(1, math.ceil(widest / engine.setup.spec.tokens_per_second / _SECONDS))


def certify(
    engine: LocalEngine,
    seconds: float | None = None,
    log: Callable[[str], None] = lambda _line: None,
    methods: Sequence[Method] = (),
) -> Certificate:
    """Run every check on a loaded model; return the certificate.

    Parameters
    ----------
    seconds
        Length of the synthetic clips; one clip is three times as long. None: :func:`usual_seconds`.
    log
        Called with one line about each finished check.
    methods
        The user's methods, checked in addition to the registered ones.
    """
    start = time.monotonic()
    bench = Bench(engine.lm, engine.setup.checkpoint.path, seconds or usual_seconds(engine))
    rows = []
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the check `greedy` sets a sampling config on purpose
    try:
        for check in checks(methods, on_gpu=engine.setup.hardware.on_gpu):
            finding = _result(check, bench)
            log(f"{check.name}: {finding.verdict}")
            rows.append((check, finding))
    finally:
        transformers_logging.set_verbosity(verbosity)
    return Certificate(
        about=about(engine.setup),
        model=engine.setup.spec.key,
        commit=environment()["commit"],
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        audio_seconds=bench.seconds,
        took_seconds=time.monotonic() - start,
        rows=tuple(rows),
    )


def _result(check: Check, bench: Bench) -> Finding:
    """Run a check and return its result; an error counts as a failure."""
    try:
        return check.run(bench)
    except (AudioMarathonError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return Finding.fail(f"{type(error).__name__}: {reason.strip()}")


def store(certificate: Certificate) -> Path:
    """Store a certificate, whether its checks passed or failed, for later runs; return its file."""
    path = place(certificate.about)
    write_json(path, certificate.as_json())
    return path
