"""Time and memory estimates, checked by hand on a model of four layers with round numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders import a_record, typed
from conftest import noise
from task_folders import write_clip
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from audiomarathon.benchmarks import Sample
from audiomarathon.compression.method import Base
from audiomarathon.compression.registry import get_method
from audiomarathon.costs.config_facts import ModelFacts, model_facts
from audiomarathon.costs.cost import TEXT_TOKENS, Cost
from audiomarathon.engine.calibration import measured
from audiomarathon.engine.setup import Hardware
from audiomarathon.engine.sweep_plan import Calls, Todo, calls_of, from_flops, from_records, memory, what_is_left
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model
from audiomarathon.runs.folder import RunFolder
from audiomarathon.settings import RunSettings

SPEC = get_model("qwen2.5-omni")  # 25 tokens a second
COST = Cost((10.0,) * 4, (0.0,) * 4, 0.0, 1000.0)
FACTS = ModelFacts(None, COST, weight_bytes=1e9, kv_bytes=1e6, activation_bytes=2e6, logits_bytes=3e6)
BASE, FRAME = get_method("base"), get_method("frame", 0.5)


def todo(base: tuple[float, ...], frame: tuple[float, ...]) -> Todo:
    return Todo(2, 20.0, max(base, frame), ((BASE, base), (FRAME, frame)), 0)


class TestFromFlops:
    def test_estimated_prefill_and_decode_times_equal_values_computed_by_hand(self) -> None:
        """10 s of audio make 250 tokens, beside 250 text tokens. frame drops 125 in the upper two of four layers."""
        base, frame = 4 * 10 * 500, 2 * 10 * 500 + 2 * 10 * 375
        seconds = from_flops(FACTS, SPEC, todo((10.0,), (10.0,)), (1e-12, 1.0), 3, Calls())
        assert seconds == pytest.approx(10 * 1000 + base + frame + 2 * 3 * 1.0)

    def test_forced_decode_adds_a_second_prefill_and_its_tokens_to_the_estimated_time(self) -> None:
        work = todo((10.0,), ())
        once, forced = (from_flops(FACTS, SPEC, work, (1e-12, 1.0), 3, calls) for calls in (Calls(), Calls((5,))))
        assert forced - once == pytest.approx(4 * 10 * 500 + 5 * 1.0)
        assert from_flops(FACTS, SPEC, todo((), ()), (1.0, 1.0), 3, Calls((5,))) == 0.0


@pytest.mark.parametrize(("tokens", "seconds"), [(1, 6.0), (12, 2.0)])
def test_the_measured_speed_of_a_machine_predicts_generation_time_from_counted_flops(
    lm, tiny_checkpoint, tokens, seconds
) -> None:
    """The clock runs on counted FLOPs, so the machine's speed is known whatever its load."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # PyTorch does not count this one
    flops = {kernel: lambda query, key, *_given, **_more: sdpa_flop_count(query, key, key)}
    speed, counter = 1e7, FlopCounterMode(display=False, custom_mapping=flops)
    facts = model_facts(tiny_checkpoint, 4, type(lm))
    with counter:
        machine = measured.__wrapped__("cpu", "float32", facts.cost, lambda: counter.get_total_flops() / speed)
        assert machine.product == pytest.approx(speed)
        begin = counter.get_total_flops()
        inputs = lm.prepare([Prompt("word " * 50, (noise(seconds),))])
        Base().generate(lm, inputs, max_new_tokens=tokens, ignore_end=True)
        took = (counter.get_total_flops() - begin) / speed
    assert inputs.prompt_tokens[0] == pytest.approx(facts.cost.prompt(seconds, 25)[0], rel=0.2)
    work = Todo(1, seconds, (seconds,), ((BASE, (seconds,)),), 0)
    speeds = machine.prefill / 1e12, machine.reading / 1e9
    assert took / 3 < from_flops(facts, SPEC, work, speeds, tokens, Calls()) < 3 * took


@pytest.mark.parametrize(
    ("device", "settings", "calls"),
    [
        ("cuda", {}, Calls((3,), 2)),
        ("cuda", {"decode_tokens": "9"}, Calls((9, 3), 2)),
        ("cuda", {"timing": "cold"}, Calls()),
        ("cuda", {"timing": "0"}, Calls()),
        ("cpu", {}, Calls()),
    ],
)
def test_the_estimate_of_a_timed_run_on_a_gpu_includes_a_warm_up_pass(device, settings, calls) -> None:
    assert calls_of(RunSettings.read({}, **settings), Hardware(device, "float32", "x")) == calls


class TestFromRecords:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        time = {"prefill": 11.0, "load": 1.0, "preprocess": 2.0, "encoder": 3.0, "llm_prefill": 8.0, "decode": 4.0}
        sizes = {"prompt_tokens": 500, "audio_tokens": 250, "new_tokens": 3}
        with RunFolder(tmp_path, {"method": "base"}) as folder:
            folder.write_run({"task": "tau", "checkpoint": "x", "method": "base-0", "cost": COST.as_json()})
            folder.append(typed(a_record(clip_seconds=10.0, time=time, **sizes)))
        return tmp_path

    @pytest.mark.parametrize(
        ("calls", "extra"),
        [
            (Calls(), 0.0),
            (Calls((5,)), 8.0 + 7.0 + 2 * 5 * 2.0),
            (Calls((3,), towers=2), 3.0 + 8.0 + 7.0 + 2 * 3 * 2.0),
        ],
        ids=["once", "forced decode", "warm pass"],
    )
    def test_an_estimate_from_records_scales_their_times_by_audio_length_and_flops(
        self, folder, calls: Calls, extra: float
    ) -> None:
        """Frame needs 7/8 of base's prefill; twice the audio takes twice as long."""
        expected = 6.0 + (8.0 + 4.0) + (7.0 + 4.0) + extra
        assert from_records(folder, todo((10.0,), (10.0,)), calls) == (pytest.approx(expected), 1)
        assert from_records(folder, todo((20.0,), (20.0,)), calls) == (pytest.approx(2 * expected), 1)

    def test_an_estimate_from_records_counts_only_samples_still_to_run(self, folder: Path) -> None:
        assert from_records(folder, todo((), (10.0,)), Calls()) == (pytest.approx(6.0 + 7.0 + 4.0), 1)


def test_the_memory_estimate_covers_a_whole_batch_and_is_lower_for_prefill_in_chunks() -> None:
    assert TEXT_TOKENS == 250
    for batch, total in ((1, 1.0 + 0.5 + 1.0 + 0.003), (4, 1.0 + 2.0 + 4.0 + 0.012)):
        line = memory(FACTS, SPEC, 10.0, batch)
        assert line.startswith(f"memory: about {total:.2f} GB at the longest clip (10 s, 500 ")
    # Activations: 500 states of 0.1 MB, and 50 tokens of 2 MB each with their masks, in place of 1 GB.
    assert "activations 0.15," in memory(replace(FACTS, state_bytes=1e5), SPEC, 10.0, 1, 50)


def test_the_remaining_work_of_each_setting_consists_of_the_samples_it_has_no_record_for(tmp_path: Path) -> None:
    """The first sample is done under both settings, the second under one. The tower runs on all remaining clips."""
    samples = [
        Sample(f"s{n}", (write_clip(tmp_path / f"{n}.wav", seconds=n),), "?", "A", "here") for n in (1.0, 2.0, 3.0)
    ]
    done = {BASE: {"s1.0", "s2.0"}, FRAME: {"s1.0"}}
    folders = [(label, SimpleNamespace(peek=list, done=lambda _clips, ids=ids: ids)) for label, ids in done.items()]
    left = what_is_left(samples, folders)  # type: ignore[arg-type]
    assert (left.samples, left.seconds, left.heard, left.on_record) == (3, 6.0, (2.0, 3.0), 3)
    assert left.durations == ((BASE, (3.0,)), (FRAME, (2.0, 3.0)))
