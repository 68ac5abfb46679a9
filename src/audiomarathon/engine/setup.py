"""Find a run's checkpoint, device and precision before the weights are loaded."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from audiomarathon.compression.method import Method
from audiomarathon.engine.environment import device_name, software
from audiomarathon.engine.transcripts import Transcriber
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint, stated_layers
from audiomarathon.models.registry import ModelSpec, get_local_model
from audiomarathon.runs.folder import identity_hash
from audiomarathon.settings import AUTO, EAGER, GRAPH, RunSettings

if TYPE_CHECKING:
    from audiomarathon.benchmarks import Task
    from audiomarathon.models.audio_lm import AudioLM

#: Settings that do not affect device, precision or family: paths, the choice of samples, and the method.
_ELSEWHERE = (
    "limit",
    "results",
    "data",
    "data_paths",
    "samples",
    "method",
    "ratio",
    "layer",
    "at",
    "scope",
    "schedule",
)
_OF_GPUS = ("CUDA_", "NVIDIA_", "HIP_", "ROCR_")  # env vars that hide or order GPUs begin with these


@dataclass(frozen=True)
class Hardware:
    """The device and precision with which a model runs.

    `name` is the name of the GPU or CPU, since times depend on it.
    """

    device: str
    dtype: str
    name: str

    @property
    def on_gpu(self) -> bool:
        """Whether the model runs on a GPU."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Setup:
    """Checkpoint, machine, settings and methods of a run. The identity of a run is made from these and the task.

    `asked` is a hash of everything that determines device and precision (see :func:`what_decides`); "" if another
    process determined them.
    """

    checkpoint: Checkpoint
    checkpoint_hash: str
    hardware: Hardware
    settings: RunSettings
    methods: Sequence[Method]
    spec: ModelSpec
    asked: str = ""

    @property
    def name(self) -> str:
        """Name of the model's folder within a task's results folder: the checkpoint's name.

        In a cascade (a text LLM that reads transcripts), the transcriber's name comes before it.
        """
        names = dict.fromkeys(method.system for method in self.methods if isinstance(method, Transcriber))
        return "+".join([*names, self.checkpoint.folder_name])

    @property
    def decode(self) -> str:
        """How decode runs if model and method allow it: `graph` (as a CUDA graph) or `eager` (call by call)."""
        if self.settings.decode != AUTO:
            return self.settings.decode
        return GRAPH if self.hardware.on_gpu and not self.settings.device_map else EAGER

    def graphed(self, method: Method) -> bool:
        """Tell whether decode runs as a CUDA graph under the given method."""
        if self.decode != GRAPH or self.spec.remote or not method.decodes_statically:
            return False
        return not self.spec.load_family().eager_because


def language_of(spec: ModelSpec, task: Task, settings: RunSettings) -> str:
    """Return the language of the task's speech for a model that must be told it to transcribe; "" for other models."""
    named = task.transcribes and not spec.remote and spec.load_family().names_language
    return settings.language or task.language if named else ""


def check_able(spec: ModelSpec, folder: Path | None, task: Task, settings: RunSettings) -> None:
    """Raise an error if a model cannot do a task under these settings, before its weights are loaded.

    Parameters
    ----------
    folder
        The checkpoint's folder; None if it is not on this machine, and then checks that need its files are skipped.

    Raises
    ------
    ModelError, SettingsError
        The model can only transcribe, does not know the language, or the like; the message says what is allowed.
    """
    if spec.remote:
        return
    family = spec.load_family()
    if family.transcribes_only and not task.transcribes:
        able = "tasks that ask for a transcript only (librispeech; of your own, with transcript and without question)"
        raise SettingsError(f"{task.key}: {spec.key} can only transcribe; allowed: {able}")
    if settings.save_attn and family.cross:
        why = "hears by cross-attention, which is not captured"
        raise SettingsError(f"SAVE_ATTN=1: {spec.key} {why}; allowed: models with audio tokens in the LLM's prompt")
    if folder is None or not folder.is_dir():
        return
    if language := language_of(spec, task, settings):
        family.check_language(folder, language)
    if 0 < (most := family.longest_reply(folder)) < settings.decode_tokens:
        raise SettingsError(
            f"DECODE_TOKENS={settings.decode_tokens}: {spec.key} ends a window's transcript after {most} tokens; "
            f"allowed: 0, 2–{most}"
        )


def find_setup(model: str, settings: RunSettings, methods: Sequence[Method]) -> Setup:
    """Return a run's setup (checkpoint, hardware, settings, methods), after checks that need no weights.

    Raises
    ------
    AudioMarathonError
        The model or device is not available here, or the config rules a method out.
    """
    spec = get_local_model(model)
    check_layers(settings.model_path or spec.checkpoint, methods)
    if not spec.load_family().hears and not all(isinstance(method, Transcriber) for method in methods):
        raise SettingsError(f"{spec.key}: hears nothing; run it on transcripts with: audiomarathon cascade --with LLM")
    check_chunks(spec, settings, methods)
    hardware = find_hardware(settings)
    _check_attention(settings, hardware)
    checkpoint = replace(find_checkpoint(settings.model_path or spec.checkpoint), variant=spec.variant)
    _check_config(spec.load_family(), checkpoint.path, methods)
    asked = what_decides(spec, settings)
    return Setup(checkpoint, checkpoint.fingerprint(), hardware, settings, tuple(methods), spec, asked)


def check_layers(source: str, methods: Sequence[Method]) -> None:
    """Raise an error if a method works at a layer that the checkpoint does not have, before PyTorch is imported.

    The number of layers comes from the checkpoint's `config.json`; if it is not stated there, nothing is checked.
    """
    if (count := stated_layers(source)) is None:
        return
    for method in (getattr(method, "first", method) for method in methods):
        last = max([layer for layer, _ratio in getattr(method, "schedule", ())] or [getattr(method, "layer", 0)])
        if getattr(method, "at", "") == "layer" and last >= count:
            method.check_config(SimpleNamespace(num_hidden_layers=count))


def check_chunks(spec: ModelSpec, settings: RunSettings, methods: Sequence[Method] = ()) -> None:
    """Raise SettingsError for prefill in chunks (PREFILL_CHUNK) if the model or a method does not support it."""
    chosen = f"PREFILL_CHUNK={settings.prefill_chunk}"
    if settings.prefill_chunk and (why := spec.load_family().whole_because):
        raise SettingsError(f"{chosen}: {spec.key}: {why}; allowed: 0")
    whole = [method.label for method in methods if not method.prefills_in_chunks]
    if settings.prefill_chunk and whole:
        why = "may need the whole prompt at once: its class does not set `chunked_prefill = True`"
        raise SettingsError(f"{chosen}: {', '.join(whole)} {why}; allowed: 0, or the methods of `audiomarathon list`")


def _check_attention(settings: RunSettings, hardware: Hardware) -> None:
    """Raise SettingsError if flash attention is chosen but cannot run here, before gigabytes are downloaded."""
    if settings.attn_implementation != "flash_attention_2":
        return
    if not hardware.device.startswith("cuda"):
        raise SettingsError("ATTN_IMPLEMENTATION=flash_attention_2 needs a GPU; allowed here: sdpa, eager")
    if importlib.util.find_spec("flash_attn") is None:
        raise SettingsError("ATTN_IMPLEMENTATION=flash_attention_2: flash-attn is not installed; allowed: sdpa, eager")


def _check_config(family: type[AudioLM], path: Path, methods: Sequence[Method]) -> None:
    """Raise an error for methods that cannot work with the checkpoint's config.

    A faulty config is no error here: loading the model reports it.
    """
    from audiomarathon.models.loading import loading
    from audiomarathon.models.tower_states import tower_depth

    try:
        with loading(path, family.__name__):
            whole = family.read_config(path)
            config = whole.get_text_config(decoder=True)
    except (ModelError, AttributeError):
        return
    for method in methods:
        method.check_config(config)
        method.check_family(family, tower_depth(whole))


def find_hardware(settings: RunSettings) -> Hardware:
    """Return the device and precision for the settings on this machine.

    Raises
    ------
    SettingsError
        The GPU does not exist.
    """
    import torch

    gpu = torch.cuda.is_available()
    device = ("cuda" if gpu else "cpu") if settings.device == "auto" else settings.device
    if device.startswith("cuda"):
        if not gpu:
            raise SettingsError(f"DEVICE={device}: PyTorch sees no GPU here; allowed: cpu, auto")
        if device[5:] and int(device[5:]) >= torch.cuda.device_count():
            raise SettingsError(
                f"DEVICE={device}: no such GPU; allowed: cuda:0 to cuda:{torch.cuda.device_count() - 1}"
            )
    if settings.device_map and not gpu:
        raise SettingsError(f"DEVICE_MAP={settings.device_map}: PyTorch sees no GPU here; leave DEVICE_MAP out")
    dtype = settings.dtype if settings.dtype != "auto" else ("bfloat16" if device.startswith("cuda") else "float32")
    return Hardware(device, dtype, device_name(device, settings.device_map))


def what_decides(spec: ModelSpec, settings: RunSettings) -> str:
    """Return a hash of everything that determines device, precision and the facts of the model's family in `run.json`.

    The hash covers settings, software versions, this package's files, GPUs and env vars.
    """
    package = Path(__file__).parent.parent
    states = [(file, file.stat()) for file in sorted(package.rglob("*.py"))]
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    nodes = [node for kind in ("nvidia*", "kfd", "dxg") for node in sorted(Path("/dev").glob(kind))]
    told = {
        "model": spec.key,
        "settings": {name: value for name, value in asdict(settings).items() if name not in _ELSEWHERE},
        "software": software(),
        "files": [(str(file), state.st_size, state.st_mtime_ns) for file, state in states],
        "gpus": [*map(str, nodes), *(card.read_text(errors="replace") for card in cards)],
        "env": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_OF_GPUS)},
    }
    return identity_hash(told)
