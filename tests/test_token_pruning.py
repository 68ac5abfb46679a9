"""Dropping audio tokens does exactly what its label says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ALL, skip_unless_carried
from hypothesis import example, given
from hypothesis import strategies as st

from audiomarathon.certify.oracles import Hidden, HiddenInSteps
from audiomarathon.compression import redundancy
from audiomarathon.compression.attention import attention_watched
from audiomarathon.compression.composed import Composed
from audiomarathon.compression.dropping import Drop
from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.presses.knorm import Knorm
from audiomarathon.compression.pruners.dart import Dart
from audiomarathon.compression.pruners.divprune import DivPrune
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.pruners.keep_loud import KeepLoud
from audiomarathon.compression.pruners.random import Random
from audiomarathon.compression.pruners.segment_fast_v import SegmentFastV
from audiomarathon.compression.redundancy import alike
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.token_pruner import Evidence, Scored, TokenPruner
from audiomarathon.costs.flops import drops_of
from audiomarathon.engine.sweep import grid
from audiomarathon.errors import MethodError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.timing import Clock
from audiomarathon.results.systems import control_of
from audiomarathon.settings import RunSettings, flags_for, schedule_of

STEPS = 24 if ALL else 3
DROPPERS = [
    Random(0.5, layer=0), Frame(0.5, layer=3), FastV(0.5, layer=1), FastV(0.3, layer=2), FastV(0.9, layer=3),
    Dart(0.3, layer=2), Dart(0.9, layer=3), SegmentFastV(0.5, layer=2),
]  # fmt: skip

LOUD = KeepLoud(0.7, schedule=((1, 0.4), (2, 0.7)))
SCHEDULES = [
    Frame(0.7, schedule=((0, 0.3), (2, 0.5), (3, 0.7))), Random(0.8, schedule=((1, 0.5), (3, 0.8))),
    FastV(0.7, schedule=((1, 0.3), (2, 0.5), (3, 0.7))), Dart(0.6, schedule=((1, 0.2), (3, 0.6))),
    DivPrune(0.6, schedule=((0, 0.2), (2, 0.6))), LOUD,
]  # fmt: skip


PREPARED: dict[tuple[int, ...], tuple[Inputs, list[Prompt]]] = {}  # with its prompts, so that ids stay theirs


def prepared(lm: AudioLM, prompts: list[Prompt]) -> Inputs:
    """Prepare prompts once for each model: models and prompts are fixtures of the session."""
    key = (id(lm), *map(id, prompts))
    if key not in PREPARED:
        PREPARED[key] = lm.prepare(prompts), prompts
    return PREPARED[key][0]


def generate(lm: AudioLM, prompts: list[Prompt], method: Method, steps: int = STEPS) -> Generation:
    return method.generate(lm, prepared(lm, prompts), max_new_tokens=steps, ignore_end=True, keep_logits=True)


@pytest.fixture(scope="module")
def alone(any_lm: AudioLM, prompts: list[Prompt]) -> Callable[[int, Method], Generation]:
    """Generate for one of the prompts under a method. Two tests share the result."""
    return functools.cache(lambda row, method: generate(any_lm, [prompts[row]], method))


@pytest.mark.parametrize("method", DROPPERS, ids=lambda m: m.label)
def test_dropping_tokens_equals_hiding_them_by_an_attention_mask(
    any_lm: AudioLM, prompts: list[Prompt], alone: Callable[[int, Method], Generation], method: Method
) -> None:
    skip_unless_carried(any_lm, method)
    for row in (0, 2):
        dropped = alone(row, method)
        hidden = generate(any_lm, [prompts[row]], Hidden(kept=dropped.kept_positions[0], first=method.layer))
        assert dropped.replies[0].token_ids == hidden.replies[0].token_ids
        assert len(dropped.logits) == STEPS
        torch.testing.assert_close(dropped.logits, hidden.logits, atol=2e-5, rtol=1e-4)


def test_dropping_tokens_gives_logits_that_differ_from_those_of_base(lm: AudioLM, prompts: list[Prompt]) -> None:
    """The comparison with masks would also pass if a method did nothing."""
    base, pruned = (generate(lm, prompts[:1], m, 1).logits for m in (Base(), Random(0.5)))
    assert (base - pruned).abs().max() > 1e-2


@pytest.mark.parametrize("method", [Base(), *DROPPERS, *SCHEDULES], ids=lambda m: m.label)
def test_a_pruned_batch_of_prompts_of_unequal_length_equals_each_prompt_alone(
    any_lm: AudioLM, prompts: list[Prompt], alone: Callable[[int, Method], Generation], method: Method
) -> None:
    skip_unless_carried(any_lm, method)
    together = generate(any_lm, prompts, method)
    for row in range(len(prompts)):
        single = alone(row, method)
        assert together.replies[row].token_ids == single.replies[0].token_ids
        assert together.kept_audio_tokens[row] == single.kept_audio_tokens[0]
        torch.testing.assert_close(together.logits[:, row], single.logits[:, 0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [Random, Frame, FastV, Dart, SegmentFastV])
def test_pruning_at_ratio_zero_is_bit_identical_to_base(any_lm: AudioLM, prompts: list[Prompt], kind: type) -> None:
    base, zero = generate(any_lm, prompts[:1], Base()), generate(any_lm, prompts[:1], kind(0.0))
    assert torch.equal(base.logits, zero.logits)


def test_the_kv_cache_is_shorter_from_the_pruning_layer_on(lm: AudioLM, prompts: list[Prompt]) -> None:
    inputs = prepared(lm, prompts[:1])
    (total,), (length,) = inputs.audio_tokens, inputs.prompt_tokens
    base = generate(lm, prompts[:1], Base())
    pruned = generate(lm, prompts[:1], Random(0.75, layer=2))
    left = kept_count(total, 0.75)
    assert pruned.kept_audio_tokens == (left,)
    assert base.kv_lengths == (length,) * 4
    assert pruned.kv_lengths == (length, length, length - total + left, length - total + left)
    # keys and values, 2 heads of 8 float32 numbers each
    assert pruned.kv_bytes == sum(pruned.kv_lengths) * 2 * 2 * 8 * 4


def test_text_tokens_are_kept_and_token_order_is_unchanged(lm: AudioLM, prompts: list[Prompt]) -> None:
    inputs = prepared(lm, prompts)
    generation = Dart(0.9).generate(lm, inputs, max_new_tokens=1)
    for row, kept in enumerate(generation.kept_positions):
        text = (inputs.attention_mask[row].bool() & ~inputs.audio_mask[row]).nonzero().flatten()
        assert set(text.tolist()) <= set(kept.tolist())
        assert kept.tolist() == sorted(set(kept.tolist()))
        assert len(kept) - len(text) == generation.kept_audio_tokens[row]


def test_hidden_states_used_for_token_scores_are_moved_to_the_device_of_the_keys() -> None:
    """In a model over several GPUs, the final norm is on the last GPU, and its input is moved there."""
    elsewhere = torch.empty(3, 8, device="meta")
    seen = Scored(torch.empty(2, 3, device="meta"), elsewhere, torch.ones(3, 8), torch.nn.LayerNorm(8))
    assert seen.hidden.device == elsewhere.device


@pytest.mark.parametrize("method", SCHEDULES, ids=lambda m: m.label)
def test_dropping_tokens_at_several_layers_equals_masking_them_from_these_layers_on(
    any_lm: AudioLM, prompts: list[Prompt], method: TokenPruner
) -> None:
    skip_unless_carried(any_lm, method)
    done = generate(any_lm, prompts[:1], method)
    (total,), (length,) = prepared(any_lm, prompts[:1]).audio_tokens, prepared(any_lm, prompts[:1]).prompt_tokens
    steps = [(first, kept) for first, (kept,) in done.kept_steps]
    assert [(first, len(kept) - length + total) for first, kept in steps] == [
        (layer, kept_count(total, ratio)) for layer, ratio in method.schedule
    ]
    assert all(set(later.tolist()) <= set(kept.tolist()) for (_, kept), (_, later) in pairwise(steps))
    assert torch.equal(done.kept_positions[0], steps[-1][1])
    hidden = generate(any_lm, prompts[:1], HiddenInSteps(steps=steps))
    assert done.replies[0].token_ids == hidden.replies[0].token_ids
    torch.testing.assert_close(done.logits, hidden.logits, atol=2e-5, rtol=1e-4)


def test_a_later_step_of_a_schedule_ranks_remaining_tokens_by_attention_of_its_layer(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    """Compare with the attention of a whole, masked computation."""
    method, inputs = FastV(0.6, schedule=((1, 0.2), (3, 0.6))), prepared(lm, prompts[:1])
    (_, (first,)), (_, (last,)) = generate(lm, prompts[:1], method, 1).kept_steps
    weights: list[torch.Tensor] = []
    watched = {lm.decoder_layers[2].self_attn: lambda given: weights.append(given.of_last_queries()[0, :, 0])}
    with attention_watched("sdpa", watched):
        generate(lm, prompts[:1], HiddenInSteps(steps=[(1, first)]), 1)
    audio = inputs.audio_mask[0].nonzero().flatten()
    left = audio[torch.isin(audio, first)]
    best = left[weights[0].mean(0)[left].topk(kept_count(len(audio), 0.6)).indices]
    assert set(best.tolist()) == set(last.tolist()) & set(audio.tolist())


def test_the_frame_method_takes_a_uniform_stride_over_the_remaining_tokens(lm: AudioLM, prompts: list[Prompt]) -> None:
    inputs = prepared(lm, prompts[1:2])
    audio = inputs.audio_mask[0].nonzero().flatten().tolist()  # 100 tokens
    done = generate(lm, prompts[1:2], Frame(0.75, schedule=((0, 0.5), (2, 0.75))), 1)
    assert [position for position in done.kept_positions[0].tolist() if position in audio] == audio[::4]
    assert done.kv_lengths == tuple(inputs.prompt_tokens[0] - gone for gone in (50, 50, 75, 75))


def test_a_method_with_fixed_token_scores_keeps_the_same_tokens_in_one_step_or_several(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    once, twice = (generate(lm, prompts, KeepLoud(0.7, layer=2, schedule=steps), 1) for steps in ((), LOUD.schedule))
    assert all(map(torch.equal, once.kept_positions, twice.kept_positions))


@pytest.mark.parametrize("chunk", [0, 16])
def test_graph_decode_and_chunked_prefill_leave_the_logits_of_a_schedule_unchanged(
    lm: AudioLM, prompts: list[Prompt], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FastV(0.7, schedule=((1, 0.3), (2, 0.5), (3, 0.7)))
    plain = generate(lm, prompts, method, 5)
    monkeypatch.setattr(lm, "decode", "graph")
    monkeypatch.setattr(lm, "prefill_chunk", chunk)
    graph = generate(lm, prompts, method, 5)
    assert graph.stages.decode_setup is not None
    torch.testing.assert_close(plain.logits, graph.logits, atol=2e-5, rtol=1e-4)


def test_a_press_joined_to_a_schedule_removes_its_ratio_of_the_tokens_left_at_each_layer(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    inputs = prepared(lm, prompts[:1])
    (total,), (length,) = inputs.audio_tokens, inputs.prompt_tokens
    first = Frame(0.7, schedule=((1, 0.3), (3, 0.7)))
    done = generate(lm, prompts[:1], Composed(first=first, second=Knorm(0.5)), 2)
    audio = [total, kept_count(total, 0.3), kept_count(total, 0.3), kept_count(total, 0.7)]
    assert done.kv_lengths == tuple(length - total + kept_count(count, 0.5) for count in audio)


def test_flops_of_a_pruning_schedule_count_the_tokens_left_at_each_layer() -> None:
    drops = drops_of(Frame(0.7, schedule=((1, 0.3), (3, 0.7))))
    assert drops.tokens(5, 110, 100) == [110, 80, 80, 40, 40]


def test_the_label_and_parameters_of_a_method_hold_its_schedule() -> None:
    method = get_method("frame", 0.7, schedule="2:0.3,8:0.70")
    assert method.label == "frame-0.7-layer2=0.3-8=0.7"
    assert method.parameters() == {"ratio": 0.7, "schedule": "2:0.3,8:0.7"}
    assert flags_for(method.parameters()) == ["--ratio", "0.7", "--schedule", "2:0.3,8:0.7"]
    assert control_of(method.label) == "random-0.7-layer2=0.3-8=0.7"
    assert "schedule" not in Frame(0.7).parameters()


def test_a_schedule_of_one_step_is_the_same_setting_as_layer_and_ratio() -> None:
    assert get_method("frame", schedule="3:0.7") == get_method("frame", 0.7, layer=3)


def test_a_schedule_may_end_at_a_ratio_of_many_digits() -> None:
    third = 1 / 3
    method = get_method("frame", third, **RunSettings.read({}, schedule=f"1:0.1,3:{third}").places)
    assert method.schedule == ((1, 0.1), (3, third))
    assert schedule_of(method.parameters()["schedule"]) == method.schedule
    Frame(0.7, schedule=((1, third), (3, 0.7))).check_schedule()


def test_with_a_schedule_the_method_name_all_stands_for_methods_that_accept_one() -> None:
    keys = {method.key for method in grid(["all"], [0.7], schedule="1:0.3,3:0.7")}
    assert {"base", "random", "fast_v", "divprune"} <= keys
    assert not keys & {"merge_adjacent", "fastadasp_like", "a_tome_like", "snapkv"}


def test_the_ratio_of_a_method_is_that_of_the_last_step_of_its_schedule() -> None:
    assert get_method("frame", schedule="1:0.2,3:0.8").ratio == 0.8
    assert get_method("frame:0.8+snapkv:0.5", schedule="1:0.2,3:0.8").second.ratio == 0.5


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("base", {"ratio": 0.5}, "base drops nothing"),
        *((name, {}, r"ratio is missing.*PRUNE_RATIO") for name in ("dart", "snapkv", "fast_v:0.5+snapkv")),
        *(("random", {"ratio": ratio}, "from 0 to below 1") for ratio in (-0.1, 1.0, 7)),
        ("fram", {"ratio": 0.5}, r"did you mean 'frame'"),
        ("nothing_like_it", {"ratio": 0.5}, "allowed: base, random, frame"),
        ("frame:0.5", {"schedule": "2:0.3,8:0.7"}, "ends at 0.7, but the ratio is 0.5"),
        *(
            ("frame:0.7", {"schedule": schedule}, "both rising")
            for schedule in ("8:0.3,2:0.7", "2:0.3,8:0.3,9:0.7", "2:0.3,2:0.7", "2-0.7", "2:0,3:0.7")
        ),
        *((f"{name}:0.7", {"schedule": "2:0.7"}, "merges tokens") for name in ("merge_frame", "fastadasp_like")),
        ("snapkv:0.7", {"schedule": "2:0.7"}, "allowed: token pruners"),
    ],
)
def test_an_unknown_method_or_a_wrong_ratio_or_schedule_is_refused(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        get_method(name, **options)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Frame(0.7, schedule=((2, 0.3), (9, 0.7))), "layer 9 is not one of"),
        (FastV(0.7, schedule=((0, 0.3), (2, 0.7))), "must be at least 1"),
        (Frame(0.7, schedule=((2, 0.3), (1, 0.7))), "both rising"),
        (Frame(0.7, at="input", schedule=((2, 0.7),)), "at once"),
    ],
)
def test_a_schedule_step_that_the_model_cannot_take_is_refused(lm: AudioLM, method: TokenPruner, said: str) -> None:
    with pytest.raises(MethodError, match=said):
        method.check(lm)


@given(st.integers(0, 5000), st.decimals(0, "0.999", places=3))
@example(5, Decimal("0.5"))
@example(100, Decimal("0.29"))
@example(1, Decimal("0.999"))
def test_the_number_of_removed_tokens_is_rounded_half_up_and_at_least_one_is_kept(total: int, ratio: Decimal) -> None:
    removed_exactly = (2 * total * int(ratio * 1000) + 1000) // 2000  # ⌊N·r + ½⌋ in whole numbers
    assert kept_count(total, float(ratio)) == min(total, max(1, total - removed_exactly))


@pytest.mark.parametrize(("mask", "after"), [([0, 1, 1, 0, 0], 2), ([0, 1, 0, 1, 1], 0), ([0, 0, 0, 0, 0], 0)])
def test_text_tokens_after_the_audio_are_counted(mask: list[int], after: int) -> None:
    inputs = Inputs({"attention_mask": torch.ones(1, 5)}, torch.tensor([mask]).bool(), (0,))
    assert Drop(inputs, [sum(mask)], contiguous=True).text_after == [after]


@given(st.integers(1, 800), st.floats(0.001, 0.999), st.integers(0, 2**32 - 1))
def test_random_and_frame_keep_exactly_the_required_number_of_distinct_tokens(
    total: int, ratio: float, seed: int
) -> None:
    evidence = Evidence(torch.arange(total) + 7, kept_count(total, ratio), seed)
    for method in (Random(ratio), Frame(ratio)):
        chosen = method.select(evidence).tolist()
        assert len(set(chosen)) == len(chosen) == evidence.n_keep
        assert min(chosen) >= 0
        assert max(chosen) < total


def test_a_method_with_ratio_zero_warns_that_nothing_is_pruned() -> None:
    with pytest.warns(UserWarning, match="NOTHING IS PRUNED"):
        get_method("random", 0)


@pytest.mark.parametrize(("ratio", "text"), [(0.1 + 0.2, "0.3"), (0.1234567, "0.1234567"), (0.9999999, "0.9999999")])
def test_method_labels_show_all_digits_of_a_ratio_and_no_rounding_noise(ratio: float, text: str) -> None:
    assert get_method("frame", ratio).label == f"frame-{text}-layer2"


def test_redundancy_of_audio_is_the_mean_cosine_similarity_of_adjacent_audio_tokens_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redundancy, "_BLOCK", 100)
    states = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    spots = torch.tensor([*range(5, 150), *range(160, 299)])
    pairs = [(spot, spot + 1) for spot in spots.tolist() if spot + 1 in {*spots.tolist()}]
    expected = np.mean([float(states[a] @ states[b] / states[a].norm() / states[b].norm()) for a, b in pairs])
    assert float(alike(states, spots)) == pytest.approx(expected, abs=1e-5)
    assert alike(states, spots[:1]).isnan()


def test_time_to_compute_redundancy_is_not_part_of_prefill(
    lm: AudioLM, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(Clock):
        now = 0.0

        def mark(self) -> float:
            return self.now

    def slow(*given: Any) -> torch.Tensor:
        clock.now += 60
        return alike(*given)

    clock = Counted()
    monkeypatch.setattr(lm, "clock", clock)
    monkeypatch.setattr(redundancy, "alike", slow)
    stages = generate(lm, prompts, Base(), 2).stages
    assert clock.now == 60 * len(prompts)
    assert stages.llm_prefill == stages.decode == 0


def test_redundancy_is_highest_if_all_tokens_are_equal(any_lm: AudioLM, prompts: list[Prompt]) -> None:
    done = generate(any_lm, prompts[1:], Base(), 1)
    assert all(0 <= share < 1 for share in done.redundancy)

    def flat(_module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple:
        args[0][...] = args[0][..., :1, :]
        return args, kwargs

    if any_lm.title.startswith("Gemma"):
        return
    with any_lm.decoder_layers[0].register_forward_pre_hook(flat, with_kwargs=True):
        assert generate(any_lm, prompts[1:], Base(), 1).redundancy == pytest.approx([1.0] * 2)
