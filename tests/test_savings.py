"""FLOPs compared with counts by hand, invariants of ideal savings, and measured ratios on made-up records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import IDENTITY, STAGES, a_record, a_verdict, typed
from conftest import load_tiny, noise
from families import FAMILIES, Family
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.costs import flops
from audiomarathon.costs.config_facts import model_facts
from audiomarathon.costs.cost import Cost, Drops, ideal_speed_up
from audiomarathon.costs.flops import active_parameters, count_cost, drops_of
from audiomarathon.models.audio_lm import AudioLM, Prompt
from audiomarathon.report.tables import lengths_text
from audiomarathon.results.pairs import Pairs, median_ratio
from audiomarathon.results.savings import savings
from audiomarathon.runs.read import Run

# A layer of the tiny model: q 32·32+32, k and v 32·16+16 each, o 32·32, three MLP matrices of 32·64, two norms of 32.
LAYER = (32 * 32 + 32) + 2 * (32 * 16 + 16) + 32 * 32 + 3 * 32 * 64 + 2 * 32
HEAD = 266 * 32
TINY = Cost((2.0 * LAYER,) * 4, (2.0 * 4 * 8,) * 4, 2.0 * HEAD, 4_070_400.0)
SIZES = {"prompt_tokens": 100, "audio_tokens": 60, "clip_seconds": 2.4}
RECORD = typed(a_record(**SIZES))


def test_a_median_of_time_ratios_leaves_out_only_missing_and_zero_times() -> None:
    """Ratios of a thousandth and of a thousand count like all others."""
    missing = [(None, 1.0, "d"), (1.0, None, "e"), (1.0, 0.0, "f")]
    assert median_ratio([(1.0, 1000.0, "a"), (2.0, 1.0, "b"), (1000.0, 1.0, "c"), *missing], seed=0).value == 2.0
    assert median_ratio([(1.0, 1000.0, "a"), (1.0, 500.0, "b"), (3.0, 1.0, "c")], seed=0).value == 0.002
    assert median_ratio(missing, seed=0) is None


@contextmanager
def read_in_decode(lm: AudioLM) -> Iterator[dict[str, int]]:
    """Collect the bytes of the LLM's parameters that decode steps read inside the block, by name."""
    modules = {"decoder": lm.decoder, "lm_head": lm.lm_head}
    named = [(f"{part}.{name}", p) for part, module in modules.items() for name, p in module.named_parameters()]
    names = {p.untyped_storage().data_ptr(): (name, p.nbytes) for name, p in named}
    reads, steps = dict[str, int](), count()

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            if not func.is_view and func.overloadpacket.__name__ != "embedding":
                reads.update(names[at] for tensor in tensors if (at := tensor.untyped_storage().data_ptr()) in names)
            return func(*args, **(kwargs or {}))

    with Reads(), lm.model.register_forward_pre_hook(lambda *_: reads.clear() if next(steps) else None):
        yield reads


class TestCounting:
    def test_flops_counted_for_the_tiny_model_equal_a_count_by_hand(self, lm: AudioLM) -> None:
        cost = count_cost(lm)
        assert LAYER == 9344
        assert cost.flops_per_token_per_layer == TINY.flops_per_token_per_layer
        assert cost.attention_flops_coefficient == TINY.attention_flops_coefficient
        assert cost.lm_head_flops == TINY.lm_head_flops

    @pytest.mark.parametrize("attention", ["sdpa", "eager"])
    def test_flops_counted_for_the_audio_tower_equal_a_count_by_hand(
        self, tiny_checkpoint: Path, attention: str
    ) -> None:
        """Two convolutions at 100 and 50 frames a second, one layer that attends in windows of 100, a projection."""
        convolutions = 100 * 2 * 3 * 128 * 32 + 50 * 2 * 3 * 32 * 32
        layer = 50 * (2 * (4 * 32 * 32 + 2 * 32 * 32) + 4 * 100 * 32)
        lm = load_tiny(tiny_checkpoint, attention)
        assert count_cost(lm).encoder_flops_per_second == convolutions + layer + 25 * 2 * 32 * 32

    def test_audio_tower_flops_count_a_partly_filled_window_as_a_whole_one_in_every_family(
        self, family_lm: AudioLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One second more than 30 s costs another window if the tower has windows, and one second otherwise."""
        cost = count_cost(family_lm)
        monkeypatch.setattr(flops, "_PROBE_SECONDS", 31.0)
        counted = count_cost(family_lm).encoder_flops_per_second * 31
        assert cost.encoder(31.0) == pytest.approx(counted, rel=0.03)

    def test_counting_flops_leaves_the_model_unchanged(self, lm: AudioLM, prompts: list[Prompt]) -> None:
        def logits() -> torch.Tensor:
            return Base().generate(lm, lm.prepare(prompts[:1]), max_new_tokens=2, keep_logits=True).logits

        before = logits()
        count_cost(lm)
        assert not [*lm.audio_tower._forward_hooks, *lm.audio_tower._forward_pre_hooks]
        assert lm.model.model.rope_deltas is None
        assert torch.equal(before, logits())

    @pytest.mark.parametrize("key", FAMILIES)
    def test_counted_weight_bytes_equal_the_weights_read_in_a_real_decode_step(
        self, loaded: Callable[[str, str], AudioLM], key: str
    ) -> None:
        """Weights are counted in a real step, by the storage of each operation's inputs. No family reads its tower."""
        lm, cost = loaded(key, "sdpa"), count_cost(loaded(key, "sdpa"))
        with read_in_decode(lm) as read:
            Base().generate(lm, lm.prepare([Prompt("What?", (noise(1.0),))]), max_new_tokens=3, ignore_end=True)
        assert sum(nbytes for name, nbytes in read.items() if "experts" not in name) == cost.weight_bytes
        assert sum(nbytes for name, nbytes in read.items() if "experts" in name) == cost.expert_bytes

    @pytest.mark.parametrize(("batch", "met"), [(1, 2.0), (2, 3.5), (1000, 8.0)])
    def test_a_decode_step_of_a_larger_batch_reads_the_weights_of_more_experts(self, batch: int, met: float) -> None:
        """Of 8 experts, each token uses 2: with two tokens, 8 · (1 − (6/8)²) = 3.5 are expected."""
        cost = replace(TINY, weight_bytes=10.0, expert_bytes=800.0, experts=8, experts_per_token=2)
        assert cost.step_bytes(0.0, batch) == pytest.approx(10.0 + 100.0 * met)

    def test_flops_and_weight_bytes_computed_from_the_config_agree_with_the_loaded_model(
        self, family: Family, family_lm: AudioLM, family_checkpoint: Callable[[str], Path]
    ) -> None:
        """Everything but norms, biases and small matrices; files may hold weights that are not loaded."""
        told, counted = model_facts(family_checkpoint(family.key), 4, type(family_lm)), count_cost(family_lm)
        assert told.cost.flops_per_token_per_layer == pytest.approx(counted.flops_per_token_per_layer, rel=0.05)
        assert told.cost.attention_flops_coefficient == counted.attention_flops_coefficient
        assert told.cost.lm_head_flops == counted.lm_head_flops
        if family.key in ("qwen3-omni", "gemma3n"):  # of other towers the attention is left out, most of a tiny one
            assert told.cost.encoder_flops_per_second == pytest.approx(counted.encoder_flops_per_second, rel=0.15)
        unused = {"phi4mm": 640, "gemma3n": 4 * 2 * (2 * 16 * 32 + 8)}  # keys and values of two layers that use others'
        loaded = 4 * sum(parameter.numel() for parameter in family_lm.model.parameters())
        assert told.weight_bytes == loaded + unused.get(family.key, 0)
        inputs = family_lm.prepare([Prompt("?", (noise(1.0),))])
        base = Base().generate(family_lm, inputs, max_new_tokens=1)
        assert told.kv_bytes * inputs.prompt_tokens[0] == base.kv_bytes

    def test_only_the_experts_active_for_a_token_count_as_parameters(self) -> None:
        experts, config = nn.ParameterDict({"up": torch.zeros(8, 3, 5)}), SimpleNamespace(num_experts_per_tok=2)
        experts.num_experts = 8
        layer = nn.ModuleDict({"gate": nn.Linear(5, 8, bias=False), "experts": experts})
        assert active_parameters(layer, config) == 40 + 2 * 15
        listed = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(5, 3, bias=False) for _ in range(4))})
        assert active_parameters(listed, config) == 2 * 15

    def test_unmerged_active_adapters_count_as_parameters_and_inactive_adapters_do_not(self) -> None:
        adapted = nn.Module()
        adapted.base_layer = nn.Linear(4, 3, bias=False)
        adapted.lora_A = nn.ModuleDict({name: nn.Linear(4, 1, bias=False) for name in "ab"})
        adapted.lora_B = nn.ModuleDict({name: nn.Linear(1, 3, bias=False) for name in "ab"})
        adapted.disable_adapters = False
        for merged, active, counted in ((False, ["b"], 12 + 7), (True, ["b"], 12), (False, [], 12)):
            adapted.merged, adapted.active_adapters = merged, active
            assert active_parameters(adapted, None) == counted


class TestIdeals:
    def test_ideal_speed_up_of_a_pruned_prefill_equals_the_value_by_hand(self) -> None:
        base = 4 * (2 * 9344 * 100 + 64 * 100 * 100) + 2 * 8512
        pruned = 2 * (2 * 9344 * 100 + 64 * 100 * 100) + 2 * (2 * 9344 * 70 + 64 * 70 * 70) + 2 * 8512
        assert (base, pruned) == (10_052_224, 8_278_144)
        assert TINY.llm_prefill([100] * 4) == base
        assert Drops(2, 0.5).tokens(4, 100, 60) == [100, 100, 70, 70]
        assert TINY.llm_prefill([100, 100, 70, 70]) == pruned
        assert ideal_speed_up(TINY, Drops(2, 0.5), RECORD) == base / pruned

    def test_attention_cost_of_a_windowed_layer_counts_only_keys_in_the_window(self) -> None:
        """Pairs of a query and a visible key are counted one by one. Full attention is also counted as s²/2 pairs."""
        cost = Cost((0.0,), (2.0,), 0.0, None, attention_windows=(30,))
        for tokens in (10, 30, 100, 1000):
            pairs = sum(min(query, 30) for query in range(tokens))
            assert cost.llm_prefill([tokens]) == pytest.approx(4 * pairs, abs=4 * tokens)
        assert cost.llm_prefill([10]) == replace(cost, attention_windows=()).llm_prefill([10])

    def test_a_stored_cost_of_an_earlier_version_without_window_fields_is_read(self) -> None:
        content = TINY.as_json()
        assert Cost.read(json.loads(json.dumps(content))) == TINY
        del content["encoder_window_seconds"], content["attention_windows"]
        assert Cost.read(content) == TINY

    def test_ideal_prefill_speed_up_at_ratio_0_and_of_presses_is_1(self) -> None:
        for method in (*all_methods(), *map(get_method, ("base", "snapkv:0.5", "pyramidkv:0.9"))):
            for encoder in (False, True):
                assert ideal_speed_up(TINY, drops_of(method), RECORD, encoder=encoder) == 1, method.label

    def test_a_pruner_joined_with_a_press_drops_as_many_tokens_in_prefill_as_alone(self) -> None:
        assert drops_of(get_method("fast_v:0.5+snapkv:0.3", layer=3)) == Drops(3, 0.5)

    def test_tokens_dropped_by_a_third_party_method_are_unknown(self) -> None:
        class Stranger(Method):
            key, title, saves = "stranger", "", ""

            def applied_to(self, lm: Any, inputs: Any) -> Any: ...

        assert drops_of(Stranger(0.5)) is None

    @given(
        st.lists(st.floats(0, 0.99), min_size=2, max_size=6), st.integers(0, 4000), st.integers(1, 500), st.booleans()
    )
    def test_ideal_speed_up_never_falls_with_a_higher_ratio_or_an_earlier_layer(
        self, ratios: list[float], audio: int, text: int, encoder: bool
    ) -> None:
        record = replace(RECORD, prompt_tokens=audio + text, audio_tokens=audio, clip_seconds=audio / 25)

        def ideals(drops: Iterable[Drops]) -> list[float]:
            return [ideal_speed_up(TINY, drop, record, encoder=encoder) for drop in drops]

        by_ratio = ideals(Drops(1, ratio) for ratio in sorted(ratios))
        by_layer = ideals(Drops(layer, max(ratios)) for layer in (4, 3, 2, 1, 0))
        for rising in (by_ratio, by_layer):
            assert rising == sorted(rising)
            assert rising[0] >= 1


def record(id_: str, prefill: float, *, scoring: float = 0.25, **more: Any) -> dict[str, Any]:
    time = STAGES | {"llm_prefill": prefill, "prefill": prefill + 1.0, "scoring": scoring}
    sizes = {**SIZES, "kept_audio_tokens": 60, "kv_lengths": [100] * 4, "kv_bytes": 800}
    return a_record(id_, **a_verdict("A", ["bus", "tram"], right=True), **sizes, time=time) | more


def run_of(records: list[dict[str, Any]], **facts: Any) -> Run:
    known = {"task": "tau", "identity": IDENTITY, "cost": TINY.as_json(), "drops": {"layer": None, "ratio": 0.0}}
    return Run({**known, **facts}, {fields["id"]: typed(fields) for fields in records})


def against(run: Run, base: Run) -> dict[str, Any]:
    return savings(run, Pairs.of(run, base))


PRUNED = {"kept_audio_tokens": 30, "kv_lengths": [100, 100, 70, 70], "kv_bytes": 680}


def busy_of(prefill: float | None) -> dict[str, float] | None:
    return None if prefill is None else {"encoder": 0.0, "llm_prefill": prefill, "decode": 0.0, "steps": 1}


class TestMeasured:
    def test_speed_up_is_the_median_ratio_over_samples_paired_with_base(self) -> None:
        base = run_of([record("a", 2.0), record("b", 4.0), record("c", 9.0), record("only here", 100.0)])
        pruned = run_of(
            [record("a", 1.0, **PRUNED), record("b", 1.0, **PRUNED), record("c", 3.0, scoring=9.0, **PRUNED)],
            drops={"layer": 2, "ratio": 0.5},
        )
        saved = against(pruned, base)
        assert saved["compared_samples"] == 3
        assert saved["llm_prefill"]["measured"] == 3.0  # the median of 2, 4 and 3, not 15 / 5
        assert saved["llm_prefill"]["ideal"] == pytest.approx(10_052_224 / 8_278_144)
        encoder = 4_070_400 * 2.4
        assert saved["first_token"]["ideal"] == pytest.approx((encoder + 10_052_224) / (encoder + 8_278_144))
        assert saved["first_token"]["measured"] == 2.5  # of 3/2, 5/2 and 10/4
        low, high = saved["llm_prefill"]["interval"]
        assert 2.0 <= low <= 3.0 <= high <= 4.0
        assert saved["kept_ratio"] == 0.5
        assert saved["kv_lengths"] == [100, 100, 70, 70]
        assert saved["kv_bytes"] == 680
        assert saved["kv_bytes_ratio"] == pytest.approx(800 / 680)
        assert saved["scoring_s"] == 0.25  # the median
        assert saved["decode_per_token"]["measured"] is None

    def test_without_a_base_run_only_the_ideal_prefill_speed_up_is_given(self) -> None:
        cost = replace(TINY, encoder_flops_per_second=None).as_json()
        saved = savings(run_of([record("a", 1.0, **PRUNED)], drops={"layer": 2, "ratio": 0.5}, cost=cost), None)
        assert saved["llm_prefill"]["ideal"] == pytest.approx(10_052_224 / 8_278_144)
        assert saved["first_token"]["ideal"] is None
        assert (saved["llm_prefill"]["measured"], saved["compared_samples"]) == (None, 0)  # there is no base

    def test_runs_without_stage_times_give_no_measured_speed_up(self) -> None:
        untimed = {"time": None, "kv_lengths": None, "kv_bytes": None}
        latency = {"latency": {"first_token": 0.5, "total": 1.0}}
        for more, why in (({}, "untimed runs"), (latency, "latencies of an endpoint are not compared")):
            saved = against(*(run_of([record("a", 1.0, **untimed, **more)]) for _ in range(2)))
            assert (saved["llm_prefill"]["measured"], saved["untimed"].startswith(why)) == (None, True)
            assert [saved[name] for name in ("kv_bytes", "kv_lengths", "scoring_s")] == [None] * 3

    def test_decode_speed_up_is_measured_from_the_times_of_forced_decode(self) -> None:
        cost = replace(TINY, weight_bytes=1000.0).as_json()
        base, pruned = (
            run_of([record("a", 1.0, kv_bytes=size, forced_decode={"per_token": seconds})], cost=cost)
            for size, seconds in ((800, 0.3), (200, 0.2))
        )
        decode = against(pruned, base)["decode_per_token"]
        assert (decode["measured"], decode["ideal"]) == (pytest.approx(1.5), pytest.approx(1800 / 1200))

    @pytest.mark.parametrize(("wall", "bound"), [(1.0, False), (2.0, True)])
    def test_the_speed_up_of_gpu_busy_time_is_given_beside_that_of_wall_time(self, wall: float, bound: bool) -> None:
        """The GPU works 4.0 s under base and 1.0 s under the setting, whose prefill takes 1 or 2 s."""
        rows = [("a", 4.0, 4.0), ("b", 5.0, None)]
        base = run_of([record(id_, wall_, busy=busy_of(busy)) for id_, wall_, busy in rows])
        pruned = run_of([record(id_, wall, busy=busy_of(busy and 1.0)) for id_, _, busy in rows])
        saved = against(pruned, base)["llm_prefill"]
        assert (saved["work"], saved["launch_bound"]) == (4.0, bound)
        assert (against(pruned, run_of([record("a", 4.0)]))["llm_prefill"]["work"]) is None

    @pytest.mark.parametrize(("spent", "longer"), [(0.1, False), (0.4, True), (0.0, False)])
    def test_savings_say_whether_token_scoring_takes_longer_than_the_method_saves(
        self, spent: float, longer: bool
    ) -> None:
        """Base needs 1.0 s. The method needs 0.8 s plus its scoring, or 1.1 s without scoring."""
        base = run_of([record(id_, 1.0) for id_ in "ab"])
        taken = 0.8 + spent if spent else 1.1
        pruned = run_of([record(id_, taken, scoring=spent, **PRUNED) for id_ in "ab"], drops={"layer": 2, "ratio": 0.7})
        saved = against(pruned, base)
        assert saved["llm_prefill"]["chooses_longer"] is longer
        assert not saved["decode_per_token"]["chooses_longer"]

    def test_there_is_no_ideal_speed_up_if_dropped_tokens_or_model_cost_are_unknown(self) -> None:
        for facts in ({"drops": None}, {"cost": None}):
            assert savings(run_of([record("a", 1.0)], **facts), None)["llm_prefill"]["ideal"] is None

    def test_without_counts_of_kept_tokens_the_kept_ratio_is_none(self) -> None:
        run = run_of([record("a", 1.0), record("b", 1.0, kept_audio_tokens=None)])
        assert savings(run, None)["kept_ratio"] is None

    def test_the_speed_up_over_samples_of_one_cluster_has_no_interval(self) -> None:
        rows = [record(name, 1.0, cluster="one") for name in "abc"]
        assert against(run_of(rows), run_of(rows))["llm_prefill"]["interval"] is None


def test_kv_cache_lengths_of_layers_are_written_as_short_text() -> None:
    lengths = (None, [7.0], [9.0, 9.0, 4.4, 4.4, 4.4], [9.0, 8.0, 7.0, 6.0, 5.0])
    assert [*map(lengths_text, lengths)] == [None, "1×7", "2×9 3×4", "5–9"]
