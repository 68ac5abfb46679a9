"""Check an encoder against X-ARES' ten rules, and for faults that these rules do not cover."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audiomarathon.errors import AudioMarathonError, EncoderError, blaming
from audiomarathon.wings.encoders.encoder import Encoder, from_module, unusable

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)
HOP_OFF = "hop off"  # name of the fault that the measured hop (time between frames) differs from the declared one
_NOT_FINITE = "not finite"


@dataclass(frozen=True)
class Finding:
    """A fault of an encoder: its name, such as "hop off", and a line that describes it."""

    name: str
    line: str


@dataclass(frozen=True)
class Checked:
    """The result of checking an encoder.

    `errors` has the first rule of X-ARES that is broken, or a line per test input whose features are not finite.
    `findings` has all other faults.
    """

    errors: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def check_audio_encoder(encoder: Any) -> bool:
    """Return whether X-ARES would accept an encoder; log the reason if it would not. Never raises an error."""
    broken = verdict(encoder, "cpu")
    if broken:
        _logger.error(broken)
    return not broken


def check_encoder(encoder: Encoder | torch.nn.Module, *, long: bool = False) -> Checked:
    """Check an encoder for faults; this switches it to eval mode without gradients.

    With `long`, also encode a clip of 600 s.
    """
    ready = encoder if isinstance(encoder, Encoder) else None
    broken = verdict(ready.module if ready else encoder, ready.device if ready else "cpu")
    if broken:
        return Checked((broken,))
    try:
        findings = list(_findings(ready or from_module(encoder), long))  # type: ignore[arg-type]
        errors = tuple(f"{finding.name}: {finding.line}" for finding in findings if finding.name == _NOT_FINITE)
        return Checked(errors, tuple(finding for finding in findings if finding.name != _NOT_FINITE))
    except EncoderError as error:  # an attribute is not a number
        return Checked((str(error),))


def verdict(encoder: Any, device: str) -> str:
    """Return a description of the first of X-ARES' ten rules that an encoder breaks; "" if it breaks none.

    Features that are not real numbers count as a broken rule too.
    """
    try:
        with blaming("the encoder cannot encode audio of shape [2, 50000]:", EncoderError):
            return next((problem for holds, problem in _verdicts(encoder, device) if not holds), "")
    except AudioMarathonError as error:
        return str(error)


def _verdicts(encoder: Any, device: str) -> Iterator[tuple[bool, str]]:
    import torch

    kind = type(encoder).__name__
    yield kind.endswith("Encoder"), f"the class's name must end with 'Encoder', got {kind}"
    yield isinstance(encoder, torch.nn.Module), f"an encoder must be a torch.nn.Module, got {kind}"
    for name in ("output_dim", "sampling_rate", "hop_size_in_ms"):
        yield hasattr(encoder, name), f"an encoder must have the attribute {name!r}"
    with torch.no_grad():
        features = encoder(_noise(2, 50_000).to(device))
    yield isinstance(features, torch.Tensor), f"features must be a tensor, got {type(features).__name__}"
    yield features.ndim == 3, f"features must have 3 dimensions [B, T, D], got {list(features.shape)}"
    yield len(features) == 2, f"features must have batch size 2, got {len(features)}"
    dim = encoder.output_dim
    yield features.size(2) == dim, f"features must have output_dim={dim} values, got {features.size(2)}"
    problem = unusable(features)
    yield not problem, problem


def _findings(encoder: Encoder, long: bool) -> Iterator[Finding]:
    """Yield the faults of an encoder that X-ARES does not check for.

    Test clips that are longer than the encoder accepts are skipped. With `long`, also encode a clip of 600 s.
    """
    import torch

    rate, limit = encoder.sampling_rate, encoder.max_seconds or float("inf")
    lengths = [seconds for seconds in (0.05, 1, 3, 10, 60, 600)[: 5 + long] if seconds <= limit]
    clips = {seconds: _noise(1, int(seconds * rate)) * 0.1 for seconds in lengths}
    clip = _noise(1, int(min(1, limit) * rate)) * 0.1
    inputs = {f"{seconds} s of noise": audio for seconds, audio in clips.items()}
    inputs["silence"] = torch.zeros_like(clip)
    inputs["a 0 dBFS square wave"] = clip.new_ones(clip.shape).cumsum(-1).mul(0.05).sin().sign()
    for name, audio in inputs.items():
        try:
            encoder.encode(audio)
        except EncoderError as error:
            yield Finding(_NOT_FINITE if str(error).endswith("not finite") else "fails", f"{name}: {error}")

    def neighbours() -> str:
        alone, longer = encoder.encode(clip)[0], clips.get(3, clip)
        batch = torch.cat([torch.nn.functional.pad(clip, (0, longer.shape[1] - clip.shape[1])), longer])
        beside = encoder.encode(batch, [clip.shape[1], batch.shape[1]] if encoder.takes_lengths else None)[0]
        return _apart(alone, beside[: len(alone)], 1e-3)

    def changed(audio: torch.Tensor) -> str:
        return _apart(encoder.encode(clip)[0].mean(0), encoder.encode(audio)[0].mean(0), 1e-2)

    def direct() -> torch.Tensor:
        features: torch.Tensor = encoder.module(clip.to(encoder.device))
        return features

    def device() -> str:
        here, there = torch.device(encoder.device).type, direct().device.type
        return f"audio on {here} gives features on {there}" if here != there else ""

    tests: dict[str, Callable[[], str]] = {
        HOP_OFF: lambda: hop_off(encoder),
        "not deterministic": lambda: _apart(encoder.encode(clip)[0], encoder.encode(clip)[0], 1e-5),
        "hears its neighbours": neighbours,
        "gain sensitive": lambda: changed(clip * 0.1),
        "offset sensitive": lambda: changed(clip + 0.01),
        "training mode": lambda: "left on by the constructor; eval() was called" * encoder.was_training,
        "gradients": lambda: "parameters outside the module are not frozen, moved or hashed" * direct().requires_grad,
        "wrong device": device,
    }
    for name, test in tests.items():
        try:
            with blaming("cannot be tested:", EncoderError):
                line = test()
        except AudioMarathonError as error:
            line = str(error)
        if line:
            yield Finding(name, line)


def hop_off(encoder: Encoder) -> str:
    """Return a description of the fault if an encoder's hop (time between frames) is not as declared; else "".

    The declared hop is `hop_size_in_ms`; the measured hop comes from the number of frames of test clips.
    """
    for seconds in (1, 3, 10):
        if seconds > (encoder.max_seconds or seconds):
            break
        expected = seconds * 1000 / encoder.hop_size_in_ms
        got = len(encoder.encode(_noise(1, seconds * encoder.sampling_rate) * 0.1)[0])
        if abs(got - expected) > max(1, 0.02 * expected):
            return f"{seconds} s give {got} frames, hop_size_in_ms={encoder.hop_size_in_ms:g} says {expected:.0f}"
    return ""


def _apart(first: torch.Tensor, second: torch.Tensor, limit: float) -> str:
    """Describe how two feature tensors differ; return "" if the difference is at most `limit`.

    The difference is relative to the norm of `first`; unequal shapes count as a difference.
    """
    if first.shape != second.shape:
        return f"shapes differ: {list(first.shape)} and {list(second.shape)}"
    difference = float((first - second).norm() / first.norm().clamp_min(1e-12))
    return f"relative difference {difference:.2g}, limit {limit:g}" if difference > limit else ""


def _noise(rows: int, samples: int) -> torch.Tensor:
    """Return seeded noise, shape (rows, samples), without using torch's global random generator."""
    import torch

    return torch.randn(rows, samples, generator=torch.Generator().manual_seed(0))
