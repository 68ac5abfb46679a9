"""Load a checkpoint so that its weights match the model exactly, or raise an error with the reason in one line."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from audiomarathon.errors import ANY_ERROR, AudioMarathonError, ModelError, WeightsError


@contextmanager
def loading(path: Path, family: str) -> Iterator[None]:
    """Inside the `with` block, silence transformers' log, and turn any error into a :class:`ModelError` of one line.

    Raises
    ------
    ModelError
        For any error, such as missing files, a config of another architecture, or a package that is not installed.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    except AudioMarathonError:
        raise
    except ANY_ERROR as error:  # an unusual config may make the libraries raise any error
        if isinstance(error, torch.OutOfMemoryError):
            raise ModelError(f"{path}: the model does not fit the GPU's memory; try DEVICE_MAP=auto") from error
        if isinstance(error, OSError) and error.strerror:  # an error of the system, not of transformers
            raise ModelError(f"{error.filename or path}: {error.strerror}, while loading {family}") from error
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"{path}: cannot be loaded as {family}: {reason.strip()}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)


def pretrained(
    native: Any, path: Path, *, dtype: str, attn_implementation: str | Mapping[str, str], device_map: str, **more: Any
) -> tuple[Any, dict[str, Any]]:
    """Load a folder as a model of the transformers class `native`; return (model, loading report).

    The report is for :func:`check_loading`.

    Raises
    ------
    ModelError
        A device map puts parts of the model outside the GPUs: then times would measure copies of weights.
    """
    model, info = native.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        attn_implementation=attn_implementation,
        device_map=device_map or None,
        ignore_mismatched_sizes=True,  # check_loading refuses such tensors, and names them
        output_loading_info=True,
        **more,
    )
    places = [str(place) for place in getattr(model, "hf_device_map", {}).values()]
    outside = [place for place in places if place in ("cpu", "disk")]
    if outside and (len(outside) < len(places) or torch.cuda.is_available()):
        raise ModelError(
            f"{path}: the model does not fit the GPUs' memory: DEVICE_MAP={device_map} leaves {len(outside)} of "
            f"{len(places)} parts on {' and '.join(sorted(set(outside)))}; free memory, or use more GPUs or a smaller "
            "checkpoint"
        )
    return model, info


def causal_lm(path: Path, *, dtype: str, device_map: str = "", attn_implementation: str = "sdpa") -> tuple[Any, Any]:
    """Load a text LLM from a folder; return (model in eval mode, its tokenizer, which pads on the left)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with loading(path, "a text model"):
        tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        model, info = pretrained(
            AutoModelForCausalLM, path, dtype=dtype, attn_implementation=attn_implementation, device_map=device_map
        )
    check_loading(path, info)
    return model.eval(), tokenizer


def check_loading(path: Path, info: Mapping[str, Any]) -> None:
    """Raise ModelError if a checkpoint does not match the model exactly, since missing weights would be random.

    `info` is the report of :func:`pretrained`. Tensors may not be missing, unexpected or of another shape; the message
    names the first few.
    """
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        names = sorted(str(name) for name in info.get(kind, ()))
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise ModelError(f"{path}: {kind.replace('_', ' ')} in the checkpoint: {shown}")


def check_finite(path: Path, model: torch.nn.Module) -> None:
    """Raise WeightsError if weights contain NaN or infinity, since every reply would be nonsense.

    The message names the tensor.
    """
    extremes = {  # each tensor's lowest and highest value (NaN if any value is NaN); each GPU is read only once
        name: torch.stack(torch.aminmax(tensor.detach()))
        for name, tensor in model.named_parameters()
        if tensor.is_floating_point() and tensor.numel() and tensor.device.type != "meta"
    }
    for device in {pair.device for pair in extremes.values()}:
        names = [name for name, pair in extremes.items() if pair.device == device]
        finite = torch.stack([extremes[name].float() for name in names]).isfinite().all(-1).tolist()
        if not all(finite):
            bad = names[finite.index(False)]
            kind = str(extremes[bad].dtype).removeprefix("torch.")
            raise WeightsError(
                f"{path}: the weights of {bad} hold NaN or infinity in {kind}; download the checkpoint again, or, if "
                "its numbers overflow float16, set DTYPE=bfloat16 or float32"
            )


def check_installed(package: str, extra: str) -> None:
    """Raise ModelError if the package that a model family needs is not installed; the message says how to install it.

    Parameters
    ----------
    package
        Name of the package in an import.
    extra
        This project's pip extra that installs it; also the name of the file in `requirements/`.
    """
    if importlib.util.find_spec(package) is None:
        raise ModelError(
            f"this model needs the package {package}: pip install -r requirements/{extra}.txt, "
            f"or pip install 'audiomarathon[{extra}]'"
        )


@contextmanager
def patched_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace the attribute `name` of an object by `value` inside the `with` block, on this instance only."""
    # If the instance had the attribute, put it back (accelerate, too, replaces `forward` on instances). If only the
    # class had it, delete ours, and the class's is visible again.
    on_instance = name in vars(owner) or name in getattr(owner, "_buffers", ())
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if on_instance:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
