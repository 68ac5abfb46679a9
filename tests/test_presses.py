"""KV presses keep exactly the requested entries, in order, and remove only audio."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from conftest import ALL, HOME, noise, skip_unless_carried
from families import FAMILIES
from hypothesis import given
from hypothesis import strategies as st

from audiomarathon.certify.oracles import HiddenEntries
from audiomarathon.compression.external import Foreign
from audiomarathon.compression.gathered import matched
from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.press import Cached, KVPress
from audiomarathon.compression.presses.knorm import Knorm
from audiomarathon.compression.presses.pyramidkv import PyramidKV
from audiomarathon.compression.ragged import across_heads, highest, places_of
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.errors import MethodError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Prompt

PRESSES = [method for method in all_methods() if isinstance(method, KVPress) and not method.by_head]
BY_HEAD = [method for method in all_methods() if isinstance(method, KVPress) and method.by_head]
of_every_press = pytest.mark.parametrize("press", PRESSES, ids=lambda press: press.key)
of_presses_by_head = pytest.mark.parametrize("press", BY_HEAD, ids=lambda press: press.key)
STEPS = 24 if ALL else 3


def generate(lm: AudioLM, prompt: Prompt | list[Prompt], method: Method, steps: int = STEPS) -> Generation:
    inputs = lm.prepare(prompt if isinstance(prompt, list) else [prompt])
    options = {"max_new_tokens": steps, "ignore_end": True, "keep_logits": True, "keep_entries": True}
    return method.generate(lm, inputs, **options)


def assert_equals_hiding_its_removed_entries(lm: AudioLM, prompt: Prompt, done: Generation) -> None:
    """Check that a mask over the whole cache that hides the removed entries gives the same reply."""
    hidden = generate(lm, prompt, HiddenEntries(kept=done.kept_entries))
    assert hidden.replies == done.replies
    torch.testing.assert_close(hidden.logits, done.logits, atol=2e-5, rtol=1e-4)


@contextmanager
def caches_caught(lm: AudioLM) -> Iterator[list[Any]]:
    """Collect the cache object of each `generate` inside the block."""
    caught: list[Any] = []
    handle = lm.decoder.register_forward_pre_hook(
        lambda _m, _a, kwargs: caught.append(kwargs["past_key_values"]), with_kwargs=True
    )
    try:
        yield caught
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    """A prompt whose audio tokens lie in two spans."""
    return [Prompt("Which is it?\n\nA. cat\nB. dog", (noise(2.3, 1), noise(1.05, 2)), seed=11)]


@pytest.fixture(scope="module")
def full(lm: AudioLM, prompts: list[Prompt]) -> tuple[Generation, Any]:
    """Return base's reply to the prompt, and the cache after prefill."""
    with caches_caught(lm) as caught:
        return generate(lm, prompts[0], Base(), 1), caught[0]


@pytest.mark.parametrize("press", [*PRESSES, *BY_HEAD], ids=lambda press: press.key)
def test_a_press_at_ratio_zero_is_bit_identical_to_base(any_lm: AudioLM, prompts: list[Prompt], press: KVPress) -> None:
    skip_unless_carried(any_lm, press)
    base, zero = generate(any_lm, prompts[0], Base(), 3), generate(any_lm, prompts[0], press, 3)
    assert torch.equal(base.logits, zero.logits)


@of_every_press
@pytest.mark.parametrize("ratio", [0.3, 0.95])
def test_a_press_keeps_exactly_k_audio_cache_entries_and_all_text_cache_entries(
    lm: AudioLM, prompts: list[Prompt], full: tuple[Generation, Any], press: KVPress, ratio: float
) -> None:
    press = dataclasses.replace(press, ratio=ratio)
    inputs = lm.prepare(prompts[:1])
    (total,), (length,), (base, base_cache) = inputs.audio_tokens, inputs.prompt_tokens, full
    with caches_caught(lm) as caught:
        pressed = generate(lm, prompts[0], press, 1)
    assert torch.equal(pressed.logits, base.logits)  # prefill sees everything
    assert pressed.scoring > 0
    budgets = press.budgets(total, 4)
    assert sum(budgets) == 4 * kept_count(total, ratio)
    assert pressed.kv_lengths == tuple(length - total + budget for budget in budgets)
    assert pressed.kv_bytes == base.kv_bytes * sum(pressed.kv_lengths) // (4 * length)
    assert pressed.kept_audio_tokens == (kept_count(total, ratio),)
    for before, after in zip(base_cache.layers, caught[0].layers, strict=True):
        for head in range(2):
            kept = positions(before.keys[0, head], after.keys[0, head])
            assert kept == sorted(kept)
            assert torch.equal(before.values[0, head, kept], after.values[0, head])
            assert set((~inputs.audio_mask[0]).nonzero().flatten().tolist()) <= set(kept)


@pytest.mark.parametrize("press", [*PRESSES, *BY_HEAD], ids=lambda press: press.key)
@pytest.mark.parametrize("ratio", [pytest.param(0.5, marks=pytest.mark.long), 0.8])
def test_removing_cache_entries_equals_hiding_them_by_a_mask_in_decode(
    any_lm: AudioLM, prompts: list[Prompt], press: KVPress, ratio: float
) -> None:
    skip_unless_carried(any_lm, press)
    done = generate(any_lm, prompts[0], dataclasses.replace(press, ratio=ratio))
    assert_equals_hiding_its_removed_entries(any_lm, prompts[0], done)


@of_every_press
def test_a_press_with_scope_all_removes_text_cache_entries_too(
    lm: AudioLM, prompts: list[Prompt], press: KVPress
) -> None:
    length = lm.prepare(prompts[:1]).prompt_tokens[0]
    pressed = generate(lm, prompts[0], dataclasses.replace(press, ratio=0.8, scope="all"), 1)
    assert sum(pressed.kv_lengths) == 4 * kept_count(length, 0.8)


#: Shorter and longer prompts, one with two clips, and one with only text.
BATCH = [
    Prompt("Which is it?\n\nA. cat\nB. dog", (noise(3.3, 1), noise(3.05, 2)), seed=11),
    Prompt("And now?", (noise(4.0, 3),), seed=12),
    Prompt("Who?", (), seed=13),
]


BATCHED = [dataclasses.replace(press, ratio=0.7) for press in (*PRESSES, *BY_HEAD)]
KINDS_OF_CACHE = [
    get_method("snapkv:0.7", scope="all"),
    get_method("ada_snapkv:0.7", scope="all"),
    get_method("frame:0.3+snapkv:0.5", at="input"),
    get_method("fast_v:0.6+ada_snapkv:0.5", layer=2),
]


@pytest.mark.parametrize(
    ("attention", "press"),
    [("sdpa", press) for press in (*BATCHED, *KINDS_OF_CACHE)] + [("eager", press) for press in KINDS_OF_CACHE],
    ids=lambda value: getattr(value, "label", value),
)
def test_a_press_gives_each_sample_of_a_batch_the_result_of_the_sample_alone(
    loaded: Callable[[str, str], AudioLM], attention: str, press: Method
) -> None:
    lm = loaded(HOME, attention)
    together = generate(lm, BATCH, press)
    longest = [0] * len(together.kv_lengths)
    for row, prompt in enumerate(BATCH):
        alone = generate(lm, prompt, press)
        assert together.kept_audio_tokens[row] == alone.kept_audio_tokens[0]
        for many, single in zip(together.kept_entries, alone.kept_entries, strict=False):
            assert torch.equal(many[row, :, many.shape[-1] - single.shape[-1] :], single)
            assert not many[row, :, : many.shape[-1] - single.shape[-1]].any()
        torch.testing.assert_close(together.logits[:, row], alone.logits[:, 0], atol=1e-5, rtol=1e-5)
        longest = list(map(max, longest, alone.kv_lengths))
    assert list(together.kv_lengths) == longest


@pytest.mark.parametrize("key", [key for key in FAMILIES if key not in ("gemma3n", HOME)])
def test_a_press_gives_batched_samples_the_logits_of_single_samples_in_other_model_families(
    loaded: Callable[[str, str], AudioLM], key: str
) -> None:
    lm, press, prompts = loaded(key, "sdpa"), get_method("snapkv", 0.7), BATCH[:2]
    together = generate(lm, prompts, press)
    for row, prompt in enumerate(prompts):
        alone = generate(lm, prompt, press)
        torch.testing.assert_close(together.logits[:, row], alone.logits[:, 0], atol=1e-4, rtol=1e-4)


def test_a_press_gives_equally_long_prompts_in_a_batch_the_logits_of_single_samples(lm: AudioLM) -> None:
    """Without padding the model uses no mask in prefill, although some samples keep fewer entries."""
    short = lm.prepare([Prompt("?", (noise(2.0, 5),))])
    (length,), press = short.prompt_tokens, get_method("snapkv", 0.8)
    words = "?" * (lm.prepare([Prompt("?", (noise(3.0, 6),))]).prompt_tokens[0] - length + 1)
    prompts = [Prompt(words, (noise(2.0, 5),)), Prompt("?", (noise(3.0, 6),))]
    assert lm.prepare(prompts).attention_mask.all()
    together = generate(lm, prompts, press)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(together.logits[:, row], generate(lm, prompt, press).logits[:, 0], atol=1e-5, rtol=0)


def positions(full: torch.Tensor, part: torch.Tensor) -> list[int]:
    """Return the index in `full` of each row of `part`."""
    same = (part[:, None] == full[None]).all(-1)
    assert same.any(-1).all()
    return same.float().argmax(-1).tolist()


def _first_head_first(_press: KVPress, cached: Cached) -> torch.Tensor:
    """Score every entry of a head above all of the next head."""
    heads, length = cached.key.shape[:2]
    return -torch.arange(heads * length, dtype=torch.float32).view(heads, length)


@of_presses_by_head
@pytest.mark.parametrize("ratio", [0.3, 0.9])
def test_a_per_head_press_keeps_k_audio_cache_entries_per_head_on_average(
    lm: AudioLM, prompts: list[Prompt], full: tuple[Generation, Any], press: KVPress, ratio: float
) -> None:
    """The cache frees the entries that its heads drop."""
    press = dataclasses.replace(press, ratio=ratio)
    inputs, (base, base_cache) = lm.prepare(prompts[:1]), full
    (total,), (length,), k = inputs.audio_tokens, inputs.prompt_tokens, kept_count(inputs.audio_tokens[0], ratio)
    with caches_caught(lm) as caught:
        pressed = generate(lm, prompts[0], press, 1)
    text = length - total
    assert pressed.kv_lengths == (text + k,) * 4
    held = [part.untyped_storage().nbytes() for layer in caught[0].layers for part in (layer.keys, layer.values)]
    assert pressed.kv_bytes == sum(held) == base.kv_bytes * (text + k) // length
    uneven = any(len(set(kept.sum(-1).tolist())) > 1 for kept in pressed.kept_entries)
    assert uneven or (press.key == "ada_snapkv" and k < press.window)  # the whole window must stay: a tie
    for kept, before, after in zip(pressed.kept_entries, base_cache.layers, caught[0].layers, strict=True):
        assert kept[:, ~inputs.audio_mask[0]].all()
        assert (kept[:, inputs.audio_mask[0]].sum(-1) >= int(0.2 * k)).all()
        assert torch.equal(before.keys[0][kept], after.keys[0].flatten(0, 1))
        assert torch.equal(before.values[0][kept], after.values[0].flatten(0, 1))


@of_presses_by_head
def test_a_per_head_press_may_leave_a_head_without_any_cache_entry(
    lm: AudioLM, prompts: list[Prompt], press: KVPress
) -> None:
    """With fewer than 5 entries per head, the guaranteed fifth is none, and all text may be removed."""
    uneven = type("Uneven", (type(press),), {"score": _first_head_first, "key": press.key})(0.99, scope="all")
    done = generate(lm, prompts[0], uneven)
    assert all(kept[0].any() and not kept[-1].any() for kept in done.kept_entries)
    assert_equals_hiding_its_removed_entries(lm, prompts[0], done)


@of_presses_by_head
def test_flash_attention_is_refused_for_presses_that_evict_per_head(
    lm: AudioLM, monkeypatch: pytest.MonkeyPatch, press: KVPress
) -> None:
    monkeypatch.setattr(type(lm), "attn_implementation", "flash_attention_2")
    with pytest.raises(MethodError, match=r"mask .*flash_attention_2 .*allowed: ATTN_IMPLEMENTATION=sdpa"):
        press.check(lm)


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 99), st.data())
def test_selecting_the_k_highest_scores_equals_taking_the_first_k_of_a_stable_sort(
    rows: int, length: int, seed: int, data: st.DataObject
) -> None:
    worth = torch.randint(0, 6, (rows, length), generator=torch.Generator().manual_seed(seed)).float()
    worth[worth == 5] = torch.inf
    worth[worth == 4] = -torch.inf
    count = data.draw(st.integers(0, length))
    sorted_ = worth.sort(dim=-1, descending=True, stable=True).indices[:, :count].sort(dim=-1).values
    assert torch.equal(places_of(highest(worth, count), count), sorted_)


@given(st.integers(1, 5), st.integers(1, 30), st.integers(0, 99), st.data())
def test_dividing_a_budget_over_heads_equals_a_plain_loop(
    heads: int, length: int, seed: int, data: st.DataObject
) -> None:
    worth = torch.randint(0, 6, (heads, length), generator=torch.Generator().manual_seed(seed)).float()
    entries = data.draw(st.integers(0, length))
    certain = data.draw(st.integers(0, entries))
    order = [sorted(range(length), key=lambda place, head=head: -float(worth[head, place])) for head in range(heads)]
    kept = {(head, place) for head in range(heads) for place in order[head][:certain]}
    # give the next entry to the head that needs it most, then to the head that has least
    while len(kept) < entries * heads:
        offers = []
        for head in range(heads):
            left = [place for place in order[head] if (head, place) not in kept]
            if left:
                offers.append((-float(worth[head, left[0]]), length - len(left), head, left[0]))
        kept.add(min(offers)[2:])
    assert {tuple(spot) for spot in across_heads(worth, entries, certain).nonzero().tolist()} == kept


def test_heads_whose_cache_entries_must_all_stay_share_the_budget_of_a_press_evenly() -> None:
    """`ada_snapkv` with k below its window once gave the first head the whole budget."""
    kept = across_heads(torch.full((4, 64), torch.inf), 10, 2)
    assert kept.sum(-1).tolist() == [10] * 4
    assert kept[:, :10].all()


@pytest.mark.parametrize(
    ("pruner", "press"),
    [
        *(("fast_v:0.5", f"{press}:0.3") for press in ("snapkv", "knorm", "expected_attention", "audio_kv")),
        *((pruner, f"{press.key}:0.5") for press in BY_HEAD for pruner in ("frame:0.5", "merge_adjacent:0.5")),
        ("fast_v:0.999", "snapkv:0.5"),
    ],
)
def test_a_press_joined_to_a_pruner_removes_its_ratio_of_the_tokens_that_the_pruner_left(
    lm: AudioLM, prompts: list[Prompt], pruner: str, press: str
) -> None:
    """Below the pruning layer all tokens are left; above it there are fewer, or one."""
    inputs, method = lm.prepare(prompts[:1]), get_method(f"{pruner}+{press}", layer=2)
    (total,), (length,) = inputs.audio_tokens, inputs.prompt_tokens
    first, second = (float(name.partition(":")[2]) for name in (pruner, press))
    below, above = kept_count(total, second), kept_count(kept_count(total, first), second)
    result = generate(lm, prompts[0], method, 2)
    assert result.kv_lengths == tuple(length - total + kept for kept in (below, below, above, above))
    assert result.kept_audio_tokens == (above,)
    assert method.label == f"{pruner}-layer2+{press}".replace(":", "-")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("snapkv:0.5+fast_v:0.5", "token pruner .*then a press"),
        ("fast_v:0.5+dart:0.5", "token pruner .*then a press"),
        ("knorm:0.5+snapkv:0.5", "token pruner .*then a press"),
        ("fast_v:0.5+snapkv:0.5+knorm:0.5", "two methods can be joined"),
        ("random:0.3+pyramidkv:0.5", "ratio on average"),
    ],
)
def test_joining_methods_other_than_a_pruner_followed_by_a_press_is_refused(name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        get_method(name)


@given(st.integers(1, 5000), st.floats(0.01, 0.99), st.integers(1, 48))
def test_pyramidkv_budgets_fall_with_depth_and_average_k_cache_entries_per_layer(
    total: int, ratio: float, layers: int
) -> None:
    budgets = PyramidKV(ratio).budgets(total, layers)
    assert sum(budgets) == kept_count(total, ratio) * layers
    assert all(1 <= budget <= total for budget in budgets)
    assert all(after <= before + 1 for before, after in pairwise(budgets))


def test_cache_budgets_of_layers_equal_values_computed_by_hand() -> None:
    assert PyramidKV(0.5).budgets(400, 3) == [390, 200, 10]  # k = 200: from 2·200 − 10 down to 200 / 20


def test_a_press_without_batch_support_is_refused_before_loading_a_model() -> None:
    from audiomarathon.engine.run import run
    from audiomarathon.settings import RunSettings

    alone = type("Alone", (Knorm,), {"key": "alone", "batches": False})(0.5)
    with pytest.raises(SettingsError, match=r"BATCH_SIZE=4: alone-0\.5 .*batch size 1"):
        list(run(["tau"], "embedded", RunSettings.read({}, timing=False, batch_size=4), [alone]))


def test_pyramidkv_after_pruning_at_the_input_or_layer_0_gives_deeper_layers_smaller_caches(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    inputs = lm.prepare(prompts[:1])
    (total,), (length,) = inputs.audio_tokens, inputs.prompt_tokens
    left, layers = kept_count(total, 0.5), len(lm.decoder_layers)
    for place in ({"at": "input"}, {"layer": 0}):
        joined = get_method("merge_frame:0.5+pyramidkv:0.4", **place)
        lengths = generate(lm, prompts[0], joined, 2).kv_lengths
        assert sum(lengths) == layers * (length - total + kept_count(left, 0.4))
        assert list(lengths) == sorted(lengths, reverse=True)
        assert len(set(lengths)) > 1


@dataclass
class Theirs:
    """A press like those of kvpress: a hook on each attention keeps the highest scores, in the order of scores."""

    keep: int = 40
    by_head: bool = False  # hides entries of single heads by a mask, as kvpress's AdaKV does
    turns: bool = False  # rotates the kept keys anew, as its KeyRerotationPress does
    doubles: bool = False

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        layers = model.model.language_model.layers
        handles = [layer.self_attn.register_forward_hook(self.hook, with_kwargs=True) for layer in layers]
        try:
            yield
        finally:
            for handle, layer in zip(handles, layers, strict=True):
                handle.remove()
                vars(layer.self_attn).pop("masked_key_indices", None)

    def hook(self, module: Any, _args: Any, kwargs: dict[str, Any], _output: Any) -> None:
        cache = kwargs["past_key_values"].layers[module.layer_idx]
        if kwargs["hidden_states"].shape[1] == 1:
            return
        score = cache.keys.float().sin().sum(-1)
        if self.by_head:
            low = score.flatten(1).argsort(1)[:, : score[0].numel() // 2]
            rows = torch.arange(len(low)).repeat_interleave(low.shape[1])
            module.masked_key_indices = (rows, low.flatten() // score.shape[2], low.flatten() % score.shape[2])
            return
        index = score.topk(self.keep, -1).indices[..., None]
        index = torch.cat([index, index[:, :, :1]], 2) if self.doubles else index
        index = index.expand(-1, -1, -1, cache.keys.shape[-1])
        cache.keys, cache.values = cache.keys.gather(2, index), cache.values.gather(2, index)
        cache.keys = cache.keys.roll(1, -1) if self.turns else cache.keys


def test_cache_entries_kept_by_a_third_party_press_are_identified_from_its_kv_cache(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    theirs = generate(lm, prompts[0], Foreign(press=Theirs(), name="theirs"))
    assert theirs.kv_lengths == (40,) * 4
    assert [layer.sum(-1).tolist() for layer in theirs.kept_entries] == [[40, 40]] * 4
    assert_equals_hiding_its_removed_entries(lm, prompts[0], theirs)
    is_audio = lm.prepare(prompts[:1]).audio_mask[0]
    audio = torch.stack([layer[:, is_audio] for layer in theirs.kept_entries]).double()
    torch.testing.assert_close(theirs.kept_shares[0][is_audio], audio.mean((0, 1)))


def test_no_kept_token_count_is_given_for_a_third_party_press_that_masks_heads_differently(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    done = generate(lm, prompts[0], Foreign(press=Theirs(by_head=True), name="ada"))
    (length,) = lm.prepare(prompts[:1]).prompt_tokens
    assert done.kv_lengths == (length,) * 4
    assert {int(layer.sum()) for layer in done.kept_entries} == {length}
    assert any(layer[0].sum() != layer[1].sum() for layer in done.kept_entries)
    assert done.kept_audio_tokens == (None,)


@pytest.mark.parametrize(
    ("press", "why"), [(Theirs(turns=True), "changes keys"), (Theirs(doubles=True), "adds entries")]
)
def test_no_kept_shares_are_given_for_a_third_party_press_that_changes_or_adds_cache_entries(
    lm: AudioLM, prompts: list[Prompt], press: Theirs, why: str
) -> None:
    with pytest.warns(UserWarning, match=why):
        done = Foreign(press=press, name="odd").generate(lm, lm.prepare(prompts[:1]), max_new_tokens=3)
    assert done.kept_shares is None
    assert done.kept_audio_tokens == (None,)


def test_no_kept_shares_are_given_if_a_third_party_press_replaces_attention_or_drops_tokens(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    def own_attention(hidden_states: torch.Tensor, past_key_values: Any, **_more: Any) -> tuple[torch.Tensor, None]:
        entries = hidden_states.new_zeros(1, 2, hidden_states.shape[1], 8)
        past_key_values.update(entries, entries, 1)
        return hidden_states, None

    def half(_module: Any, args: Any, call: dict[str, Any]) -> Any:
        left = slice(1 - args[0].shape[1] % 2, None, 2)
        angles = tuple(part[..., left, :] for part in call["position_embeddings"])
        return (args[0][:, left],), call | {"position_embeddings": angles, "position_ids": None}

    @contextmanager
    def drops(model: Any) -> Iterator[None]:
        with model.model.language_model.layers[-1].register_forward_pre_hook(half, with_kwargs=True):
            yield

    def attends(model: Any) -> Any:
        return patched_attribute(model.model.language_model.layers[1].self_attn, "forward", own_attention)

    for press, steps, why in ((drops, 1, "drops tokens"), (attends, 3, "own way")):
        with pytest.warns(UserWarning, match=why):
            done = Foreign(press=press, name="odd").generate(
                lm, lm.prepare(prompts[:1]), max_new_tokens=steps, ignore_end=True
            )
        assert done.kept_shares is None


def test_cache_entries_kept_by_a_third_party_press_are_identified_for_each_sample_of_a_batch(
    lm: AudioLM, prompts: list[Prompt]
) -> None:
    batch = [prompts[0], Prompt("Long or short?", (noise(3.0),))]
    done = generate(lm, batch, Foreign(press=Theirs(), name="theirs"))
    assert {tuple(layer.sum(-1).flatten().tolist()) for layer in done.kept_entries} == {(40,) * 4}
    assert not torch.equal(*(shares[-60:] for shares in done.kept_shares))


def test_cache_entries_with_identical_values_are_matched_in_order_after_a_press() -> None:
    before, after = torch.tensor([[[5, 3, 5, 5, 9]]]), torch.tensor([[[5, 9, 5]]])
    live = torch.ones_like(after, dtype=torch.bool)
    assert matched(before, after, live).tolist() == [[[True, False, True, False, True]]]
    assert matched(before, torch.tensor([[[9, 9, 5]]]), live) is None
