"""Merging audio tokens, and shortening the prompt before the LLM, do exactly what their labels say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from conftest import noise, skip_unless_carried
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_layers import greedy_logits
from test_token_pruning import generate as _generate

from audiomarathon.certify.oracles import Hidden
from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.pruners.merge_adjacent import MergeAdjacent
from audiomarathon.compression.pruners.merge_frame import MergeFrame
from audiomarathon.compression.pruners.random import Random
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.costs.flops import drops_of
from audiomarathon.errors import MethodError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.merge import Merge
from audiomarathon.models.prompt import Prompt
from audiomarathon.report.explain import shares_kept

STEPS = 3  # longer decodes are tested for dropping


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    """Two prompts of unequal lengths; the first holds two clips."""
    return [
        Prompt("Which is it?\n\nA. cat\nB. dog", (noise(2.3, 1), noise(1.05, 2)), seed=11),
        Prompt("And now?", (noise(1.6, 3),), seed=12),
    ]


MERGERS = [MergeAdjacent(0.7, layer=2), MergeFrame(0.5, layer=0)]


def generate(lm: AudioLM, prompts: list[Prompt], method: Method, steps: int = STEPS) -> Generation:
    return _generate(lm, prompts, method, steps)


class OneHot(TokenPruner):
    """Merges with all the weight on the tokens that `frame` keeps."""

    key = "one_hot"

    def select(self, evidence: Evidence) -> Merge:
        kept = Frame(self.ratio).select(evidence)
        total = len(evidence.positions)
        weight = torch.zeros(total).index_fill_(0, kept, 1.0)
        return Merge(kept, (torch.arange(total) >= kept[:, None]).sum(0) - 1, weight)


def assert_logits(
    lm: AudioLM, prompts: list[Prompt], method: Method, oracle: Callable[[Prompt, Generation], torch.Tensor]
) -> None:
    """Compare a method's logits of each prompt, alone and in a batch, with an oracle's, shape (steps, vocabulary)."""
    skip_unless_carried(lm, method)
    together = generate(lm, prompts, method)
    for row, prompt in enumerate(prompts):
        alone = generate(lm, [prompt], method)
        expected = oracle(prompt, alone)
        torch.testing.assert_close(alone.logits[:, 0], expected, atol=5e-5, rtol=1e-4)
        torch.testing.assert_close(together.logits[:, row], expected, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("method", MERGERS, ids=lambda m: m.label)
def test_merging_audio_tokens_equals_masking_them_and_inserting_the_merged_hidden_states(
    any_lm: AudioLM, prompts: list[Prompt], method: Method
) -> None:
    def oracle(prompt: Prompt, generation: Generation) -> torch.Tensor:
        (total,) = any_lm.prepare([prompt]).audio_tokens
        assert generation.kept_audio_tokens == (kept_count(total, method.ratio),)
        ((merge,), (kept,)) = generation.merges, generation.kept_positions
        return generate(any_lm, [prompt], Hidden(kept=kept, first=method.layer, merge=merge)).logits[:, 0]

    assert_logits(any_lm, prompts[:2], method, oracle)


@pytest.mark.parametrize("layer", [0, 2])
def test_merging_with_all_weight_on_one_token_gives_the_same_logits_as_dropping_the_others(
    any_lm: AudioLM, prompts: list[Prompt], layer: int
) -> None:
    dropped, merged = (generate(any_lm, prompts[:2], kind(0.6, layer=layer)) for kind in (Frame, OneHot))
    assert torch.equal(dropped.logits, merged.logits)
    assert dropped.kv_lengths == merged.kv_lengths


def shorter_prompt(lm: AudioLM, prompt: Prompt, kept: torch.Tensor, merge: Merge | None) -> torch.Tensor:
    """Return the logits of a prompt without the removed tokens."""
    inputs, caught = lm.prepare([prompt]), []
    handle = lm.decoder_layers[0].register_forward_pre_hook(
        lambda _module, args, kwargs: caught.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    Base().generate(lm, inputs, max_new_tokens=1)
    handle.remove()
    states = caught[0]
    if merge is not None:
        audio, states = inputs.audio_mask[0].nonzero().flatten(), states.clone()
        for group, spot in enumerate(audio[merge.kept].tolist()):
            members = merge.group == group
            states[0, spot] = (caught[0][0, audio[members]].double() * merge.weight[members][:, None]).sum(0).float()
    return greedy_logits(lm, states[:, kept], STEPS)


AT_INPUT = [kind(0.6, at="input") for kind in (Random, MergeAdjacent)]


@pytest.mark.parametrize("method", AT_INPUT, ids=lambda m: m.label)
def test_pruning_tokens_at_the_llm_input_gives_the_logits_of_a_shorter_prompt(
    any_lm: AudioLM, prompts: list[Prompt], method: Method
) -> None:
    def oracle(prompt: Prompt, generation: Generation) -> torch.Tensor:
        ((merge,), (kept,)) = generation.merges or (None,), generation.kept_positions
        assert set(generation.kv_lengths) == {len(kept)}
        return shorter_prompt(any_lm, prompt, kept, merge)

    assert_logits(any_lm, prompts[:2], method, oracle)


def test_a_press_after_pruning_at_the_llm_input_ranks_only_tokens_of_the_shortened_prompt(
    any_lm: AudioLM, prompts: list[Prompt]
) -> None:
    """Expected attention rotates queries to positions after the prompt, which pruning at the input shortens."""
    pruned, joined = (get_method(name, at="input") for name in ("frame:0.5", "frame:0.5+expected_attention:0.5"))
    skip_unless_carried(any_lm, joined)
    kept = generate(any_lm, prompts[:1], pruned, 1).kept_positions[0]
    rotations = []
    rotation = any_lm.rotation
    any_lm.rotation = lambda *asked: rotations.append((asked, rotation(*asked))) or rotations[-1][1]  # type: ignore[method-assign]
    try:
        generation = generate(any_lm, prompts[:1], joined)
    finally:
        del any_lm.rotation
    assert {asked for asked, _turned in rotations} == {(len(kept), 512)}
    assert all(map(torch.equal, rotations[0][1], any_lm.rotation(len(kept), 512)))
    (left,) = generate(any_lm, prompts[:1], pruned, 1).kept_audio_tokens
    assert generation.kept_audio_tokens == (kept_count(left, 0.5),)
    assert set(generation.kv_lengths) == {len(kept) - left + kept_count(left, 0.5)}


def test_the_label_and_parameters_of_a_method_name_its_layer_or_the_input() -> None:
    method = get_method("merge_frame", 0.5, 2, at="input")
    assert (method.label, method.parameters()) == ("merge_frame-0.5-input", {"ratio": 0.5, "at": "input"})
    at_layer = get_method("merge_frame", 0.5, 2)
    assert (at_layer.label, at_layer.parameters()) == ("merge_frame-0.5-layer2", {"ratio": 0.5, "layer": 2})
    joined = get_method("frame:0.5+snapkv:0.3", at="input")
    assert joined.label == "frame-0.5-input+snapkv-0.3"
    assert drops_of(joined).layer == drops_of(method).layer == 0


@pytest.mark.parametrize("name", ["fast_v:0.5", "dart:0.5"])
def test_methods_that_need_attention_and_presses_are_refused_at_the_llm_input(lm: AudioLM, name: str) -> None:
    with pytest.raises(MethodError, match=r"attention.*allowed: PRUNE_AT=layer"):
        get_method(name, at="input").check(lm)
    with pytest.raises(SettingsError, match=r"PRUNE_AT=input .*snapkv .*allowed: layer"):
        get_method("snapkv:0.5", at="input")


def evidence_of(states: list[float], k: int, positions: list[int] | None = None) -> Evidence:
    """Return evidence whose states are unit vectors at the given angles in degrees."""
    angles = torch.tensor(states).deg2rad()
    places = torch.tensor(positions) if positions else torch.arange(len(states)) + 3
    return Evidence(places, k, 0, states=torch.stack([angles.cos(), angles.sin()], dim=1))


def test_merge_adjacent_merges_the_most_similar_neighbours_of_a_hand_example() -> None:
    #                 0-1: 1°, 1-2: 50°, 2-3: 2°, 3-4: 3°, 4-5: 90°
    angles = [0.0, 1.0, 51.0, 53.0, 56.0, 146.0]
    for k, starts in ((6, [0, 1, 2, 3, 4, 5]), (5, [0, 2, 3, 4, 5]), (3, [0, 2, 5]), (2, [0, 5]), (1, [0])):
        merge = MergeAdjacent(0.5).select(evidence_of(angles, k))
        assert merge.kept.tolist() == starts
        assert merge.group.tolist() == [sum(place >= start for start in starts) - 1 for place in range(6)]


def test_merge_adjacent_merges_equally_similar_pairs_from_the_beginning() -> None:
    assert MergeAdjacent(0.5).select(evidence_of([0.0] * 5, 3)).kept.tolist() == [0, 3, 4]


def test_merge_adjacent_merges_across_the_border_of_two_clips_last() -> None:
    apart = evidence_of([0.0, 80.0, 80.0, 160.0], 2, [3, 4, 9, 10])
    assert MergeAdjacent(0.5).select(apart).kept.tolist() == [0, 2]


@settings(max_examples=40)
@given(st.integers(1, 100), st.floats(0.001, 0.999), st.integers(0, 99))
def test_merged_tokens_are_means_of_contiguous_groups(total: int, ratio: float, seed: int) -> None:
    k = kept_count(total, ratio)
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(total, 4, generator=generator)
    evidence = Evidence(torch.arange(total), k, 0, states=states)
    for method in (MergeAdjacent(ratio), MergeFrame(ratio)):
        merge = method.select(evidence)
        runs = [states[merge.group == group] for group in range(k)]
        assert merge.kept.tolist() == [int((merge.group == group).nonzero()[0]) for group in range(k)]
        assert (merge.group.diff() >= 0).all()
        torch.testing.assert_close(merge.of(states), torch.stack([run.mean(0) for run in runs]))


def test_merge_frame_starts_its_groups_at_the_positions_that_frame_keeps() -> None:
    evidence = Evidence(torch.arange(10), 4, 0)
    assert MergeFrame(0.6).select(evidence).kept.tolist() == Frame(0.6).select(evidence).tolist() == [0, 2, 5, 7]


def test_a_merged_hidden_state_is_the_weighted_sum_of_its_group_of_tokens() -> None:
    merge = Merge(torch.tensor([1, 2]), torch.tensor([1, 0, 1, 0]), torch.tensor([0.5, 2.0, -1.0, 0.25]))
    states = torch.randn(3, 4, 5)
    first, second = 2 * states[:, 1] + 0.25 * states[:, 3], 0.5 * states[:, 0] - states[:, 2]
    torch.testing.assert_close(merge.of(states), torch.stack([first, second], dim=1))


def _spoilt(**parts: object) -> TokenPruner:
    class Spoilt(OneHot):
        def select(self, evidence: Evidence) -> Merge:
            return dataclasses.replace(super().select(evidence), **parts)

    return Spoilt(0.5)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"kept": torch.arange(2)}, r"merge.kept has shape \(2,\)"),
        ({"group": torch.zeros(2)}, "merge.group has shape"),
        ({"weight": torch.ones(3)}, "weights of a merge .* floats"),
        ({"group": "-1"}, "an index is out of range"),
        ({"group": "k"}, "an index is out of range"),
    ],
)
def test_a_token_merge_with_tensors_of_wrong_shape_type_or_index_is_refused(
    lm: AudioLM, prompts: list[Prompt], parts: dict[str, object], message: str
) -> None:
    if isinstance(name := parts.get("group"), str):
        total = lm.prepare(prompts[:1]).audio_tokens[0]
        parts = {"group": torch.full((total,), {"-1": -1, "k": kept_count(total, 0.5)}[name])}
    with pytest.raises(MethodError, match=message):
        generate(lm, prompts[:1], _spoilt(**parts), 1)


def test_the_shares_of_each_audio_token_kept_by_merging_sum_to_the_number_of_kept_tokens(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    inputs = lm.prepare(prompts[:1])
    (total,) = inputs.audio_tokens
    signs = torch.tensor([1.0, -1.0]).repeat(total)[:total]
    joined = get_method("merge_frame:0.6+knorm:0.5")
    for method in (MergeFrame(0.6), MergeAdjacent(0.6), _spoilt(weight=signs), joined):
        generation = method.generate(lm, inputs, max_new_tokens=1, keep_entries=True)
        shares = shares_kept(inputs, generation)
        assert (len(shares), shares.max() <= 1) == (total, True)
        if method is not joined:
            assert shares.sum() == pytest.approx(generation.kept_audio_tokens[0])
            assert (shares > 0).all()
