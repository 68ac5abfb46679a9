"""The invariants of timing and memory, true on any machine; nothing here asserts an absolute time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from conftest import noise

from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.engine.evaluate import peak_memory
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.timing import Clock, CudaClock, Stages, StageTimer, make_clock

NAP = 0.06


def quickest(lm: AudioLM, inputs: Inputs, method: Method, *, tokens: int = 2, runs: int = 3) -> Stages:
    """Return each stage's shortest time over a few runs: other load on the machine only adds to it."""
    stages = [method.generate(lm, inputs, max_new_tokens=tokens, ignore_end=True).stages for _ in range(runs)]
    return Stages(*(min(getattr(s, name) for s in stages) for name in ("encoder", "llm_prefill", "decode")))


@contextmanager
def nap_in(module: torch.nn.Module) -> Iterator[None]:
    """Make each call of a module take NAP seconds longer, inside its forward."""
    forward = module.forward
    with patched_attribute(module, "forward", lambda *args, **kwargs: time.sleep(NAP) or forward(*args, **kwargs)):
        yield


class TestStages:
    def test_the_stage_times_of_a_reply_add_up_to_no_more_than_the_wall_time(
        self, lm: AudioLM, prompts: list[Prompt]
    ) -> None:
        inputs = lm.prepare(prompts[:1])
        begin = time.perf_counter()
        stages = Base().generate(lm, inputs, max_new_tokens=8, ignore_end=True).stages
        wall = time.perf_counter() - begin
        assert min(stages.encoder, stages.llm_prefill, stages.decode) > 0
        assert stages.encoder + stages.llm_prefill + stages.decode <= wall
        assert stages.prefill == stages.encoder + stages.llm_prefill

    def test_a_delay_in_the_audio_tower_shows_only_in_the_encoder_time(
        self, lm: AudioLM, prompts: list[Prompt]
    ) -> None:
        inputs = lm.prepare(prompts[:1])
        plain = quickest(lm, inputs, Base())
        with nap_in(lm.audio_tower):
            napping = quickest(lm, inputs, Base())
        assert napping.encoder - plain.encoder > 0.5 * NAP
        assert napping.llm_prefill - plain.llm_prefill < 0.5 * NAP
        assert napping.decode - plain.decode < 0.5 * NAP

    def test_delays_in_the_decoder_show_in_prefill_once_and_in_decode_per_token(
        self, lm: AudioLM, prompts: list[Prompt]
    ) -> None:
        inputs = lm.prepare(prompts[:1])
        plain = quickest(lm, inputs, Base(), tokens=3)
        with nap_in(lm.decoder_layers[0]):
            napping = quickest(lm, inputs, Base(), tokens=3)
        assert 0.5 * NAP < napping.llm_prefill - plain.llm_prefill < 1.5 * NAP  # one call for the whole prompt
        assert 1.5 * NAP < napping.decode - plain.decode < 2.5 * NAP  # one for each further token

    def test_pruning_at_an_early_layer_shortens_llm_prefill(self, lm: AudioLM) -> None:
        inputs = lm.prepare([Prompt("?", (noise(90),))])
        with encoder_shared(lm):
            pruned, base = (quickest(lm, inputs, method).llm_prefill for method in (Frame(0.9, layer=0), Base()))
        assert pruned < 0.7 * base


class TestForcedDecode:
    @pytest.mark.parametrize("tokens", [2, 17])
    def test_a_reply_of_forced_length_has_exactly_the_tokens_asked_for(
        self, lm: AudioLM, prompts: list[Prompt], tokens: int
    ) -> None:
        inputs = lm.prepare(prompts[:1])
        with patched_attribute(lm, "end_tokens", tuple(range(len(lm.tokenizer)))):  # a model that would stop at once
            assert Base().generate(lm, inputs, max_new_tokens=tokens).replies[0].new_tokens == 1
            assert Base().generate(lm, inputs, max_new_tokens=tokens, ignore_end=True).replies[0].new_tokens == tokens


class FakeMemory(Clock):
    """A clock whose peak memory is set by the test."""

    peak = 0

    def rise(self, to: int) -> None:
        self.peak = max(self.peak, to)

    def reset_peak_memory(self) -> None:
        self.peak = 1

    def peak_memory_bytes(self) -> int:  # type: ignore[override]
        return self.peak


class TestPeakMemory:
    @pytest.mark.parametrize(("tower", "llm"), [(50, 80), (50, 20)])
    def test_peak_memory_of_the_audio_tower_is_measured_apart_from_that_of_the_llm(
        self, lm: AudioLM, prompts: list[Prompt], tower: int, llm: int
    ) -> None:
        clock = FakeMemory()
        with (
            patched_attribute(lm, "clock", clock),
            lm.audio_tower.conv1.register_forward_hook(lambda *_: clock.rise(tower)),
            lm.decoder_layers[0].register_forward_hook(lambda *_: clock.rise(llm)),
            encoder_shared(lm),
        ):
            first, second = (Base().generate(lm, lm.prepare(prompts[:1]), max_new_tokens=2) for _ in range(2))
        assert (first.encoder_peak_memory_bytes, first.peak_memory_bytes) == (tower, max(tower, llm))
        assert (second.encoder_peak_memory_bytes, second.peak_memory_bytes) == (1, llm)
        assert peak_memory(second, first) == max(tower, llm)


class TestClocks:
    def test_a_cpu_model_reports_no_peak_memory(self, lm: AudioLM, prompts: list[Prompt]) -> None:
        assert Base().generate(lm, lm.prepare(prompts[:1]), max_new_tokens=1).peak_memory_bytes is None

    def test_milliseconds_between_cuda_events_are_converted_to_seconds(self) -> None:
        assert CudaClock().seconds(SimpleNamespace(elapsed_time=lambda end: end), 1500.0) == 1.5

    def test_each_time_taken_on_several_gpus_waits_for_all_of_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waited: list[str] = []
        monkeypatch.setattr("torch.cuda.synchronize", waited.append)
        monkeypatch.setattr("torch.cuda.max_memory_allocated", {"cuda:0": 30, "cuda:1": 12}.get)
        clock = Clock(["cuda:0", "cuda:1"])  # type: ignore[list-item]
        clock.mark()
        assert waited == ["cuda:0", "cuda:1"]
        assert clock.peak_memory_bytes() == 42

    def test_the_stage_timer_synchronises_the_device_before_its_start_and_after_its_end(self) -> None:
        done: list[str] = []

        clock = SimpleNamespace(
            mark=lambda: done.append("mark"),
            synchronize=lambda: done.append("wait"),
            reset_peak_memory=lambda: done.append("reset"),
        )
        timer = StageTimer(clock)  # type: ignore[arg-type]
        timer.start()
        timer.stop()
        assert done == ["wait", "reset", "mark", "mark", "wait"]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_times_of_cuda_events_agree_with_the_wall_clock(self) -> None:
        weight = torch.nn.Linear(8192, 8192, device="cuda")
        clock = make_clock(weight)
        assert isinstance(clock, CudaClock)
        clock.synchronize()
        begin, start = time.perf_counter(), clock.mark()
        for _ in range(20):
            weight(torch.zeros(4096, 8192, device="cuda"))
        end = clock.mark()
        clock.synchronize()
        wall = time.perf_counter() - begin
        assert 0.5 * wall < clock.seconds(start, end) <= 1.05 * wall
