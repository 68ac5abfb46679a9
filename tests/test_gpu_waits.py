"""No method makes the program wait for the GPU in prefill.

A program waits when it reads a value of a tensor, makes a tensor whose size depends on values, or copies a tensor from
the CPU's memory. On a CPU such calls cost nothing, so they are counted here.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from conftest import ALL, KINDS, noise, skip_unless_carried
from families import Family
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from audiomarathon.compression.composed import Composed
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.timing import Clock, StageTimer

ELSEWHERE = ("fast_v", "merge_frame", "ada_snapkv")  # families may add waits in masks, rotation and caches
PROMPTS = [
    Prompt("Which is it?", (noise(1.1, 1), noise(0.6, 2)), seed=11),
    Prompt("And now?", (noise(0.9, 3),), seed=12),
]
_WAIT = {"_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique_consecutive", "_unique2", "equal"}
_INDEXES = {getattr(torch.Tensor, name) for name in ("__getitem__", "__setitem__")}
_MAKES = {*_device_constructors(), torch.from_numpy}
_MIXES = {torch.Tensor.copy_, torch.Tensor.to}
_THE_CPU, _DEVICE = torch.device("cpu", 0), torch.Tensor.device.__get__  # type: ignore[attr-defined]
_ABOUT = {torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__}  # type: ignore[attr-defined]
_READS = {getattr(torch.Tensor, name) for name in ("item", "__int__", "__float__", "__bool__", "__index__")}


def leaves(*parts: Any) -> list[Any]:
    """Return all leaves of nested tuples, lists and dictionaries."""
    found = []
    for part in parts:
        if isinstance(part, tuple | list):
            found += leaves(*part)
        elif isinstance(part, dict):
            found += leaves(*part.values())
        else:
            found.append(part)
    return found


class Waits(TorchDispatchMode, Clock):
    """A dispatch mode that counts waits, and a clock that returns the count instead of the time."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        Clock.__init__(self)
        self.places: list[str] = []

    def note(self) -> None:
        frame: Any = sys._getframe(1)
        while frame is not None and "audiomarathon" not in frame.f_code.co_filename:
            frame = frame.f_back
        self.places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "transformers")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, indices = func.overloadpacket.__name__, args[1] if len(args) > 1 else ()
        masks = [index for index in indices if torch.is_tensor(index)] if isinstance(indices, list | tuple) else []
        if name in _WAIT or (name.startswith("index") and any(mask.dtype == torch.bool for mask in masks)):
            self.note()
        return func(*args, **(kwargs or {}))

    def mark(self) -> int:
        return len(self.places)


class Copies(TorchFunctionMode):
    """Counts copies that would wait for the GPU. Tensors made without a device, or from such tensors, are on the CPU.

    Our code must not mix CPU and GPU tensors, which is an error on a real GPU too. The device of a CPU tensor has an
    index here, so that tensors made on this device are on the CPU as well.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ABOUT:
            return func(*args)
        kwargs = kwargs or {}
        parts = leaves(*args, *kwargs.values())
        given = [part for part in parts if isinstance(part, torch.Tensor)]
        marked = ["on_cpu" in vars(tensor) for tensor in given]
        made = func in _MAKES
        device = next((part for part in parts if isinstance(part, torch.device)), kwargs.get("device"))
        stays = device is None or device == _THE_CPU
        on_cpu = (all(marked) or func is torch.Tensor.cpu) and stays if given else made and stays
        if func == _DEVICE and marked[0]:
            return _THE_CPU
        ours = "audiomarathon" in sys._getframe(1).f_code.co_filename
        if ours and func in _INDEXES:
            assert all(marked) or not marked[0], f"{func.__name__}: an index of the GPU for a tensor of the CPU"
        elif ours and func not in _MIXES:
            sized = {mark for tensor, mark in zip(given, marked, strict=True) if tensor.dim() or not mark}
            assert len(sized) < 2, f"{func.__name__}: tensors of the CPU and of the GPU"
        result = func(*args, **kwargs)
        moved = func is torch.Tensor.to and all(marked) and not stays
        if func in _INDEXES and not marked[0]:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            waits = any(
                isinstance(part, torch.Tensor) and not part.dim() and not part.is_floating_point() for part in index
            )
            written = len(args) > 2 and not isinstance(args[2], torch.Tensor)
            if waits or (written and not any(isinstance(part, slice) or part is ... for part in index)):
                self.note()  # the index is read, or the number is copied
        made_there = func is torch.tensor and not stays and result.numel()
        # In inference mode, the dispatch mode does not see a value that is read.
        if func in _READS or made_there or (moved and not kwargs.get("non_blocking")):
            self.note()
        if moved or (on_cpu and not all(marked)):
            result = result.detach()  # `to` and `cpu` may return their argument, which must not be marked
        for leaf in leaves(result) if on_cpu else ():
            if isinstance(leaf, torch.Tensor):
                leaf.on_cpu = True  # type: ignore[attr-defined]
        return result


@contextmanager
def counting(lm: AudioLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Count the waits of all calls inside the block."""
    waits, to_list = Waits(), torch.Tensor.tolist
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", lambda tensor: waits.note() or to_list(tensor))
        patch.setattr(lm, "clock", waits)
        with waits, Copies(waits.note):
            yield waits


def waits_in_prefill(lm: AudioLM, method: Method, prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the waits in LLM prefill by line of our code. Waits inside transformers have one common entry."""
    inputs, marks = lm.prepare([prompt]), list[int]()
    with counting(lm, monkeypatch) as waits, monkeypatch.context() as patch:
        for name in ("start", "mark_first_token"):
            step = getattr(StageTimer, name)
            patch.setattr(StageTimer, name, lambda timer, step=step: (step(timer), marks.append(waits.mark())))
        method.generate(lm, inputs, max_new_tokens=1)
    return Counter(waits.places[slice(*marks)])


METHODS = [method for method in (*all_methods(), get_method("fast_v:0.5+snapkv:0.3")) if not isinstance(method, Base)]


@pytest.fixture(scope="module")
def waits_of_base(any_lm: AudioLM) -> Counter[str]:
    with pytest.MonkeyPatch.context() as patch:
        return waits_in_prefill(any_lm, Base(), PROMPTS[0], patch)


@pytest.mark.parametrize("at", ["layer", "input"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.key)
def test_no_method_makes_prefill_wait_for_the_gpu_more_often_than_without_compression(
    any_lm: AudioLM, waits_of_base: Counter[str], method: Method, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at == "input" and not hasattr(method, "at"):
        pytest.skip("works at layers only")
    if not isinstance(method, Composed):
        method = get_method(method.key, 0.5, layer=2, at=at)
    skip_unless_carried(any_lm, method)
    assert not waits_in_prefill(any_lm, method, PROMPTS[0], monkeypatch) - waits_of_base


@pytest.mark.parametrize(
    ("at", "decode", "chunk"),
    [("layer", "graph", 16), ("layer", "eager", 0), ("input", "eager", 0), ("tower", "graph", 0)],
)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.key)
def test_no_operation_mixes_cpu_and_gpu_tensors(
    any_lm: AudioLM, method: Method, at: str, decode: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at != "layer" and not hasattr(method, "at"):
        pytest.skip("works at layers only")
    if (at, decode) == ("layer", "eager") and not ALL and method.key not in KINDS:
        pytest.skip("decode and prefill do not know of each other")
    if not isinstance(method, Composed):
        method = get_method(method.key, 0.5, layer=2 if at == "layer" else None, at=at)
    skip_unless_carried(any_lm, method)
    monkeypatch.setattr(any_lm, "decode", decode)
    monkeypatch.setattr(any_lm, "prefill_chunk", 0 if any_lm.whole_because else chunk)
    inputs = any_lm.prepare(PROMPTS if method.batches else PROMPTS[:1])
    tokens = 4 if decode == "graph" else 2  # a shorter reply would be decoded eagerly
    with Copies(lambda: None):
        method.generate(any_lm, inputs, max_new_tokens=tokens, ignore_end=True, keep_entries=True)


def test_no_audio_tower_waits_for_the_gpu(family: Family, family_lm: AudioLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Towers get the lengths of their windows as Python numbers."""
    if family.key in ("phi4mm", "audio-flamingo-3"):
        pytest.skip("transformers makes one mask a call, from values; no layer waits")
    inputs, marks = family_lm.prepare(PROMPTS), list[int]()
    with counting(family_lm, monkeypatch) as waits:
        with (
            family_lm.audio_tower.register_forward_pre_hook(lambda *_: marks.append(waits.mark())),
            family_lm.audio_tower.register_forward_hook(lambda *_: marks.append(waits.mark())),
        ):
            Base().generate(family_lm, inputs, max_new_tokens=1)
        assert marks
        assert not waits.places[slice(*marks[:2])]
