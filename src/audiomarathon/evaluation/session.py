"""A model that is loaded, checked and counted, ready to run task after task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from audiomarathon.errors import SettingsError
from audiomarathon.evaluation.savings import Cost
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.models.registry import ModelSpec, get_model
from audiomarathon.pruning.method import Method
from audiomarathon.settings import RunSettings

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM


@dataclass(frozen=True)
class Hardware:
    """Where and in which precision the model runs."""

    device: str
    dtype: str


@dataclass(frozen=True)
class Setup:
    """What decides a run's identity beside its task: checkpoint, machine, settings and methods; no weights needed."""

    checkpoint: Checkpoint
    checkpoint_hash: str
    hardware: Hardware
    settings: RunSettings
    methods: Sequence[Method]


@dataclass(frozen=True)
class Session(Setup):
    """A loaded model, its counted FLOPs, and the settings it is to be run under, task after task."""

    spec: ModelSpec
    say: Callable[[str], None]
    progress: bool | None
    lm: AudioLM
    cost: Cost


def open_session(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
) -> Session:
    """Load a model and make sure that it can carry the methods.

    Raises
    ------
    AudioMarathonError
        For a model, device or method that cannot be had here.
    """
    from audiomarathon.evaluation.flops import count_cost

    spec = get_model(model)
    checkpoint = replace(find_checkpoint(settings.model_path or spec.checkpoint), variant=spec.variant)
    hardware = find_hardware(settings)
    own = settings.model_path and settings.model_path != spec.checkpoint
    name = f"{checkpoint.name}, run as {spec.key}," if own else f"{spec.key} ({checkpoint.name})"
    say(f"model {name} on {hardware.device}, {hardware.dtype}, {settings.attn_implementation}")
    family = spec.load_family()
    lm = family.load(
        checkpoint.path,
        device=hardware.device,
        dtype=hardware.dtype,
        attn_implementation=settings.attn_implementation,
        device_map=settings.device_map,
    )
    for method in methods:
        method.check(lm)
    fingerprint, cost = checkpoint.fingerprint(), count_cost(lm)
    return Session(checkpoint, fingerprint, hardware, settings, tuple(methods), spec, say, progress, lm, cost)


def find_hardware(settings: RunSettings) -> Hardware:
    """Return the device and precision that the settings mean on this machine.

    Raises
    ------
    SettingsError
        For a GPU that is not there.
    """
    import torch

    gpu = torch.cuda.is_available()
    device = ("cuda" if gpu else "cpu") if settings.device == "auto" else settings.device
    if device.startswith("cuda"):
        if not gpu:
            raise SettingsError(f"DEVICE={device}: PyTorch sees no GPU here; allowed: cpu, auto")
        if device[5:] and int(device[5:]) >= torch.cuda.device_count():
            raise SettingsError(f"DEVICE={device}: there are {torch.cuda.device_count()} GPUs, counted from 0")
    if settings.device_map and not gpu:
        raise SettingsError(f"DEVICE_MAP={settings.device_map}: PyTorch sees no GPU to spread the model over")
    dtype = settings.dtype if settings.dtype != "auto" else ("bfloat16" if device.startswith("cuda") else "float32")
    return Hardware(device, dtype)
