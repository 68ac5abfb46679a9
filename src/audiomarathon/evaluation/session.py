"""A model that is loaded, checked and counted, here or in workers, ready to run task after task."""

from __future__ import annotations

import importlib.util
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.evaluation.files import check_writable
from audiomarathon.evaluation.savings import Cost
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.models.registry import ModelSpec, get_local_model, get_model
from audiomarathon.pruning.method import Method
from audiomarathon.settings import RunSettings

if TYPE_CHECKING:
    from audiomarathon.evaluation.batches import Plan
    from audiomarathon.evaluation.evaluate import Job
    from audiomarathon.evaluation.executor import Ray
    from audiomarathon.models.audio_lm import AudioLM


@dataclass(frozen=True)
class Hardware:
    """Where and in which precision the model runs; `name` is what times depend on: the GPU's name, or the CPU's."""

    device: str
    dtype: str
    name: str


@dataclass(frozen=True)
class Setup:
    """What decides a run's identity beside its task: checkpoint, machine, settings and methods; no weights needed."""

    checkpoint: Checkpoint
    checkpoint_hash: str
    hardware: Hardware
    settings: RunSettings
    methods: Sequence[Method]


@dataclass(frozen=True)
class Engine(Setup):
    """A model that is loaded somewhere, its counted FLOPs, and the settings it is to be run under, task after task."""

    spec: ModelSpec
    say: Callable[[str], None]
    progress: bool | None
    cost: Cost | None

    @abstractmethod
    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Record a reply of every sample under every setting that has none yet."""

    @abstractmethod
    def certificate(self) -> dict[str, Any] | None:
        """Return the stamp of the certificate of this checkpoint where it runs; None where there is none."""

    @abstractmethod
    def machine(self) -> dict[str, Any]:
        """Return versions and machine, the GPUs' state, and other processes on them as `other_gpu_processes`."""

    @abstractmethod
    def gpu_state(self) -> list[dict[str, str]]:
        """Return the state of the GPUs."""


@dataclass(frozen=True)
class Session(Engine):
    """A model that is loaded in this process."""

    lm: AudioLM

    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """See :meth:`Engine.evaluate`."""
        from audiomarathon.evaluation.evaluate import evaluate

        evaluate(self.lm, plan, jobs, say=self.say, progress=self.progress)

    def certificate(self) -> dict[str, Any] | None:
        """See :meth:`Engine.certificate`."""
        from audiomarathon.certify.certificate import stamp

        return stamp(self)

    def machine(self) -> dict[str, Any]:
        """See :meth:`Engine.machine`."""
        from audiomarathon.evaluation.environment import environment, other_gpu_processes

        others = other_gpu_processes(os.getpid())
        return {"environment": environment(), "gpu_before": self.gpu_state(), "other_gpu_processes": others}

    def gpu_state(self) -> list[dict[str, str]]:
        """See :meth:`Engine.gpu_state`."""
        from audiomarathon.evaluation.environment import gpu_state

        return gpu_state()


@contextmanager
def opened(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    ray: Ray | None = None,
    *,
    ready: Callable[[Setup], None] = lambda _setup: None,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
) -> Iterator[Engine]:
    """Load a model, in this process or in Ray's workers, for the length of the block; see :func:`open_session`."""
    check_writable(settings.results)
    if get_model(model).remote:
        from audiomarathon.evaluation.remote import open_endpoint

        if ray is not None:
            raise SettingsError(
                f"--executor ray: {model} runs elsewhere; BATCH_SIZE with --no-timing sends several requests"
            )
        engine: Engine = open_endpoint(model, settings, methods, say=say, progress=progress)
        ready(engine)
        yield engine
        return
    if ray is None:
        yield open_session(model, settings, methods, ready=ready, say=say, progress=progress)
        return
    from audiomarathon.evaluation.ray_executor import open_workers

    with open_workers(model, settings, methods, ray, say=say, progress=progress) as workers:
        ready(workers)
        yield workers


def open_session(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    ready: Callable[[Setup], None] = lambda _setup: None,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
) -> Session:
    """Load a model and make sure that it can carry the methods.

    Parameters
    ----------
    ready
        Called before the weights are loaded, which may take minutes, to refuse what can be refused by then.

    Raises
    ------
    AudioMarathonError
        For a model, device or method that cannot be had here.
    """
    from audiomarathon.evaluation.flops import count_cost

    spec = get_local_model(model)
    hardware = find_hardware(settings)
    _check_attention(settings, hardware)
    checkpoint = replace(find_checkpoint(settings.model_path or spec.checkpoint), variant=spec.variant)
    family = spec.load_family()
    _check_config(family, checkpoint.path, methods)
    setup = Setup(checkpoint, checkpoint.fingerprint(), hardware, settings, tuple(methods))
    ready(setup)
    own = settings.model_path and settings.model_path != spec.checkpoint
    name = f"{checkpoint.name}, run as {spec.key}," if own else f"{spec.key} ({checkpoint.name})"
    say(f"model {name} on {hardware.device}, {hardware.dtype}, {settings.attn_implementation}")
    lm = family.load(
        checkpoint.path,
        device=hardware.device,
        dtype=hardware.dtype,
        attn_implementation=settings.attn_implementation,
        device_map=settings.device_map,
    )
    for method in methods:
        method.check(lm)
    return Session(**vars(setup), spec=spec, say=say, progress=progress, cost=count_cost(lm), lm=lm)


def _check_attention(settings: RunSettings, hardware: Hardware) -> None:
    """Refuse flash attention where it cannot be had, before gigabytes are fetched or loaded."""
    if settings.attn_implementation != "flash_attention_2":
        return
    if not hardware.device.startswith("cuda"):
        raise SettingsError("ATTN_IMPLEMENTATION=flash_attention_2: it runs on a GPU only; allowed here: sdpa, eager")
    if importlib.util.find_spec("flash_attn") is None:
        raise SettingsError(
            "ATTN_IMPLEMENTATION=flash_attention_2: the package flash-attn is not installed; allowed here: sdpa, eager"
        )


def _check_config(family: type[AudioLM], path: Path, methods: Sequence[Method]) -> None:
    """Refuse methods that the config alone rules out; what is wrong with the config itself the loader says."""
    from audiomarathon.models.loading import loading

    try:
        with loading(path, family.__name__):
            config = family.read_config(path).get_text_config(decoder=True)
    except (ModelError, AttributeError):
        return
    for method in methods:
        method.check_config(config)


def find_hardware(settings: RunSettings) -> Hardware:
    """Return the device and precision that the settings mean on this machine.

    Raises
    ------
    SettingsError
        For a GPU that is not there.
    """
    import torch

    from audiomarathon.evaluation.environment import device_name

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
    return Hardware(device, dtype, device_name(device, settings.device_map))
