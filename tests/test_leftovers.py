"""No hook, wrapper, tensor or memory of a sample or a method is left after a call."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from conftest import KINDS, noise, skip_unless_carried
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.presses.snapkv import SnapKV
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.random import Random
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs, Prompt

METHODS = [
    Base(),
    *(get_method(method.key, 0.5) for method in all_methods() if method.key not in ("base", "keep_speech")),
]
METHODS += [get_method("fast_v:0.5+snapkv:0.5"), get_method("random:0.5+knorm:0.5")]
SOME_METHODS = [
    method if method.key in KINDS and method is not METHODS[-1] else pytest.param(method, marks=pytest.mark.long)
    for method in METHODS
]
ELSEWHERE = ("merge_adjacent", "composed")
PROMPT = Prompt("Which is it?", (noise(1.1, 1), noise(0.6, 2)), seed=11)


def generate(lm: AudioLM, inputs: Inputs, method: Method, steps: int = 3) -> Generation:
    return method.generate(lm, inputs, max_new_tokens=steps, ignore_end=True, keep_logits=True)


def assert_clean(lm: AudioLM) -> None:
    hooks = [
        hook
        for module in lm.model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    ]  # transformers keeps hooks once a model has returned its attention, as happens in other tests
    assert [hook for hook in hooks if not getattr(hook, "__module__", "").startswith("transformers.")] == []
    assert not ALL_ATTENTION_FUNCTIONS._local_mapping, "an attention wrapper was left"
    assert "forward" not in lm.audio_tower.__dict__
    assert getattr(lm.model.model, "rope_deltas", None) is None


@contextmanager
def followed(lm: AudioLM, inputs: Inputs) -> Iterator[dict[str, weakref.ref[Any]]]:
    """Yield weak references to a sample's inputs, hidden states, projections and caches, added while it runs."""
    references = {name: weakref.ref(tensor) for name, tensor in inputs.tensors.items()}
    references["audio mask"] = weakref.ref(inputs.audio_mask)

    def entering(name: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden, cache = args[0] if args else kwargs["hidden_states"], kwargs["past_key_values"]
            references[f"hidden {name} of {hidden.shape[1]}"] = weakref.ref(hidden)
            references["cache"] = weakref.ref(cache)
            for index, layer in enumerate(cache.layers):
                if layer.keys is not None:
                    references[f"keys {index} before {name}"] = weakref.ref(layer.keys)

        return hook

    with ExitStack() as stack:
        for index, layer in enumerate(lm.decoder_layers):
            handle = layer.register_forward_pre_hook(entering(f"layer {index}"), with_kwargs=True)
            stack.callback(handle.remove)
            # Phi-4's layers project queries, keys and values at once, Gemma 3n's last layers have only queries.
            projections = (getattr(layer.self_attn, name, None) for name in ("k_proj", "qkv_proj", "q_proj"))
            watched = next(filter(None, projections))
            handle = watched.register_forward_hook(
                lambda _m, _a, output, name=f"projected keys {index}": references.update({name: weakref.ref(output)})
            )
            stack.callback(handle.remove)
        yield references


def calls_in_decode(lm: AudioLM, inputs: Inputs, method: Method) -> int:
    """Count the function calls from the decoder of the second decode step to that of the fourth."""
    steps, calls = 0, 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps in (3, 5):
            sys.setprofile(count if steps == 3 else None)
        return forward(*args, **kwargs)

    forward = lm.decoder.forward
    lm.decoder.forward = counted
    gc.disable()  # its callbacks would be counted
    try:
        generate(lm, inputs, method, 6)
    finally:
        sys.setprofile(None)
        gc.enable()
        del lm.decoder.forward
    return calls


def alive(references: dict[str, weakref.ref[Any]]) -> list[str]:
    return [name for name, reference in references.items() if reference() is not None]


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch off the cycle collector: tensors that wait for it would occupy GPU memory until it runs."""
    gc.collect()
    gc.freeze()  # live objects, mostly models, need no further scan
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def base_logits(lm: AudioLM) -> torch.Tensor:
    return generate(lm, lm.prepare([PROMPT]), Base()).logits


@pytest.fixture(scope="module")
def logits_of_base(any_lm: AudioLM) -> torch.Tensor:
    """The logits of a model, before any test of an error has run on it."""
    return base_logits(any_lm)


@pytest.fixture(scope="module")
def calls_of_base(lm: AudioLM) -> int:
    return calls_in_decode(lm, lm.prepare([PROMPT]), Base())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
def test_no_method_leaves_a_hook_wrapper_or_tensor_on_the_model_after_generation(
    any_lm: AudioLM, method: Method
) -> None:
    skip_unless_carried(any_lm, method)
    inputs = any_lm.prepare([PROMPT])
    with without_collector():
        with followed(any_lm, inputs) as references:
            result = generate(any_lm, inputs, method)
        del inputs
        assert len(references) > 20
        assert alive(references) == []
    assert_clean(any_lm)
    assert len(result.logits) == 3  # a kept result, as in a run, keeps no tensor of the sample alive


@pytest.mark.parametrize("method", SOME_METHODS, ids=lambda method: method.label)
def test_a_decode_step_under_any_method_makes_as_many_function_calls_as_under_base(
    lm: AudioLM, method: Method, calls_of_base: int
) -> None:
    """Count Python and C calls of two decode steps, since a clock on a busy machine would not show the difference."""
    if getattr(method, "by_head", False):
        pytest.skip("heads of different lengths are spread out in every decode step: the price of Ada-KV")
    inputs = lm.prepare([PROMPT])
    assert calls_in_decode(lm, inputs, method) == calls_of_base > 1000


def test_sharing_one_encoder_output_among_methods_does_not_change_replies(lm: AudioLM) -> None:
    inputs, methods = (
        lm.prepare([PROMPT]),
        [method for method in METHODS if method.key in KINDS or method.changes_tower],
    )
    apart, runs = [generate(lm, inputs, method) for method in methods], list[int]()
    tower = lm.audio_tower.layers[0]  # with a stored output, the tower's layers are not called
    with encoder_shared(lm), tower.register_forward_hook(lambda *_: runs.append(1)):
        together = [generate(lm, inputs, method) for method in methods]
    assert len(runs) == 1 + sum(method.changes_tower for method in methods)
    assert any(method.changes_tower for method in methods)
    assert_clean(lm)
    for method, lone, other in zip(methods, apart, together, strict=True):
        for fact in ("replies", "kv_lengths", "kept_audio_tokens"):
            assert getattr(lone, fact) == getattr(other, fact), method.label
        assert torch.equal(lone.logits, other.logits), method.label


class Planted(Exception):  # noqa: N818 - what a test throws
    pass


@contextmanager
def failing(module: nn.Module, call: int = 0, error: type[BaseException] = Planted) -> Iterator[None]:
    """Let the given call of a module raise an error after its work."""
    calls = iter(range(10**6))

    def fail(*_args: Any) -> None:
        if next(calls) == call:
            raise error

    handle = module.register_forward_hook(fail)
    try:
        yield
    finally:
        handle.remove()


class BrokenFastV(FastV):
    def select(self, evidence: Any) -> torch.Tensor:
        super().select(evidence)
        raise Planted


class BrokenSnapKV(SnapKV):
    def score(self, cached: Any) -> torch.Tensor:
        score = super().score(cached)
        if cached.layer == 2:
            raise Planted
        return score


class BrokenRandom(Random):
    def select(self, evidence: Any) -> torch.Tensor:
        raise Planted


def assert_clean_after_a_failure(
    lm: AudioLM,
    method: Method,
    fault: AbstractContextManager[None] | None = None,
    error: type[BaseException] = Planted,
) -> None:
    inputs = lm.prepare([PROMPT])
    with fault or nullcontext(), without_collector(), followed(lm, inputs) as references:
        with pytest.raises(error) as caught:
            generate(lm, inputs, method)
        del inputs, caught  # the traceback's frames hold the sample
    gc.collect()
    assert alive(references) == []
    assert_clean(lm)


@pytest.mark.parametrize("method", SOME_METHODS, ids=lambda method: method.label)
def test_an_error_anywhere_in_the_forward_pass_leaves_no_hook_on_the_model(
    any_lm: AudioLM, logits_of_base: torch.Tensor, method: Method
) -> None:
    skip_unless_carried(any_lm, method)
    layers = any_lm.decoder_layers
    for module, call in [(any_lm.audio_tower, 0), (layers[3], 0), (layers[3], 1)]:
        assert_clean_after_a_failure(any_lm, method, failing(module, call))
    assert torch.equal(base_logits(any_lm), logits_of_base)


@pytest.mark.parametrize(
    "method",
    [BrokenFastV(0.5), BrokenRandom(0.5), BrokenSnapKV(0.5), BrokenSnapKV(0.5, scope="all")],
    ids=lambda method: type(method).__name__,
)
def test_an_error_inside_a_method_leaves_no_hook_on_the_model(
    any_lm: AudioLM, logits_of_base: torch.Tensor, method: Method
) -> None:
    skip_unless_carried(any_lm, method)
    assert_clean_after_a_failure(any_lm, method)
    assert torch.equal(base_logits(any_lm), logits_of_base)


def test_a_keyboard_interrupt_during_generation_leaves_no_hook_on_the_model(lm: AudioLM) -> None:
    fault = failing(lm.decoder_layers[2], 1, KeyboardInterrupt)
    assert_clean_after_a_failure(lm, get_method("fast_v:0.5+snapkv:0.5"), fault, KeyboardInterrupt)


def test_a_setting_that_fails_under_a_shared_encoder_does_not_affect_later_settings(lm: AudioLM) -> None:
    inputs = lm.prepare([PROMPT])
    apart = generate(lm, inputs, FastV(0.5))
    with encoder_shared(lm):
        with failing(lm.audio_tower), pytest.raises(Planted):
            generate(lm, inputs, Base())
        with pytest.raises(Planted):
            generate(lm, inputs, BrokenSnapKV(0.5))
        together = generate(lm, inputs, FastV(0.5))
    assert torch.equal(apart.logits, together.logits)
    assert_clean(lm)
