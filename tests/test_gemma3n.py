"""Gemma 3n's own behaviour: audio windows, sliding attention windows, shared keys and values, no vision tower."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import noise
from tiny_base import changed_copy
from tokenizers.processors import TemplateProcessing
from transformers import Gemma3nConfig, Gemma3nTextConfig, Gemma3nVisionConfig, Phi4MultimodalConfig

from audiomarathon.certify.bench import Bench
from audiomarathon.certify.certificate import usual_seconds
from audiomarathon.certify.method_checks import dropping
from audiomarathon.certify.oracles import Hidden
from audiomarathon.compression.method import Base, kept_count
from audiomarathon.compression.pruners.dart import Dart
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.pruners.random import Random
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.costs.config_facts import model_facts
from audiomarathon.errors import MethodError, ModelError
from audiomarathon.models.gemma3n import Gemma3n
from audiomarathon.models.layers import cached, source_of, window_of
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model

E4B = Gemma3nTextConfig()
"""The defaults are those of the published E4B: 35 layers, each fifth without a window, the last 15 sharing."""


@pytest.fixture(scope="module")
def folder(family_checkpoint: Callable[[str], Path]) -> Path:
    return family_checkpoint("gemma3n")


@pytest.fixture(scope="module")
def gemma(folder: Path) -> Gemma3n:
    return load(folder)


def load(folder: Path) -> Gemma3n:
    return Gemma3n.load(folder, device="cpu", dtype="float32", attn_implementation="sdpa")


class TestLoading:
    def test_the_vision_tower_is_not_loaded(self, gemma: Gemma3n) -> None:
        names = {name for name, _ in gemma.model.named_parameters()}
        assert not any("vision_tower" in name for name in names)
        assert {f"model.embed_{what}.embedding.weight" for what in ("vision", "audio")} <= names

    def test_a_config_without_vision_label_names_can_be_loaded(self, folder: Path, tmp_path: Path) -> None:
        """transformers gets such names from timm."""
        copy = changed_copy(folder, tmp_path, config=lambda facts: facts["vision_config"].pop("label_names"))
        assert load(copy).tokens_per_window == 188


class TestPrompt:
    def test_a_tokenizer_that_adds_bos_does_not_double_it(
        self, gemma: Gemma3n, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The hub's tokenizer adds one, and so does the chat template."""
        backend, begin = gemma.tokenizer.backend_tokenizer, gemma.tokenizer.convert_tokens_to_ids("<bos>")
        adding = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", begin)])
        monkeypatch.setattr(backend, "post_processor", adding)
        assert gemma.tokenizer("?")["input_ids"][0] == begin
        assert (gemma.prepare([Prompt("?", (noise(1.0),))]).tensors["input_ids"] == begin).sum() == 1

    def test_input_features_equal_those_of_the_processor(self, gemma: Gemma3n, folder: Path) -> None:
        prompt = Prompt("?", (noise(31.0), noise(2.0)))
        theirs = gemma.documented_inputs(folder, prompt)
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in gemma.prepare([prompt]).tensors.items())

    @pytest.mark.parametrize(("seconds", "heard"), [(0.01, 1), (1.0, 7), (29.9, 187), (30.0, 188), (31.0, 195)])
    def test_the_audio_tower_masks_exactly_the_tokens_counted_as_padding_of_its_30_second_windows(
        self, gemma: Gemma3n, seconds: float, heard: int
    ) -> None:
        inputs = gemma.prepare([Prompt("?", (noise(seconds),))])
        assert inputs.audio_tokens[0] - inputs.window_padding[0] == heard
        mask = ~inputs.tensors["input_features_mask"]
        with torch.no_grad():
            silent = gemma.audio_tower(inputs.tensors["input_features"], mask).audio_mel_mask
        assert int(silent.sum()) == inputs.window_padding[0]

    @pytest.mark.parametrize("token", ["<end_of_turn>", "<start_of_turn>", "<image_soft_token>"])
    def test_control_tokens_in_a_question_are_refused(self, gemma: Gemma3n, token: str) -> None:
        """They include tokens that no list of the tokenizer contains, as in the hub's tokenizer."""
        assert "<end_of_turn>" not in gemma.tokenizer.all_special_tokens
        with pytest.raises(ModelError, match="reads as a control token"):
            gemma.prepare([Prompt(f"What is {token}?", (noise(1.0),))])

    def test_the_end_of_turn_token_ends_a_reply(self, gemma: Gemma3n) -> None:
        assert gemma.tokenizer.convert_tokens_to_ids("<end_of_turn>") in gemma.end_tokens


class TestLayers:
    def test_layers_of_the_published_e4b_with_a_shared_cache_or_sliding_window_are_found(self) -> None:
        """The last layers with their own caches are 18, with a window, and 19, without one."""
        assert [source_of(E4B, layer) for layer in range(35)] == [*range(20), *[18, 18, 18, 18, 19] * 3]
        assert [layer for layer in range(35) if window_of(E4B, layer) is None] == [4, 9, 14, 19, 24, 29, 34]
        assert cached(E4B, (2000,) * 2 + (600,) * 3 + (500,) * 30) == (511, 511, 511, 511, 600, *(500,) * 15)

    def test_layers_with_a_shared_cache_or_sliding_window_are_the_same_in_config_and_model(
        self, gemma: Gemma3n
    ) -> None:
        config, layers = gemma.decoder.config, gemma.decoder_layers
        shares = [source_of(config, index) != index for index in range(len(layers))]
        assert shares == [layer.self_attn.is_kv_shared_layer for layer in layers]
        assert [window_of(config, index) for index in range(len(layers))] == [
            layer.self_attn.sliding_window for layer in layers
        ]


class TestMethods:
    def test_cache_lengths_after_pruning_equal_the_kept_tokens(self, gemma: Gemma3n) -> None:
        inputs = gemma.prepare([Prompt("Who?", (noise(4.0), noise(5.0)))])
        (total,), (length,) = inputs.audio_tokens, inputs.prompt_tokens
        base = Base().generate(gemma, inputs, max_new_tokens=1)
        pruned = Frame(0.75, layer=1).generate(gemma, inputs, max_new_tokens=1)
        left = length - total + kept_count(total, 0.75)
        assert base.kv_lengths == (269, length, 269, length)
        assert pruned.kv_lengths == (269, left, left, left)
        assert pruned.kv_bytes == sum(pruned.kv_lengths) * 2 * 2 * 8 * 4

    def test_of_the_altup_copies_of_the_hidden_states_a_pruner_receives_the_first(self, gemma: Gemma3n) -> None:
        class Looks(Dart):
            def select(self, evidence: Evidence) -> torch.Tensor:
                looked.append(evidence.seen.entering)
                return super().select(evidence)

        looked: list[torch.Tensor] = []
        entered: list[torch.Tensor] = []
        handle = gemma.decoder_layers[1].register_forward_pre_hook(lambda _m, args: entered.append(args[0]))
        Looks(0.5, layer=1).generate(gemma, gemma.prepare([Prompt("Who?", (noise(4.0),))]), max_new_tokens=1)
        handle.remove()
        assert torch.equal(looked[0], entered[0][0, 0])

    def test_a_mask_that_hides_no_token_gives_the_logits_of_base_despite_sliding_windows(
        self, gemma: Gemma3n, prompts: list[Prompt]
    ) -> None:
        inputs = gemma.prepare(prompts[:1])  # more tokens than a window has
        everything = Hidden(kept=torch.arange(inputs.audio_mask.shape[1]))
        base, same = (
            method.generate(gemma, inputs, max_new_tokens=6, ignore_end=True, keep_logits=True)
            for method in (Base(), everything)
        )
        torch.testing.assert_close(base.logits, same.logits, atol=2e-5, rtol=1e-4)

    @pytest.mark.parametrize("method", [Random(0.5, layer=0), Frame(0.7, layer=2)], ids=lambda m: m.label)
    def test_dropping_tokens_equals_masking_them_if_a_sliding_window_ends_inside_the_audio(
        self, gemma: Gemma3n, method
    ) -> None:
        """A window is counted in positions, and kept tokens have gaps between their positions."""
        inputs = gemma.prepare([Prompt("Who?", (noise(35.0),), seed=3)])
        told = {"max_new_tokens": 4, "ignore_end": True, "keep_logits": True}
        dropped = method.generate(gemma, inputs, **told)
        hidden = Hidden(kept=dropped.kept_positions[0], first=method.layer).generate(gemma, inputs, **told)
        torch.testing.assert_close(dropped.logits, hidden.logits, atol=2e-5, rtol=1e-4)

    @pytest.mark.parametrize(
        "method", [method for method in all_methods() if method.key != "base"], ids=lambda m: m.key
    )
    def test_each_method_is_refused_at_layers_of_the_published_e4b_that_cannot_support_it(self, method) -> None:
        """Tokens can be pruned up to layer 18, by attention only after layers without a window. No press is allowed.

        Methods that work only in the tower take no layer. The family refuses them instead.
        """
        if not isinstance(method, TokenPruner):
            with pytest.raises(MethodError, match="sliding-window"):
                method.check_config(E4B)
            return
        carried = [layer for layer in range(35) if carries(get_method(method.key, 0.5, layer=layer))]
        expected = dict.fromkeys(("random", "frame", "merge_adjacent", "merge_frame"), range(19))
        expected |= {"dart": range(1, 19), "divprune": range(19), "keep_loud": range(19), "a_tome_like": range(35)}
        expected["keep_speech"] = range(19) if find_spec("silero_vad") else ()
        assert carried == list(expected.get(method.key, (5, 10, 15)))

    @pytest.mark.parametrize(
        ("method", "message"),
        [
            (FastV(0.5, layer=2), "fast_v: .*layer 1 .*512 tokens.*5, 10, 15.* 2$"),
            (Frame(0.5, layer=19), "frame: .*layer 18, .*0–18.* 19$"),
            (Dart(0.5, layer=19), "dart: .*1–18.* 19$"),
            (get_method("frame:0.5+knorm:0.5"), "knorm: .*sliding-window"),
            (Frame(0.5, at="input"), "frame: .*sliding-window .*prompt cannot be shortened; allowed: PRUNE_AT=layer"),
        ],
        ids=lambda value: getattr(value, "label", None),
    )
    def test_a_refused_method_gets_a_one_line_error_that_names_what_is_allowed(self, method, message: str) -> None:
        with pytest.raises(MethodError, match=message) as refused:
            method.check_config(E4B)
        assert "\n" not in str(refused.value)

    def test_pruning_with_flash_attention_is_refused_because_of_sliding_windows(self, gemma: Gemma3n) -> None:
        """The kernels count tokens, and kept tokens have gaps between them."""
        flash = SimpleNamespace(
            decoder=gemma.decoder, decoder_layers=gemma.decoder_layers, attn_implementation="flash_attention_2",
            cross=False, tower_layers=(),
        )  # fmt: skip
        Base().check(flash)
        with pytest.raises(MethodError, match=r"ATTN_IMPLEMENTATION=.*eager"):
            Frame(0.5, layer=2).check(flash)


class TestCost:
    def test_weight_and_cache_bytes_of_the_published_e4b_equal_known_values(self, tmp_path: Path) -> None:
        """7.85 billion parameters are published; 0.29 billion are the vision tower's."""
        vision = Gemma3nVisionConfig().to_dict()
        Gemma3nConfig(text_config={}, audio_config={}, vision_config=vision).save_pretrained(tmp_path)
        facts = model_facts(tmp_path, 2, Gemma3n)
        assert facts.weight_bytes / 2 == pytest.approx(7.85e9 - 0.294e9, rel=0.01)
        assert facts.kv_bytes == 20 * 2 * 2 * 256 * 2


def test_certify_tests_a_pruner_at_the_first_layer_at_which_the_model_allows_it(folder: Path, few_steps: None) -> None:
    """fast_v is refused at its usual layer when the layer before has a window."""
    looked = dropping(Bench(load(folder), folder, 2.0), FastV(layer=1))
    assert looked.verdict == "pass"
    assert looked.figure.startswith("at layer 2, because the method refuses layer 1")


@pytest.mark.parametrize(
    ("key", "config", "seconds"), [("gemma3n", E4B, 90.0), ("phi4mm", Phi4MultimodalConfig(sliding_window=None), 30.0)]
)
def test_clips_used_by_certify_are_longer_than_the_sliding_windows(key: str, config: object, seconds: float) -> None:
    """Gemma 3n makes 188 tokens of 30 s, fewer than the 512 tokens of its sliding windows."""
    lm = SimpleNamespace(decoder=SimpleNamespace(config=config))
    assert usual_seconds(SimpleNamespace(lm=lm, setup=SimpleNamespace(spec=get_model(key)))) == seconds


def carries(method: TokenPruner) -> bool:
    try:
        method.check_config(E4B)
    except MethodError:
        return False
    return True
