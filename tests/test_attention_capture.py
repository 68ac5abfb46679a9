"""Captured attention equals that of transformers, sums to 1, is zero on dropped tokens, and changes no reply."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import noise, skip_unless_carried
from families import Family
from torch.utils._python_dispatch import TorchDispatchMode

from audiomarathon.certify.oracles import HiddenEntries
from audiomarathon.compression.attention import Attention as Given
from audiomarathon.compression.external import Foreign
from audiomarathon.compression.method import Base
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.attention_capture import capture, capture_whole, parts_of
from audiomarathon.errors import MethodError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.runs.attention import ROWS, Attention
from audiomarathon.runs.record_line import unpack

NEW = 4


def eager_maps(lm: AudioLM, inputs: Inputs, method: Any = None, reply: tuple[int, ...] = ()) -> np.ndarray:
    """Return the attention of an eager model from transformers, shape (L, H, S, S), with the reply in the prompt."""
    tensors = dict(inputs.tensors)
    if reply:
        tensors["input_ids"] = torch.cat([tensors["input_ids"], torch.tensor([reply])], 1)
        tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
    with torch.inference_mode(), lm.generating(inputs, 1):
        done = lm.model.generate(
            **tensors, max_new_tokens=1, do_sample=False, output_attentions=True, return_dict_in_generate=True
        )
    width = tensors["input_ids"].shape[1]
    return np.stack([layer[0, :, :, :width].float().numpy() for layer in done.attentions[0]])


def seen(lm: AudioLM, prompt: Prompt, method: str = "base", **how: Any) -> tuple[Inputs, Attention]:
    inputs = lm.prepare([prompt])
    return inputs, capture(lm, inputs, get_method(method), prompt, **{"max_new_tokens": NEW, **how})


def whole(lm: AudioLM, prompt: Prompt, method: str = "base") -> tuple[Inputs, Attention, np.ndarray]:
    inputs = lm.prepare([prompt])
    length = inputs.audio_mask.shape[1]
    maps = np.zeros((len(lm.decoder_layers), length, length), np.float32)
    return inputs, capture(lm, inputs, get_method(method), prompt, max_new_tokens=NEW, full=maps), maps


@pytest.fixture(scope="module")
def prompt(prompts: list[Prompt]) -> Prompt:
    """Return a prompt with two clips that is longer than one chunk of rows."""
    return prompts[0]


@pytest.fixture(scope="module")
def eager(family: Family, loaded: Callable[[str, str], AudioLM]) -> AudioLM:
    """Return a tiny model of each family with eager attention, whose maps transformers returns."""
    return loaded(family.key, "eager")


def test_attention_captured_from_a_model_equals_the_maps_of_eager_attention(
    family: Family, family_lm: AudioLM, eager: AudioLM, prompt: Prompt
) -> None:
    inputs, captured, maps = whole(eager, prompt)
    true = eager_maps(eager, inputs)
    assert np.abs(maps - true.mean(1)).max() < 1e-5
    assert maps.shape[-1] > 128

    audio = inputs.audio_mask[0].numpy()
    edges = captured.edges
    for block, (start, end) in enumerate(pairwise(edges)):
        wanted = np.add.reduceat(true.mean(1)[:, start:end].mean(1), edges[:-1], 1)
        assert np.abs(captured.blocks[:, block] - wanted).max() < 1e-3  # float16
    last = true[:, :, -1]
    assert np.abs(captured.mass[0] @ np.ones(captured.mass.shape[-1]) - 1).max() < 1e-6
    assert np.abs(captured.profile[0] - last.mean(1)[:, audio] * audio.sum()).max() < 2e-3 * captured.profile[0].max()
    asking = parts_of(eager, inputs, prompt).question.numpy()
    clips = [place for place, name in enumerate(captured.meta["groups"]) if name.startswith("clip")]
    assert np.abs(captured.mass[1][..., clips].sum(-1) - true[:, :, asking][..., audio].sum(-1).mean(-1)).max() < 1e-5
    share = last[:, :, audio] / last[:, :, audio].sum(-1, keepdims=True)
    assert np.abs(captured.entropy[0] + (share * np.log(np.maximum(share, 1e-30))).sum(-1)).max() < 1e-3
    best = np.sort(last[:, :, audio], -1)[..., :-17:-1]
    assert np.abs(captured.top_mass[0] - best).max() < 1e-3
    assert np.abs(np.take_along_axis(last[:, :, audio], captured.top_index[0], -1) - best).max() < 1e-6

    _, under_sdpa = seen(family_lm, prompt)
    assert np.nanmax(np.abs(under_sdpa.mass - captured.mass)) < 1e-5


def test_captured_attention_of_reply_tokens_equals_one_forward_pass_over_prompt_and_reply(
    family: Family, eager: AudioLM, prompt: Prompt
) -> None:
    """Rows from decode equal those of one pass over prompt and reply, also with sliding windows and shared caches."""
    for text in (prompt.text, "And now?", "Say it", "Who?", "Tell me more of this"):
        given = Prompt(text, prompt.clips)
        inputs, captured = seen(eager, given)
        (reply,) = Base().generate(eager, inputs, max_new_tokens=NEW).replies
        if reply.new_tokens == NEW and eager.audio_token not in reply.token_ids:
            break  # a random model may end its reply early or generate an audio token
    else:
        pytest.fail("no reply to compare")
    rows = eager_maps(eager, inputs, reply=reply.token_ids[:-1])[:, :, -(NEW - 1) :].mean(2)
    groups = parts_of(eager, inputs, given).group_of.numpy()
    wanted = np.stack(
        [rows[..., np.flatnonzero(np.append(groups[:-1], [groups[-1]] * (NEW - 1)) == group)].sum(-1)
         for group in range(len(captured.meta["groups"]))], -1
    )  # fmt: skip
    assert np.abs(captured.mass[ROWS.index("generated")] - wanted).max() < 1e-5


@pytest.mark.parametrize("method", ["fast_v:0.5", "frame:0.7", "snapkv:0.5", "frame:0.5+snapkv:0.3"])
def test_attention_masses_sum_to_1_and_capture_does_not_change_the_reply(
    any_lm: AudioLM, prompt: Prompt, method: str
) -> None:
    skip_unless_carried(any_lm, get_method(method))
    given = Prompt(prompt.text, prompt.clips[:1], prompt.seed)
    inputs, captured = seen(any_lm, given, method)
    sums = captured.mass.sum(-1)
    assert np.abs(sums[np.isfinite(sums)] - 1).max() < 1e-6
    assert np.isfinite(sums[:2]).all()
    done = get_method(method).generate(any_lm, inputs, max_new_tokens=NEW)
    (reply,) = done.replies
    assert (captured.meta["reply"], captured.meta["new_tokens"]) == (reply.text, reply.new_tokens)


def test_tokens_dropped_by_a_pruner_get_no_attention_from_the_pruned_layer_on(
    either_lm: AudioLM, prompt: Prompt
) -> None:
    inputs, captured, maps = whole(either_lm, prompt, "frame:0.5")
    kept = unpack(captured.meta["kept_audio_bits"], inputs.audio_tokens[0])
    assert kept.sum() * 2 == len(kept)
    assert (captured.profile[:, 2:][..., ~kept] == 0).all()
    assert (captured.profile[:, :2] > 0).all()
    assert (captured.profile[:, 2:][..., kept] > 0).all()
    assert kept[captured.top_index[:, 2:]].all()
    places = np.flatnonzero(inputs.audio_mask[0].numpy())[~kept]
    assert (maps[2:, places] == 0).all()
    assert (maps[2:, :, places] == 0).all()
    assert np.abs(maps.sum(-1)[:2] - 1).max() < 1e-5


@pytest.mark.parametrize("method", ["streaming_llm:0.5", "frame:0.5+streaming_llm:0.5"])
def test_cache_entries_dropped_by_a_press_get_no_attention_in_decode(lm: AudioLM, prompt: Prompt, method: str) -> None:
    inputs, captured = seen(lm, prompt, method)
    total = inputs.audio_tokens[0]
    alive = captured.profile[ROWS.index("generated"), 0] > 0
    assert alive.sum() == total // 2
    assert alive[:4].all()  # streaming_llm keeps the first four and the last entries
    assert alive[-(total // 2 - 4) :].all()
    assert (captured.profile[ROWS.index("last"), 0] > 0).all()  # prefill saw everything
    if "+" in method:
        kept = unpack(captured.meta["kept_audio_bits"], total)
        later = captured.profile[ROWS.index("generated"), 3] > 0
        assert not later[~kept].any()
        assert later.sum() == kept.sum() // 2


def test_each_query_head_attends_only_to_the_kv_cache_entries_that_a_press_kept_for_it(
    lm: AudioLM, prompt: Prompt
) -> None:
    """Query heads share a cache in groups, and knorm keeps different entries in each group."""
    inputs, captured = seen(lm, prompt, "knorm:0.7")
    done = get_method("knorm:0.7").generate(lm, inputs, max_new_tokens=1, keep_entries=True)
    audio = inputs.audio_mask[0].numpy()
    assert done.kept_entries is not None
    for layer, entries in enumerate(done.kept_entries):
        kept = entries.numpy()[:, audio]
        assert (kept[0] != kept[1]).any()
        for head, top in enumerate(captured.top_index[ROWS.index("generated"), layer]):
            assert kept[head * len(kept) // captured.mass.shape[2]][top].all()


@pytest.mark.parametrize("first", ["", "frame:0.5+"])
def test_audio_tokens_pruned_in_all_heads_get_no_attention_in_decode_after_per_head_pruning(
    either_lm: AudioLM, prompt: Prompt, first: str
) -> None:
    method = get_method(f"{first}ada_snapkv:0.7")
    inputs = either_lm.prepare([prompt])
    done = method.generate(either_lm, inputs, max_new_tokens=1, keep_entries=True)
    assert done.kept_entries is not None
    assert any(len({*kept.sum(1).tolist()}) > 1 for kept in done.kept_entries)
    profile = capture(either_lm, inputs, method, prompt, max_new_tokens=NEW).profile[ROWS.index("generated")]
    audio = inputs.audio_mask[0].nonzero().flatten()
    for layer, kept in enumerate(done.kept_entries):
        positions = torch.arange(inputs.audio_mask.shape[1])
        positions = positions if kept.shape[1] == len(positions) else done.kept_positions[0]
        alive = torch.isin(audio, positions[kept.any(0)]).numpy()
        assert (profile[layer, alive] > 0).all()
        assert (profile[layer, ~alive] == 0).all()
    if not first:
        hidden = capture(either_lm, inputs, HiddenEntries(kept=done.kept_entries), prompt, max_new_tokens=NEW)
        np.testing.assert_allclose(profile, hidden.profile[ROWS.index("generated")], rtol=2e-3)


def test_a_method_that_does_not_report_its_kept_tokens_is_refused(lm: AudioLM, prompt: Prompt) -> None:
    """If the cache is shorter than the prompt, its columns cannot be assigned to tokens."""

    @contextmanager
    def half(_model: Any) -> Iterator[None]:
        def drop(_module: Any, _args: Any, kwargs: Any, _out: Any) -> None:
            for layer in kwargs["past_key_values"].layers:
                layer.keys, layer.values = layer.keys[:, :, ::2], layer.values[:, :, ::2]
            handle.remove()

        handle = lm.decoder.register_forward_hook(drop, with_kwargs=True)
        yield

    with pytest.raises(MethodError, match="does not say which entries it kept"):
        capture(lm, lm.prepare([prompt]), Foreign(press=half, name="half"), prompt, max_new_tokens=NEW)


def test_a_one_token_reply_has_no_attention_row_for_generated_tokens(lm: AudioLM, prompt: Prompt) -> None:
    _, captured = seen(lm, prompt, max_new_tokens=1)
    assert np.isnan(captured.mass[ROWS.index("generated")]).all()
    assert np.isfinite(captured.mass[:2]).all()


def test_only_the_chosen_layers_are_captured_and_an_unknown_layer_is_refused(lm: AudioLM, prompt: Prompt) -> None:
    _, everything = seen(lm, prompt)
    _, some = seen(lm, prompt, layers=(3, 1))
    assert some.meta["layers"] == [1, 3]
    assert np.array_equal(some.mass, everything.mass[:, [1, 3]])
    with pytest.raises(SettingsError, match="layer 4: not one of this model's layers 0–3"):
        seen(lm, prompt, layers=(4,))


def test_each_prompt_token_is_assigned_to_its_clip_question_or_template_group(
    family: Family, family_lm: AudioLM, prompt: Prompt
) -> None:
    inputs = family_lm.prepare([prompt])
    parts = parts_of(family_lm, inputs, prompt)
    ids = inputs.tensors["input_ids"][0]
    assert family_lm.tokenizer.decode(ids[parts.question].tolist()).strip() == prompt.text
    assert (len(parts.clips), sum(parts.clips)) == (len(prompt.clips), inputs.audio_tokens[0])
    assert parts.groups[parts.group_of[0]] == "first token"
    inside = [int((parts.group_of == place).sum()) for place, name in enumerate(parts.groups) if name[:4] == "clip"]
    assert tuple(inside) == parts.clips
    for place in inputs.audio_mask[0].nonzero().flatten()[1:].tolist():
        assert parts.groups[parts.group_of[place]].startswith("clip")


def test_swapping_two_clips_swaps_their_attention_masses(lm: AudioLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without position embeddings, the first layer's attention depends on the sound, not on its place."""
    rotate = lm.decoder.rotary_emb.forward

    def unrotated(*given: Any, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = rotate(*given, **more)
        return torch.ones_like(cos), torch.zeros_like(sin)

    monkeypatch.setattr(lm.decoder.rotary_emb, "forward", unrotated)
    loud, quiet = noise(3.0, 1), noise(3.0, 2) * 0.01
    _, straight = seen(lm, Prompt("Which is louder?", (loud, quiet)), layers=(0,))
    _, other = seen(lm, Prompt("Which is louder?", (quiet, loud)), layers=(0,))
    first, second = straight.meta["groups"].index("clip 1"), straight.meta["groups"].index("clip 2")
    assert np.abs(straight.mass[:2, ..., first] - other.mass[:2, ..., second]).max() < 1e-5
    assert np.abs(straight.mass[:2, ..., first] - straight.mass[:2, ..., second]).max() > 1e-3


def test_a_prompt_without_audio_has_only_text_groups_and_an_empty_audio_profile(lm: AudioLM) -> None:
    _, captured = seen(lm, Prompt("Say something.", ()))
    assert captured.profile.shape[-1] == 0
    groups = "first token, template before, question, rest of the template, generated"
    assert ", ".join(captured.meta["groups"]) == groups
    assert np.abs(np.nansum(captured.mass[0], -1) - 1).max() < 1e-6


class _Live(TorchDispatchMode):
    """Count the bytes of live tensors that were created inside, and keep the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return out

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def test_memory_of_capture_grows_linearly_with_the_prompt_length(lm: AudioLM) -> None:
    """Capturing a layer takes a few times H·128·S·4 bytes: 12 MB each at S = 6,000, where a full map takes 576 MB."""
    from audiomarathon.engine.attention_capture import _Recorder
    from audiomarathon.models.trace import Trace

    heads, length, size = 4, 6000, 16
    prompt = Prompt("Q", (noise(1.0),))
    mask = torch.zeros(1, length, dtype=torch.bool)
    mask[:, 10:-10] = True
    ids = torch.where(mask, lm.audio_token, 5)
    inputs = Inputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, mask, (0,))
    recorder = _Recorder(lm, inputs, parts_of(lm, inputs, prompt), [0], None)
    recorder.trace = Trace((length - 20,))
    torch.manual_seed(0)
    given = Given(*(torch.randn(1, count, length, size) for count in (heads, 2, 2)), None, 0.25)
    with torch.inference_mode(), _Live() as live:
        recorder._look(0, given)
    assert live.most < 6 * heads * 128 * length * 4
    assert np.abs(recorder.rows["last", 0]["mass"].sum(-1) - 1).max() < 1e-6


def test_captured_attention_applies_the_models_logit_soft_cap() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 3, 4)
    capped = Given(query, key, key, None, 2.0, softcap=1.5).of_queries(1, 2)[0]
    logits = 1.5 * torch.tanh(2.0 * torch.einsum("hqd,kd->hqk", query[0], key[0, 0]) / 1.5)
    logits = logits.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    assert torch.allclose(capped, logits.softmax(-1)[:, 1:], atol=1e-6)


def test_a_saved_attention_file_reads_back_equal(lm: AudioLM, prompt: Prompt, tmp_path: Path) -> None:
    _, captured = seen(lm, prompt)
    size = captured.save(tmp_path / "a.npz")
    again = Attention.read(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").stat().st_size == size
    assert (again.tokens, again.meta) == (captured.tokens, captured.meta)
    for name in ("mass", "profile", "top_index", "top_mass", "entropy", "blocks", "edges"):
        assert np.array_equal(getattr(again, name), getattr(captured, name), equal_nan=True)


def test_full_attention_maps_are_saved_in_three_files_named_as_by_the_original_script(
    lm: AudioLM, prompt: Prompt, tmp_path: Path
) -> None:
    import json

    inputs, _, maps = whole(lm, prompt)
    capture_whole(lm, inputs, Base(), prompt, tmp_path / "one", longest=500, facts={"sample_id": "one"}, layers=(0, 2))
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == ["attn.npy", "meta.json", "tokens.json"]
    assert np.array_equal(np.load(tmp_path / "one" / "attn.npy"), maps[[0, 2]])
    meta = json.loads((tmp_path / "one" / "meta.json").read_text())
    assert {name: meta[name] for name in ("head_mean", "dtype", "seq_len", "layers", "sample_id")} == {
        "head_mean": True, "dtype": "float32", "seq_len": maps.shape[-1], "layers": [0, 2], "sample_id": "one"
    }  # fmt: skip
    assert len(json.loads((tmp_path / "one" / "tokens.json").read_text())) == maps.shape[-1]


def test_capturing_full_attention_maps_of_a_prompt_over_the_length_limit_is_refused(
    lm: AudioLM, prompt: Prompt, tmp_path: Path
) -> None:
    inputs = lm.prepare([prompt])
    with pytest.raises(SettingsError, match=r"one: whole maps of 2\d\d tokens take 0.0 GB; allowed: prompts of at"):
        capture_whole(lm, inputs, Base(), prompt, tmp_path / "one", longest=100, facts={"sample_id": "one"})
    assert not (tmp_path / "one").exists()


def test_a_failed_capture_leaves_no_partial_map_folder(
    lm: AudioLM, prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: Any, **_more: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(lm, "generate", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        capture_whole(
            lm, lm.prepare([prompt]), Base(), prompt, tmp_path / "one", longest=500, facts={"sample_id": "one"}
        )
    assert list((tmp_path / "one").iterdir()) == []
