"""Checks that need a GPU, run by `make test-gpu`.

`GPU_TESTS_DEVICE=cpu` runs those that a CPU can run, to try the tests themselves.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import task_folders
import torch
from builders import records_in
from conftest import HOME, noise, skip_unless_carried, succeed
from families import FAMILIES

from audiomarathon.compression.attention import Attention
from audiomarathon.compression.composed import Composed
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.engine.run import run
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.busy import busy_seconds
from audiomarathon.models.generation import Generation
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model
from audiomarathon.models.static_decode import BLOCK
from audiomarathon.models.timing import StageTimer
from audiomarathon.settings import GRAPH, RunSettings
from audiomarathon.wings.encoders.registry import load_encoder

DEVICE = os.environ.get("GPU_TESTS_DEVICE", "cuda")
ON_GPU = DEVICE != "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="no GPU that PyTorch can use"),
]
only_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")

MISSING = () if find_spec("silero_vad") else ("keep_speech",)
KEYS = [method.key for method in all_methods() if not isinstance(method, Base) and method.key not in MISSING]
METHODS = [
    Base(),
    *(get_method(key, 0.5, 2) for key in KEYS),
    *(get_method(key, 0.5, at="input") for key in KEYS if key in ("random", "frame") or key.startswith("merge")),
    *(get_method(key, 0.5, at="tower") for key in ("random", "frame", "merge_frame")),
    get_method("fast_v:0.5+snapkv:0.3"),
]
PROMPTS = [
    Prompt("Which is it?\n\nA. cat\nB. dog", (noise(7.3, 1), noise(3.05, 2)), seed=11),
    Prompt("And now?", (noise(4.0, 3),), seed=12),
]
Loaded = Callable[[str, str, str], AudioLM]
Go = Callable[..., list[list[dict[str, Any]]]]
#: Scores that differ by less than this, in units of their standard deviation, are a tie.
TIE = 1e-3


@pytest.fixture(autouse=True)
def whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolve in float32: the default TF32 has ten bits, so a tower's features would differ by 1e-3."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(scope="session")
def on(family_checkpoint: Callable[[str], Path]) -> Loaded:
    """Return a family's tiny model on a device, in a precision."""

    @cache
    def load(key: str, device: str, dtype: str) -> AudioLM:
        family = get_model(key).load_family()
        return family.load(family_checkpoint(key), device=device, dtype=dtype, attn_implementation="sdpa")

    return load


def reply(lm: AudioLM, method: Method, prompts: Sequence[Prompt] = PROMPTS[:1]) -> Generation:
    return method.generate(lm, lm.prepare(prompts), max_new_tokens=4, ignore_end=True, keep_logits=True)


def without_pruning(method: Method) -> Method:
    if isinstance(method, Composed):
        method = replace(method, first=replace(method.first, ratio=0.0), second=replace(method.second, ratio=0.0))
    return replace(method, ratio=0.0)


@contextmanager
def choices() -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Collect the rankings that methods make inside the block: the scores, and the ranked indices."""
    ranked_scores: list[tuple[torch.Tensor, torch.Tensor]] = []

    def noting(rank: Any) -> Any:
        def call_(scores: torch.Tensor, *args: Any, **options: Any) -> Any:
            ranked = rank(scores, *args, **options)
            if "compression" in sys._getframe(1).f_code.co_filename and scores.is_floating_point():
                order = ranked.indices.cpu()
                order = order if options.get("sorted", True) else torch.sort(order).values
                ranked_scores.append((scores.double().cpu(), order))
            return ranked

        return call_

    with pytest.MonkeyPatch.context() as patch:
        for name in ("topk", "sort"):
            patch.setattr(torch.Tensor, name, noting(getattr(torch.Tensor, name)))
        yield ranked_scores


def is_tie(here: list[tuple[torch.Tensor, torch.Tensor]], there: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Return whether the first different ranking of two devices has scores equal up to rounding."""
    for (scores, order), (others, other_order) in zip(here, there, strict=True):
        if not torch.equal(order, other_order):
            finite = scores.isfinite() & others.isfinite()
            return bool((scores - others)[finite].abs().max() <= TIE * scores[finite].std())
    return False


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.label}")
@pytest.mark.parametrize("key", FAMILIES)
def test_replies_and_kept_tokens_of_a_method_on_a_gpu_equal_those_on_a_cpu(
    on: Loaded, key: str, method: Method
) -> None:
    cpu, gpu = on(key, "cpu", "float32"), on(key, DEVICE, "float32")
    skip_unless_carried(cpu, method)
    for prompts in (PROMPTS[:1], PROMPTS)[: 1 + method.batches]:
        with choices() as here:
            expected = reply(cpu, method, prompts)
        with choices() as there:
            generation = reply(gpu, method, prompts)
        assert generation.kept_audio_tokens == expected.kept_audio_tokens
        assert generation.kv_lengths == expected.kv_lengths
        kept = [(side.kept_positions or (), side.merges or ()) for side in (generation, expected)]
        same = all(torch.equal(positions, other) for positions, other in zip(kept[0][0], kept[1][0], strict=True))
        apart = (generation.logits - expected.logits).abs().max() / expected.logits.abs().max()  # type: ignore[operator, union-attr]
        assert (same and apart <= 2e-3) or is_tie(here, there)


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: f"{method.label}")
@pytest.mark.parametrize("key", FAMILIES)
def test_logits_at_ratio_0_equal_those_of_base_bit_for_bit_in_bfloat16(on: Loaded, key: str, method: Method) -> None:
    lm = on(key, DEVICE, "bfloat16")
    skip_unless_carried(lm, method)
    for decoding in (nullcontext(), as_graph(lm))[: 1 + (key == HOME)]:
        with decoding:
            assert torch.equal(reply(lm, without_pruning(method)).logits, reply(lm, Base()).logits)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.label}")
def test_two_identical_calls_give_equal_logits_and_leave_no_gpu_memory_allocated(on: Loaded, method: Method) -> None:
    lm = on(HOME, DEVICE, "bfloat16")
    first = reply(lm, method).logits
    level = torch.cuda.memory_allocated() if ON_GPU else 0
    again = reply(lm, method)
    assert torch.equal(first, again.logits)  # type: ignore[arg-type]
    assert again.peak_memory_bytes is None or again.peak_memory_bytes > level
    del again
    assert (torch.cuda.memory_allocated() if ON_GPU else 0) <= level


@only_gpu
@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: f"{method.label}")
@pytest.mark.parametrize("key", FAMILIES)
def test_no_method_makes_prefill_wait_for_the_gpu_more_often_than_base(
    on: Loaded, key: str, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = on(key, DEVICE, "bfloat16")
    skip_unless_carried(lm, method)
    marks: list[int] = []

    def waits(method: Method) -> int:
        marks.clear()
        with warnings.catch_warnings(record=True) as seen, monkeypatch.context() as patch:
            warnings.simplefilter("always")
            for name in ("start", "mark_first_token"):
                step = getattr(StageTimer, name)
                patch.setattr(StageTimer, name, lambda timer, step=step: (step(timer), marks.append(len(seen))))
            torch.cuda.set_sync_debug_mode("warn")
            try:
                reply(lm, method)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return marks[1] - marks[0]

    assert waits(method) <= waits(Base())


@contextmanager
def as_graph(lm: AudioLM) -> Iterator[None]:
    """Decode with a CUDA graph inside the block. A fallback to eager decode is an error."""
    with patched_attribute(lm, "decode", GRAPH), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*graph.*")
        yield


STATIC = [key for key in FAMILIES if key != "qwen3-omni"]  # experts select tokens, so it decodes eagerly


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.label}")
@pytest.mark.parametrize("key", STATIC)
def test_decode_in_a_cuda_graph_gives_the_replies_of_eager_decode(on: Loaded, key: str, method: Method) -> None:
    lm = on(key, DEVICE, "float32")
    skip_unless_carried(lm, method)
    for prompts in (PROMPTS[:1], PROMPTS):
        eager = reply(lm, method, prompts)
        with as_graph(lm):
            graph = reply(lm, method, prompts)
        assert graph.stages.decode_setup is not None
        assert graph.replies == eager.replies
        torch.testing.assert_close(graph.logits, eager.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tokens", [BLOCK, 2 * BLOCK + 3])
def test_repeated_long_replies_in_a_cuda_graph_allocate_no_further_memory(
    on: Loaded, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefills in between reuse the memory that a graph freed, and the allocator's cache is never emptied."""
    lm, levels, logits = on(HOME, DEVICE, "bfloat16"), list[int](), list[Any]()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("the cache was emptied"))
    for prompts in (PROMPTS[:1], PROMPTS[1:], PROMPTS[:1]):
        with as_graph(lm):
            done = get_method("snapkv", 0.5).generate(
                lm, lm.prepare(prompts), max_new_tokens=tokens, ignore_end=True, keep_logits=True
            )
        logits.append(done.logits)
        levels.append(torch.cuda.memory_allocated() if ON_GPU else 0)
    assert torch.equal(logits[0], logits[2])
    assert levels[2] <= levels[1]


@only_gpu
def test_a_cuda_graph_decodes_faster_and_its_setup_is_timed_separately(on: Loaded) -> None:
    lm = on(HOME, DEVICE, "bfloat16")
    inputs = lm.prepare(PROMPTS[:1])

    def best() -> Any:
        calls = [Base().generate(lm, inputs, max_new_tokens=64, ignore_end=True).stages for _ in range(3)]
        return min(calls, key=lambda stages: stages.decode)

    eager = best()
    with as_graph(lm):
        graph = best()
    assert graph.decode < eager.decode / 2
    assert graph.decode_setup > 0
    for _ in range(3):  # starting and stopping a profiler beside graphs once crashed
        with as_graph(lm), busy_seconds(lm):
            busy = Base().generate(lm, inputs, max_new_tokens=64, ignore_end=True).stages
        assert 0 < busy.decode < 1.2 * graph.decode
        with as_graph(lm):
            best()


def test_attention_weights_recomputed_in_half_precision_are_close_to_those_in_float32() -> None:
    query, key = (torch.randn(2, heads, 300, 64, device=DEVICE).bfloat16() for heads in (8, 2))
    half = Attention(query, key, key, None, 0.125).of_last_queries(16)
    full = Attention(query.float(), key.float(), key.float(), None, 0.125).of_last_queries(16)
    torch.testing.assert_close(half, full, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("key", ["qwen2.5-omni-7b", "qwen3-omni"])
def test_windowed_attention_of_the_audio_tower_equals_the_loop_over_windows_in_transformers(
    on: Loaded, key: str
) -> None:
    lm = on(key, DEVICE, "bfloat16")
    inputs, seen = lm.prepare(PROMPTS), list[torch.Tensor]()
    with lm.audio_tower.register_forward_hook(lambda _m, _a, output: seen.append(output.last_hidden_state)):
        for given in (inputs, replace(inputs, windows=None)):
            Base().generate(lm, given, max_new_tokens=1)
    assert (seen[0] - seen[1]).abs().max() <= 2**-7 * seen[1].abs().max()


@only_gpu
@pytest.mark.parametrize("key", ["qwen2.5-omni-7b", "qwen3-omni"])
def test_the_audio_tower_never_waits_for_the_gpu(on: Loaded, key: str) -> None:
    lm = on(key, DEVICE, "bfloat16")
    inputs = lm.prepare(PROMPTS)

    mode = torch.cuda.set_sync_debug_mode
    try:
        with (
            lm.audio_tower.register_forward_pre_hook(lambda *_: mode("error")),
            lm.audio_tower.register_forward_hook(lambda *_: mode("default")),
        ):
            Base().generate(lm, inputs, max_new_tokens=1)
    finally:
        mode("default")


@pytest.fixture
def go(tiny_checkpoint: Path, tmp_path: Path, no_env: Any) -> Go:
    """Run TAU with base and frame on the device; return each setting's records."""
    task_folders.build_tau(tmp_path / "data" / "TAU")

    def call_(**flags: Any) -> list[list[dict[str, Any]]]:
        given = {"data": str(tmp_path / "data"), "model_path": str(tiny_checkpoint), "results": tmp_path / "out"}
        settings = RunSettings.read({}, **{"device": DEVICE, "limit": 4, "max_new_tokens": 4, **given, **flags})
        methods = [get_method("base"), get_method("frame", 0.5)]
        return [records_in(result.folder) for result in run(["tau"], HOME, settings, methods, progress=False)]

    return call_


@only_gpu
def test_gpu_busy_seconds_are_recorded_only_for_warmed_up_samples(go: Go) -> None:
    for rows in go():
        assert all(row["warmed"] > 0 and row["time"]["encoder"] > 0 for row in rows)
        assert ["busy" in row for row in rows] == [True, True, False, False]
        for row in rows[:2]:
            assert 0 < row["busy"]["llm_prefill"] < 2 * row["time"]["llm_prefill"]
            assert row["busy"]["encoder"] > 0


def test_records_of_a_run_with_batch_size_auto_hold_the_batch_size_and_peak_memory(go: Go) -> None:
    for rows in go(timing=False, batch_size="auto"):
        for row in rows:
            assert row["batch"]["samples"] == len(rows)
            assert row["batch"]["planned"] >= len(rows)
            assert ("peak_memory_bytes" in row["batch"]) == ON_GPU


def test_the_certify_command_passes_on_the_gpu() -> None:
    succeed("certify", "--model", "embedded", "--device", DEVICE)


@pytest.mark.parametrize("name", ["control:logmel", f"tower:{HOME}"])
def test_an_encoder_gives_the_same_features_on_gpu_and_cpu(name: str, tiny_checkpoint: Path) -> None:
    arguments = {"checkpoint": str(tiny_checkpoint), "dtype": "float32"} if name.startswith("tower") else {}
    here, there = (load_encoder(name, arguments, device) for device in ("cpu", DEVICE))
    audio = torch.from_numpy(noise(3.0, 5))[None]
    for features, other in zip(here.encode(audio), there.encode(audio), strict=True):
        assert torch.allclose(features, other, rtol=1e-3, atol=1e-3)
