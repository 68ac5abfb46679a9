"""Phi-4-multimodal's speech adapter: a LoRA on every layer of the LLM. Without it, the replies are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from audiomarathon.errors import ModelError
from audiomarathon.models.loading import check_installed, check_loading, loading

NAME = "speech"
FOLDER = "speech-lora"


def refuse_without(path: Path) -> None:
    """Refuse a checkpoint folder without the adapter, and an environment without peft, before anything is loaded.

    Raises
    ------
    ModelError
        Names the missing file or package.
    """
    check_installed("peft", "phi4mm")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (path / FOLDER / name).is_file():
            raise ModelError(f"{path}: no {FOLDER}/{name}; without the speech adapter the replies would be wrong")


def load_into(model: Any, path: Path) -> None:
    """Load and activate the adapter of the checkpoint folder `path`.

    Raises
    ------
    ModelError
        When the weights do not match the adapter exactly.
    """
    with loading(path / FOLDER, "the speech adapter"):
        info = model.load_adapter(
            str(path), adapter_name=NAME, adapter_kwargs={"subfolder": FOLDER}, ignore_mismatched_sizes=True
        )
        model.set_adapter(NAME)
    # transformers takes every name with "speech" in it for the adapter's, so it reports the speech projector as
    # missing.
    missing = [name for name in info.missing_keys if ".lora_" in name]
    check_loading(path / FOLDER, {**vars(info), "missing_keys": missing})


def check_active(layers: Iterable[nn.Module]) -> None:
    """Refuse a model in which a decoder layer does not use the adapter.

    Raises
    ------
    ModelError
        Names the layer and its fault.
    """
    for index, layer in enumerate(layers):
        fault = _fault([part for part in layer.modules() if hasattr(part, "lora_B")])
        if fault:
            raise ModelError(f"the speech adapter is not active: decoder layer {index} {fault}")


def _fault(parts: list[Any]) -> str:
    """Return the fault of one layer's adapted modules, or ""."""
    if not parts:
        return "has no adapter"
    if any(NAME not in part.lora_B or list(part.active_adapters) != [NAME] for part in parts):
        return "uses another adapter"
    if any(part.disable_adapters or part.merged for part in parts):
        return "has its adapter switched off, or merged into the weights"
    if not all(bool(part.lora_B[NAME].weight.any()) for part in parts):
        return "has an adapter of zeros"
    return ""


@contextmanager
def switched_off(model: Any) -> Iterator[None]:
    """Switch the adapter off inside the block."""
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()
