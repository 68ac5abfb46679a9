"""A frozen audio encoder behind one interface.

The interface is X-ARES': an `nn.Module` with `sampling_rate`, `output_dim` and `hop_size_in_ms` that turns float32
`[B, T]` into `[B, T', D]`. Two additions are optional: the attribute `max_seconds`, and `forward(audio, lengths=None)`,
which returns `(features, number of frames of each row)` when it is given lengths.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.code_hash import FORMER, code_hash
from audiomarathon.errors import EncoderError, blaming
from audiomarathon.settings import own_settings

if TYPE_CHECKING:
    import torch

_ANY_RUN = ("training", "device", "name_or_path")  # attributes that do not change an embedding


@dataclass
class Encoder:
    """An audio encoder with frozen weights, on its device.

    Attributes
    ----------
    name
        Name for tables and folders, such as the class name, the last part of a hub id, or "logmel".
    module
        The network, in eval mode, with frozen parameters.
    identity
        Everything that its embeddings depend on (source, class, arguments, weights, declared facts), JSON-compatible.
    max_seconds
        The longest clip that it accepts, in seconds; None for any length.
    takes_lengths
        Whether `forward` takes `lengths` and ignores the zeros after each clip's end.
    was_training
        Whether its constructor left layers in training mode.
    sdpa_backends
        Kernels that sdpa may use in `forward` on a GPU; by default those of `SDPA_BACKENDS`.
    """

    name: str
    module: torch.nn.Module
    identity: Mapping[str, Any]
    device: str
    sampling_rate: int
    output_dim: int
    hop_size_in_ms: float
    max_seconds: float | None = None
    takes_lengths: bool = False
    was_training: bool = False
    sdpa_backends: str = field(default_factory=lambda: own_settings().sdpa_backends)

    def encode(self, audio: torch.Tensor, lengths: Sequence[int] | None = None) -> list[torch.Tensor]:
        """Return the features of each clip, float32 of shape (frames, D) on the CPU; D is the encoder's `output_dim`.

        Parameters
        ----------
        audio
            The clips as rows, float32 of shape (clips, samples), zero-padded.
        lengths
            Number of samples in each row without padding; None to treat whole rows as audio.

        Raises
        ------
        EncoderError
            When the module raises, or returns another shape than it declares, or values that are not finite.
        """
        import torch

        from audiomarathon.models.kernels import attention_kernels, kernels_for

        if lengths is not None and not self.takes_lengths and set(lengths) != {audio.shape[1]}:
            raise EncoderError(
                f"{self.name}: its forward takes no lengths, so all clips of a batch must have equal length"
            )
        with blaming(f"{self.name}: forward on {list(audio.shape)} raised", EncoderError):
            with torch.no_grad(), attention_kernels(kernels_for(self.device, self.sdpa_backends)):
                given = (audio.to(self.device), torch.tensor(lengths or [], device=self.device))
                output = self.module(*given) if lengths is not None and self.takes_lengths else self.module(given[0])
            features, counts = output if isinstance(output, tuple) else (output, None)
            if problem := unusable(features):
                raise EncoderError(f"{self.name}: {problem}")
            features = features.detach().to("cpu", torch.float32)  # a forward may switch gradients on
            size = (len(audio), features.shape[1], self.output_dim)
            frames = [size[1]] * len(audio) if counts is None else [int(count) for count in counts.tolist()]
        if features.shape != size or len(frames) != len(audio) or not all(1 <= n <= size[1] for n in frames):
            got = f"{list(features.shape)} with frames {frames}"
            raise EncoderError(f"{self.name}: features: expected [{size[0]}, frames, {size[2]}], got {got}")
        rows = [row[:count].clone() for row, count in zip(features, frames, strict=True)]
        if not all(bool(row.isfinite().all()) for row in rows):
            raise EncoderError(f"{self.name}: features of audio {list(audio.shape)} are not finite")
        return rows


def unusable(features: Any) -> str:
    """Return why features are not a dense floating-point tensor of shape (clips, frames, D); "" if they are.

    Complex numbers and integers are refused, since their conversion to float32 would lose the imaginary part, or
    precision beyond 2²⁴.
    """
    import torch

    if not isinstance(features, torch.Tensor):
        return f"features must be a tensor, got {type(features).__name__}"
    if features.layout != torch.strided or features.is_quantized or features.is_nested:
        kind = "a quantized" if features.is_quantized else "a nested" if features.is_nested else f"a {features.layout}"
        return f"features must be a dense tensor, got {kind} tensor"
    if not features.is_floating_point():
        advice = (
            "such as their .abs(), or real and imaginary part side by side" if features.is_complex() else ".float()"
        )
        return f"features must be floating-point numbers, got {features.dtype}; return {advice}"
    return "" if features.ndim == 3 else f"features must have 3 dimensions [B, T, D], got {list(features.shape)}"


def from_module(
    module: torch.nn.Module,
    name: str = "",
    arguments: Mapping[str, Any] | None = None,
    device: str = "cpu",
    files: Iterable[Path] = (),
) -> Encoder:
    """Wrap an `nn.Module` as an :class:`Encoder`: in eval mode, without gradients, moved to `device`.

    Parameters
    ----------
    name
        Name of the encoder; "" for the name of its class.
    files
        Source files to hash besides those of its class and base classes.

    Raises
    ------
    EncoderError
        When it is not an nn.Module, or an attribute is missing or invalid.
    """
    import torch

    name = name or type(module).__name__
    if not isinstance(module, torch.nn.Module):
        raise EncoderError(f"{name}: must be a torch.nn.Module, got {type(module).__name__}")
    names = ("sampling_rate", "output_dim", "hop_size_in_ms", "max_seconds")
    with loading(name):
        facts: dict[str, Any] = {fact: getattr(module, fact, None) for fact in names}
        for fact, value in facts.items():
            kind = int if fact in names[:2] else (int, float)
            sound = isinstance(value, kind) and type(value) is not bool and 0 < value < math.inf
            if not sound and (fact, value) != ("max_seconds", None):
                allowed = "a positive whole number" if kind is int else "a positive number"
                raise EncoderError(f"{name}: attribute {fact} must be {allowed}, got {value!r}")
        identity: dict[str, Any] = {"class": type(module).__name__, "source": source_hash_of(type(module), files)}
        identity |= {"arguments": dict(arguments or {}), "state": _state_hash(module), **facts}
        was_training = any(part.training for part in module.modules() if not list(part.children()))
        module.eval().requires_grad_(False).to(device)
        takes_lengths = list(inspect.signature(module.forward).parameters)[1:2] == ["lengths"]
    return Encoder(name, module, identity, device, **facts, takes_lengths=takes_lengths, was_training=was_training)


def loading(name: str) -> AbstractContextManager[None]:
    return blaming(f"encoder {name}: cannot be loaded:", EncoderError)


def source_hash_of(kind: type, files: Iterable[Path]) -> str:
    """Return a hash of the code in `files`, and in the source files of a class and its base classes.

    Base classes of torch are left out.
    """
    sources = set(files)
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in ("torch", "builtins"):
            try:
                sources.add(Path(inspect.getfile(base)))
            except (TypeError, OSError):
                if not files:  # a class typed into a session may be edited unseen: never reuse its embeddings
                    return f"unknown-{uuid.uuid4().hex}"
    made = code_hash(sources)
    return FORMER.get(made, made)


def _state_hash(module: torch.nn.Module) -> str:
    """Return a hash of a module: the name, dtype, shape and bytes of all its tensors, and its plain attributes."""
    digest = hashlib.sha256()
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        _feed(digest, name, tensor)
    for name, part in module.named_modules():
        for key, value in sorted(vars(part).items()):
            if key[0] != "_" and key not in _ANY_RUN:
                _feed(digest, f"{name}.{key}", value)
    return digest.hexdigest()


def _feed(digest: hashlib._Hash, name: str, value: Any) -> None:
    """Add an attribute's name and value to a hash; tensors, arrays and modules inside lists and dicts count too."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        digest.update(f"{name}:{value.dtype}:{list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{name}:{value.dtype}:{list(value.shape)}\n".encode() + value.tobytes())
    elif isinstance(value, torch.nn.Module):
        digest.update(f"{name}:{_state_hash(value)}\n".encode())
    elif isinstance(value, (list, tuple, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _feed(digest, f"{name}.{key}", item)
    else:
        with suppress(TypeError, ValueError):  # of other objects, only source files in the encoder's folder are hashed
            digest.update(f"{name}={json.dumps(value, sort_keys=True)}\n".encode())
