"""Which settings belong on one line of a picture: one method, at one layer and scope, asked the same as base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from audiomarathon.fingerprint import same

Identity = Mapping[str, Any]

ASKED = ("checkpoint", "prompts", "data", "max_new_tokens", "seed", "dtype", "attention")
"""What decides a score beside the method, of a run's identity."""
TIMED = (*ASKED, "device")
"""What decides a time."""
_HASHES = ("checkpoint", "prompts", "data")


def method_and_ratio(identity: Identity) -> tuple[str, float]:
    """Return a setting's method and the fraction of audio that it removes, of joined methods by both together."""
    parts = _parts(identity)
    if parts == [identity]:
        return str(identity.get("method", "?")), float(identity.get("ratio") or 0.0)
    left = 1.0
    for part in parts:
        left *= 1 - float(part.get("ratio") or 0.0)
    return "+".join(str(part.get("method")) for part in parts), round(1 - left, 6)


def line_of(identity: Identity, others: Sequence[Identity]) -> str:
    """Return the method, and its layer and scope where those of the others that run it differ in them."""
    method = method_and_ratio(identity)[0]
    kin = [other for other in others if method_and_ratio(other)[0] == method]
    differing = [name for name in ("layer", "scope") if len({_parameter(other, name) for other in kin}) > 1]
    return " ".join([method, *(f"{name} {_parameter(identity, name)}" for name in differing)])


def conditions(identity: Identity, reference: Identity, names: Sequence[str] = TIMED) -> str:
    """Return in what a run differs from a reference beside its method, such as `seed 7`; "" where in nothing.

    A hash says nothing to a reader, and differs from task to task: `other prompts`. A run without times has no device,
    which is no other one.
    """
    differing = [name for name in names if not same(identity.get(name), reference.get(name))]
    if None in (identity.get("device"), reference.get("device")):
        differing = [name for name in differing if name != "device"]
    return ", ".join(f"other {name}" if name in _HASHES else f"{name} {identity.get(name)}" for name in differing)


def _parts(identity: Identity) -> list[Identity]:
    return [identity[part] for part in ("first", "second") if isinstance(identity.get(part), Mapping)] or [identity]


def _parameter(identity: Identity, name: str) -> str:
    return ", ".join(str(part[name]) for part in _parts(identity) if name in part)
