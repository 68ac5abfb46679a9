"""Methods keep the same tokens and cache entries as slow reference implementations that share no code with them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import references
import torch
from conftest import load_tiny, noise
from hypothesis import given, settings
from hypothesis import strategies as st
from references import Layer, layers_of

from audiomarathon.certify.oracles import hidden_instead_of_dropped
from audiomarathon.compression.method import Method, kept_count
from audiomarathon.compression.pruners.dart import Dart
from audiomarathon.compression.pruners.segment_fast_v import shares
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.token_pruner import Evidence, Scored
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Prompt

RATIOS = [0.15, 0.5, 0.93]
at_each_layer = pytest.mark.parametrize(("ratio", "layer"), [*zip(RATIOS, (1, 2, 3), strict=True)])
# Audio in two spans. The last 64 positions include audio in the first prompt, and only text in the second.
PROMPTS = {
    "short question": Prompt("Which?\n\nA. cat\nB. dog", (noise(2.3, 1), noise(1.05, 2)), seed=11),
    "long question": Prompt("Tell me what these two recordings have in common. " * 2, (noise(1.2, 3), noise(3, 4))),
}


@pytest.fixture(scope="module")
def eager(tiny_checkpoint: Path) -> AudioLM:
    """A separate model for the references."""
    return load_tiny(tiny_checkpoint, "eager")


@pytest.fixture(scope="module", params=PROMPTS)
def case(request: pytest.FixtureRequest, eager: AudioLM) -> tuple[Prompt, list[int], list[Layer]]:
    """A prompt, the positions of its audio tokens, and the plain model's states in each layer."""
    prompt = PROMPTS[request.param]
    inputs = eager.prepare([prompt])
    audio = [place for place, is_audio in enumerate(inputs.audio_mask[0].tolist()) if is_audio]
    assert audio[-1] - audio[0] >= len(audio), "the audio is one span"
    return prompt, audio, layers_of(eager, inputs)


def run(lm: AudioLM, prompt: Prompt, method: Method, steps: int = 1) -> tuple[Generation, Any]:
    caught: list[Any] = []
    handle = lm.decoder.register_forward_pre_hook(
        lambda _module, _args, kwargs: caught.append(kwargs["past_key_values"]), with_kwargs=True
    )
    try:
        result = method.generate(lm, lm.prepare([prompt]), max_new_tokens=steps, ignore_end=True, keep_logits=True)
    finally:
        handle.remove()
    return result, caught[0]


def kept_audio(lm: AudioLM, prompt: Prompt, method: Method, audio: list[int]) -> list[int]:
    (kept,) = run(lm, prompt, method)[0].kept_positions
    return sorted(set(kept.tolist()) & set(audio))


def entries(cached: torch.Tensor, layer: Layer, head: int) -> list[int]:
    """Return which entries of the layer a head's cached keys, shape (entries, d), are, up to rounding."""
    distance = torch.cdist(cached.double(), torch.from_numpy(layer.key[head]))
    assert distance.min(-1).values.max() < 1e-3
    return distance.argmin(-1).tolist()


def assert_highest(chosen: list[int], score: Any, places: list[int], k: int) -> None:
    """Check that `chosen` are the k of `places` that score highest; rounding may swap scores that are nearly equal."""
    assert len(chosen) == len(set(chosen)) == k
    assert set(chosen) <= set(places)
    finite = [score[place] for place in places if math.isfinite(score[place])]
    tolerance = 1e-5 * (max(finite) - min(finite))
    worst = max((score[place] for place in set(places) - set(chosen)), default=-math.inf)
    assert min((score[place] for place in chosen), default=math.inf) >= worst - tolerance


@at_each_layer
def test_fast_v_keeps_the_same_tokens_as_its_plain_reference_implementation(
    either_lm: AudioLM, case: Any, ratio: float, layer: int
) -> None:
    prompt, audio, layers = case
    chosen = kept_audio(either_lm, prompt, get_method("fast_v", ratio, layer), audio)
    assert_highest(chosen, references.last_attention(layers[layer - 1]), audio, kept_count(len(audio), ratio))


@at_each_layer
def test_segment_fast_v_keeps_the_same_tokens_as_its_plain_reference_implementation(
    either_lm: AudioLM, case: Any, ratio: float, layer: int
) -> None:
    prompt, audio, layers = case
    chosen = kept_audio(either_lm, prompt, get_method("segment_fast_v", ratio, layer), audio)
    score = references.last_attention(layers[layer - 1])
    assert len(chosen) == kept_count(len(audio), ratio)
    for start, end, share in references.segment_shares(len(audio), len(chosen)):
        assert_highest([p for p in chosen if p in audio[start:end]], score, audio[start:end], share)


@pytest.mark.parametrize(("ratio", "layer"), [(0.15, 1), (0.5, 2), (0.93, 3), (0.985, 2), (0.999, 1)])
def test_dart_keeps_the_same_tokens_as_its_plain_reference_implementation(
    either_lm: AudioLM, case: Any, ratio: float, layer: int
) -> None:
    """At ratio 0.985, fewer tokens are kept than there are audio pivots."""
    prompt, audio, layers = case
    chosen = kept_audio(either_lm, prompt, get_method("dart", ratio, layer), audio)
    k = kept_count(len(audio), ratio)
    assert set(chosen) == references.dart(layers[layer - 1], layers[layer], audio, k)
    assert len(chosen) == k


def test_dart_compares_hidden_states_after_the_final_norm(lm: AudioLM, eager: AudioLM) -> None:
    """The tiny model's norm weights are all ones, which do not change cosines. Here they are random."""
    prompt = PROMPTS["short question"]
    inputs = eager.prepare([prompt])
    audio = inputs.audio_mask[0].nonzero().flatten().tolist()
    weights = [model.decoder.norm.weight.data for model in (lm, eager)]
    drawn = torch.from_numpy(np.random.RandomState(0).standard_normal(32)).float()
    try:
        for weight in weights:
            weight.copy_(drawn)
        layers = layers_of(eager, inputs)
        chosen = kept_audio(lm, prompt, get_method("dart", 0.5, 2), audio)
    finally:
        for weight in weights:
            weight.fill_(1)
    assert set(chosen) == references.dart(layers[1], layers[2], audio, len(chosen))


@pytest.mark.parametrize("ratio", RATIOS)
def test_fastadasp_like_merges_the_same_tokens_as_its_plain_reference_implementation(
    either_lm: AudioLM, case: Any, ratio: float
) -> None:
    prompt, audio, layers = case
    result, _cache = run(either_lm, prompt, get_method("fastadasp_like", ratio, 2))
    (merge,) = result.merges
    runs, weight = references.fastadasp(layers[1], audio, kept_count(len(audio), ratio))
    assert merge.kept.tolist() == [run[0] for run in runs]
    assert merge.group.tolist() == [index for index, run in enumerate(runs) for _ in run]
    np.testing.assert_allclose(merge.weight.numpy(), weight, rtol=1e-4)


def test_fastadasp_like_gives_the_same_merge_weights_alone_and_in_a_padded_batch(either_lm: AudioLM) -> None:
    """In the batch, padding precedes the shorter prompt. The queries of padding must not count."""
    method, longer = get_method("fastadasp_like", 0.5, 2), PROMPTS["short question"]
    shorter = Prompt("Who?", (noise(2.2, 7),), seed=5)
    (alone,) = method.generate(either_lm, either_lm.prepare([shorter]), max_new_tokens=1).merges
    both = method.generate(either_lm, either_lm.prepare([longer, shorter]), max_new_tokens=1).merges
    assert both[1].kept.tolist() == alone.kept.tolist()
    torch.testing.assert_close(both[1].weight, alone.weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("ratio", RATIOS)
def test_speechprune_like_keeps_the_same_tokens_as_its_plain_reference_implementation(
    either_lm: AudioLM, case: Any, ratio: float
) -> None:
    prompt, audio, layers = case
    chosen = kept_audio(either_lm, prompt, get_method("speechprune_like", ratio, 2), audio)
    assert set(chosen) == references.speechprune(layers[1], layers[2], audio, kept_count(len(audio), ratio))


@pytest.mark.parametrize("ratio", RATIOS[1:])
def test_divprune_keeps_the_tokens_of_its_reference_at_a_layer_and_at_the_llm_input(
    lm: AudioLM, case: Any, ratio: float
) -> None:
    """DivPrune is published for the LLM's input, whose states are those that enter layer 0."""
    prompt, audio, layers = case
    k = kept_count(len(audio), ratio)
    for at, layer in (("layer", layers[2]), ("input", layers[0])):
        chosen = kept_audio(lm, prompt, get_method("divprune", ratio, 2, at=at), audio)
        assert set(chosen) == set(references.divprune(layer, audio, k))


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("ratio", RATIOS)
def test_frame_keeps_evenly_spaced_tokens(lm: AudioLM, case: Any, ratio: float, layer: int) -> None:
    prompt, audio, _ = case
    k = kept_count(len(audio), ratio)
    expected = [audio[math.floor(i * len(audio) / k)] for i in range(k)]
    assert kept_audio(lm, prompt, get_method("frame", ratio, layer), audio) == expected


def test_random_keeps_a_prefix_of_one_permutation_for_each_seed(lm: AudioLM, case: Any) -> None:
    prompt, audio, _ = case
    few, many = (set(kept_audio(lm, prompt, get_method("random", ratio, 0), audio)) for ratio in (0.9, 0.4))
    assert few < many
    again = set(kept_audio(lm, prompt, get_method("random", 0.4, 3), audio))
    other = set(kept_audio(lm, replace(prompt, seed=99), get_method("random", 0.4, 0), audio))
    assert many == again != other


def test_random_keeps_every_position_equally_often() -> None:
    times: Counter[int] = Counter()
    method, audio = get_method("random", 0.7), torch.arange(40)
    for seed in range(3000):
        times.update(method.select(Evidence(audio, 12, seed)).tolist())
    assert sum(times.values()) == 3000 * 12
    # Expected 900, standard deviation √(3000·0.3·0.7) = 25. The largest of 40 deviations is below 4.5 times that.
    assert all(abs(times[place] - 900) < 4.5 * 25 for place in range(40))


@pytest.mark.parametrize("ratio", [0.15, 0.93])
@pytest.mark.parametrize("name", references.PRESSES)
def test_each_press_keeps_the_same_cache_entries_as_its_plain_reference_implementation(
    either_lm: AudioLM, case: Any, name: str, ratio: float
) -> None:
    prompt, audio, layers = case
    length, k = layers[0].key.shape[1], kept_count(len(audio), ratio)
    _, cache = run(either_lm, prompt, get_method(name, ratio))
    line = references.pyramid_line(len(audio), k, 4) if name == "pyramidkv" else [k] * 4
    budgets = []
    for layer, cached, budget in zip(layers, cache.layers, line, strict=True):
        score = references.PRESSES[name](layer, candidates=audio, following=length)
        budgets.append(cached.keys.shape[2] - (length - len(audio)))
        assert abs(budgets[-1] - budget) < 1
        for head in range(2):
            kept = entries(cached.keys[0, head], layer, head)
            assert kept == sorted(kept)
            assert set(range(length)) - set(audio) <= set(kept), "text was taken"
            assert_highest([place for place in kept if place in audio], score[head], audio, budgets[-1])
    assert sum(budgets) == 4 * k


@pytest.mark.parametrize("scope", ["audio", "all"])
def test_snapkv_equals_its_reference_on_a_prompt_shorter_than_two_observation_windows(
    lm: AudioLM, eager: AudioLM, scope: str
) -> None:
    """The last 64 positions are the window. Positions before them are ranked."""
    prompt = Prompt("Which?", (noise(1.3, 5), noise(0.9, 6)), seed=3)
    inputs = eager.prepare([prompt])
    audio, length = inputs.audio_mask[0].nonzero().flatten().tolist(), inputs.prompt_tokens[0]
    assert 70 < length < 128
    watched = audio if scope == "audio" else list(range(length))
    _, cache = run(lm, prompt, get_method("snapkv", 0.2, scope=scope))
    for layer, cached in zip(layers_of(eager, inputs), cache.layers, strict=True):
        score = references.snapkv(layer)
        for head in range(2):
            kept = [place for place in entries(cached.keys[0, head], layer, head) if place in watched]
            assert_highest(kept, score[head], watched, kept_count(len(watched), 0.2))


@pytest.mark.parametrize("name", ["tova", "expected_attention", "snapkv", "streaming_llm", "audio_kv"])
def test_a_press_with_scope_all_ranks_the_cache_entries_of_the_whole_prompt(
    either_lm: AudioLM, case: Any, name: str
) -> None:
    prompt, _, layers = case
    length = layers[0].key.shape[1]
    everything, k = list(range(length)), kept_count(length, 0.5)
    _, cache = run(either_lm, prompt, get_method(name, 0.5, scope="all"))
    for layer, cached in zip(layers, cache.layers, strict=True):
        score = references.PRESSES[name](layer, candidates=everything, following=length)
        for head in range(2):
            assert_highest(entries(cached.keys[0, head], layer, head), score[head], everything, k)


def test_kv_random_keeps_different_cache_entries_for_each_sample_layer_and_head(lm: AudioLM, case: Any) -> None:
    prompt, _, layers = case

    def kept(ratio: float, seed: int) -> list[set[int]]:
        _, cache = run(lm, replace(prompt, seed=seed), get_method("kv_random", ratio))
        return [
            set(entries(cached.keys[0, head], layer, head))
            for layer, cached in zip(layers, cache.layers, strict=True)
            for head in range(2)
        ]

    few, many = kept(0.9, 5), kept(0.4, 5)
    assert all(less < more for less, more in zip(few, many, strict=True))
    assert many == kept(0.4, 5)
    assert len({frozenset(chosen) for chosen in [*many, *kept(0.4, 6)]}) == 16


@pytest.mark.parametrize("name", ["streaming_llm", "snapkv"])
def test_the_earlier_of_two_cache_entries_with_equal_scores_is_kept(
    either_lm: AudioLM, eager: AudioLM, name: str
) -> None:
    """The budget is smaller than the number of protected entries: sinks, or audio in the last 64 positions."""
    prompt = PROMPTS["short question"]
    inputs = eager.prepare([prompt])
    audio = inputs.audio_mask[0].nonzero().flatten().tolist()
    length = inputs.audio_mask.shape[1]
    certain = audio[:4] if name == "streaming_llm" else [place for place in audio if place >= length - 64]
    k = len(certain) - 1
    ratio = next(r / 1000 for r in range(1000) if kept_count(len(audio), r / 1000) == k)
    _, cache = run(either_lm, prompt, get_method(name, ratio))
    for layer, cached in zip(layers_of(eager, inputs), cache.layers, strict=True):
        for head in range(2):
            assert sorted(set(entries(cached.keys[0, head], layer, head)) & set(audio)) == certain[:k]


@pytest.mark.parametrize("press", [name for name in references.PRESSES if name != "pyramidkv"])
def test_a_press_after_a_pruner_keeps_the_cache_entries_of_the_reference_implementation(
    either_lm: AudioLM, eager: AudioLM, case: Any, press: str
) -> None:
    prompt, audio, layers = case
    length = layers[0].key.shape[1]
    (left,) = run(either_lm, prompt, get_method("fast_v", 0.5))[0].kept_positions
    hiding = hidden_instead_of_dropped(eager.decoder_layers, 2, left, length)
    above = layers_of(eager, eager.prepare([prompt]), hiding)[2:]
    _, cache = run(either_lm, prompt, get_method(f"fast_v:0.5+{press}:0.3", layer=2))
    audio_left = [place for place, position in enumerate(left.tolist()) if position in audio]
    pruned = [(layer.of(left.tolist()), audio_left) for layer in above]
    for index, (layer, places) in enumerate([*((layer, audio) for layer in layers[:2]), *pruned]):
        score = references.PRESSES[press](layer, candidates=places, following=length)
        cached, k = cache.layers[index].keys[0], kept_count(len(places), 0.3)
        for head in range(2):
            kept = [place for place in entries(cached[head], layer, head) if place in places]
            assert len(kept) == k
            assert_highest(kept, score[head], places, len(kept))


@pytest.mark.parametrize("name", ["fast_v:0.5+snapkv:0.9", "random:0.3+knorm:0.95", "dart:0.9+tova:0.5"])
def test_composed_methods_give_the_same_replies_under_eager_and_sdpa_attention(
    lm: AudioLM, eager: AudioLM, name: str
) -> None:
    """Eager attention gets a mask in every decode step, sdpa gets none."""
    results = [run(model, PROMPTS["short question"], get_method(name), steps=12)[0] for model in (lm, eager)]
    assert results[0].kv_lengths == results[1].kv_lengths
    assert results[0].replies[0].token_ids == results[1].replies[0].token_ids
    torch.testing.assert_close(results[0].logits, results[1].logits, atol=2e-5, rtol=1e-4)


@given(st.integers(1, 3000), st.integers(1, 24), st.data())
def test_segments_share_the_token_budget_in_proportion_to_their_length_within_one_token(
    total: int, segments: int, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(1, total))
    split = shares(total, budget, segments)
    expected = references.segment_shares(total, budget, segments)
    assert split == [share for *_, share in expected]
    assert sum(split) == budget
    for share, (start, end, _) in zip(split, expected, strict=True):
        assert 0 <= share <= end - start
        assert abs(share - (end - start) * budget / total) < 1


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(0, 6), st.sampled_from([0.1, 0.5, 0.9, 0.999]), st.integers(0, 10**6))
def test_dart_keeps_the_tokens_of_its_plain_reference_for_random_hidden_states(
    total: int, after: int, ratio: float, seed: int
) -> None:
    """Cases include one audio token, fewer than four kept tokens, and less text after the audio than pivots."""
    numbers = np.random.RandomState(seed)
    before, gaps = numbers.randint(0, 5), numbers.randint(0, 4)
    audio = sorted(numbers.choice(total + gaps, total, replace=False) + before)
    length = audio[-1] + 1 + after
    key, entering = (numbers.standard_normal(shape).astype(np.float32) for shape in ((2, length, 8), (length, 16)))
    scored = Scored(torch.zeros(4, length), torch.from_numpy(key), torch.from_numpy(entering), torch.nn.Identity())
    k = kept_count(total, ratio)
    chosen = Dart(ratio).select(Evidence(torch.tensor(audio), k, 0, after, scored)).tolist()
    assert len(chosen) == len(set(chosen)) == k
    nothing = np.zeros(0)
    layer = Layer(entering, entering.astype(float), nothing, key.astype(float), nothing, nothing)
    assert {audio[index] for index in chosen} == references.dart(layer, layer, audio, k)
