"""Make the entry in `run.json` on what `audiomarathon certify` found for the run's checkpoint on this machine."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from audiomarathon.engine.setup import Setup
from audiomarathon.errors import warn
from audiomarathon.files import json_object, read_plain
from audiomarathon.fingerprint import by_rule_1
from audiomarathon.runs.folder import identity_hash
from audiomarathon.settings import GRAPH, cache_folder
from audiomarathon.version import __version__

PASS = "pass"
FAIL = "fail"


def about(setup: Setup) -> dict[str, str]:
    """Return {fact: value} about a run, such as checkpoint and device.

    A certificate (the results of `audiomarathon certify`) is valid only for runs with equal facts.
    """
    return {
        "checkpoint": setup.checkpoint_hash,
        "device": setup.hardware.name,
        "dtype": setup.hardware.dtype,
        "attention": setup.settings.attn_implementation,
        **({"sdpa_backends": setup.settings.sdpa_backends} if setup.hardware.on_gpu else {}),
        **({"decode": GRAPH} if setup.decode == GRAPH else {}),
        "audiomarathon": __version__,
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
    }


def stamp(setup: Setup) -> dict[str, Any] | None:
    """Return what `audiomarathon certify` found, for `run.json`: date, version, and each check's verdict.

    Return None without a certificate. Warn if a check failed. Also warn if the certificate identifies the checkpoint by
    the older kind of fingerprint, which misses most changes of weights: it may be about other weights, and the result
    has `weak_fingerprint`.
    """
    facts = about(setup)
    path, weak_path = place(facts), place({**facts, "checkpoint": by_rule_1(facts["checkpoint"])})
    weak = not path.exists() and weak_path.exists()
    if weak:
        path = weak_path
    try:
        content = json_object(read_plain(path)) or {}
        checks = {name: check["verdict"] for name, check in content["checks"].items()}
        summary = {name: content[name] for name in ("date", "version", "commit", "audio_seconds", "verdict")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if summary["verdict"] != PASS:
        failed = ", ".join(name for name, verdict in checks.items() if verdict == FAIL)
        warn(f"{setup.spec.key} FAILED checks of `audiomarathon certify` ({failed}); see {path}")
    if weak:
        old = f"its certificate of {summary['date']} has a weak fingerprint: the weights may have changed since then"
        warn(f"{setup.spec.key}: {old}; run.json marks it; to check these weights, run `audiomarathon certify` again")
    return {**summary, "checks": checks, **({"weak_fingerprint": True} if weak else {})}


def place(about_: dict[str, str]) -> Path:
    """Return the path of the stored certificate (the results of `audiomarathon certify`) with these facts from
    :func:`about`.
    """
    return cache_folder() / "certificates" / f"{identity_hash(about_)}.json"
