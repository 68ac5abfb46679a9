"""The Phi-4-multimodal family: its adapter, LongRoPE's two sets of factors, audio that is encoded clip by clip."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_phi4mm
import torch
from conftest import noise
from families import assert_equal_tensors
from safetensors.torch import load_file
from tiny_base import changed_copy, read_json, write_json
from torch.utils.flop_counter import FlopCounterMode
from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import Phi4MultimodalAudioEmbedding

from audiomarathon.certify.oracles import Hidden
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.registry import get_method
from audiomarathon.costs.config_facts import _tower, model_facts
from audiomarathon.costs.flops import count_cost
from audiomarathon.errors import MethodError, ModelError
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.generation import Generation
from audiomarathon.models.phi4mm import Phi4MM
from audiomarathon.models.prompt import Prompt, by_clip
from audiomarathon.models.registry import get_model

SWITCH = 64  # tokens at which the tiny model's factors change
ADAPTER = "speech-lora/adapter_model.safetensors"


def load(folder: Path, attn_implementation: str = "sdpa", dtype: str = "float32") -> Phi4MM:
    return Phi4MM.load(folder, device="cpu", dtype=dtype, attn_implementation=attn_implementation)


@pytest.fixture(scope="module")
def folder(family_checkpoint: Callable[[str], Path]) -> Path:
    return family_checkpoint("phi4mm")


@pytest.fixture(scope="module")
def phi(folder: Path) -> Phi4MM:
    return load(folder)


@pytest.fixture(scope="module")
def switching(tmp_path_factory: pytest.TempPathFactory) -> Phi4MM:
    """Load a model whose rotary factors change within a short reply."""
    return load(tiny_phi4mm.checkpoint(tmp_path_factory.mktemp("phi") / "switching", switch=SWITCH))


def prompt_of(tokens: int, lm: Phi4MM, seed: int = 0) -> Prompt:
    """Return a prompt of exactly this many tokens, about half of them audio."""
    clip = noise(tokens / 25, seed)
    bare = lm.prepare([Prompt("", (clip,))]).prompt_tokens[0]
    return Prompt("x" * (tokens - bare), (clip,), seed=seed)


def run(lm: Phi4MM, prompts: list[Prompt], method: Method, steps: int, limit: int | None = None) -> torch.Tensor:
    """Return the logits of each step, shape (steps, B, vocabulary)."""
    inputs = lm.prepare(prompts)
    logits = method.generate(lm, inputs, max_new_tokens=limit or steps, ignore_end=True, keep_logits=True).logits
    assert logits is not None
    return logits[:steps]


class TestAdapter:
    def test_the_loaded_speech_adapter_changes_the_logits(self, phi: Phi4MM) -> None:
        prompt = prompt_of(60, phi)
        with phi.without_adapter():
            off = run(phi, [prompt], Base(), 1)
        on = run(phi, [prompt], Base(), 1)
        assert (on - off).abs().max() > 1e-2

    def test_the_speech_adapter_of_every_layer_holds_the_weights_of_its_file(self, phi: Phi4MM, folder: Path) -> None:
        stored = load_file(folder / ADAPTER)
        for index, layer in enumerate(phi.decoder_layers):
            for name in tiny_phi4mm.ADAPTED:
                part = layer.get_submodule(name)
                assert list(part.active_adapters) == ["speech"]
                assert part.scaling == {"speech": 2.0}
                for side in ("lora_A", "lora_B"):
                    loaded = getattr(part, side)["speech"].weight
                    assert torch.equal(loaded, stored[f"base_model.model.model.layers.{index}.{name}.{side}.weight"])

    def test_loading_the_speech_adapter_keeps_the_stored_weights_of_the_speech_projector(
        self, phi: Phi4MM, folder: Path
    ) -> None:
        """Loading an adapter named "speech" reports the projector as missing, but must not initialise it again."""
        stored = load_file(folder / "model.safetensors")
        for name in ("up_proj_for_speech", "down_proj_for_speech"):
            key = f"model.embed_tokens_extend.audio_embed.{name}.weight"
            assert torch.equal(phi.model.get_parameter(key), stored[key])

    @pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
    def test_a_missing_adapter_file_is_refused(self, folder: Path, tmp_path: Path, name: str) -> None:
        copy = changed_copy(folder, tmp_path)
        (copy / "speech-lora" / name).unlink()
        with pytest.raises(ModelError, match=rf"no speech-lora/{name}"):
            load(copy)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda w: w.pop(next(n for n in w if "layers.2.mlp.down_proj.lora_B" in n)), "missing keys.*layers.2.mlp"),
            (lambda w: w.update({"base_model.model.model.layers.9.x.lora_A.weight": torch.ones(2)}), "unexpected keys"),
            (lambda w: w.update({n: torch.ones(3, 3) for n in w if "layers.1.mlp" in n}), "mismatched keys.*layers.1"),
            (lambda w: w.update({n: 0 * t for n, t in w.items() if "lora_B" in n}), "layer 0 .*zeros"),
        ],
        ids=["missing", "unexpected", "other shape", "zeros"],
    )
    def test_adapter_weights_that_do_not_fit_are_refused(
        self, folder: Path, tmp_path: Path, change: Callable, message: str
    ) -> None:
        with pytest.raises(ModelError, match=message):
            load(changed_copy(folder, tmp_path, weights=change, file=ADAPTER))

    def test_an_adapter_that_lacks_a_decoder_layer_is_refused(self, folder: Path, tmp_path: Path) -> None:
        copy = changed_copy(
            folder,
            tmp_path,
            weights=lambda tensors: [tensors.pop(name) for name in list(tensors) if ".layers.3." in name],
            file=ADAPTER,
        )
        config = copy / "speech-lora" / "adapter_config.json"
        targets = read_json(config)["target_modules"].replace(r"\d+", "[0-2]")
        write_json(config, **read_json(config) | {"target_modules": targets})
        with pytest.raises(ModelError, match="decoder layer 3 has no"):
            load(copy)

    def test_the_adapter_is_loaded_in_the_precision_of_the_model(self, folder: Path) -> None:
        lm = load(folder, dtype="bfloat16")
        assert {parameter.dtype for parameter in lm.model.parameters()} == {torch.bfloat16}
        assert torch.isfinite(run(lm, [prompt_of(60, lm)], Base(), 3)).all()

    def test_speech_adapter_counts_in_the_flops_and_the_vision_adapter_does_not(self, phi: Phi4MM) -> None:
        layer = phi.decoder_layers[0]
        adapter = sum(
            4 * (part.in_features + part.out_features) for part in map(layer.get_submodule, tiny_phi4mm.ADAPTED)
        )
        full = sum(layer.get_submodule(name).base_layer.weight.numel() for name in tiny_phi4mm.ADAPTED)
        assert count_cost(phi).flops_per_token_per_layer[0] == 2.0 * (full + adapter + 2 * 32)


class TestFacts:
    """Facts that are computed from the config and headers alone."""

    def test_flops_and_weight_bytes_from_the_config_equal_those_of_the_loaded_model(
        self, phi: Phi4MM, folder: Path
    ) -> None:
        facts, counted = model_facts(folder, 4), count_cost(phi)
        norms = 2.0 * 2 * 32
        assert facts.cost.flops_per_token_per_layer[0] == counted.flops_per_token_per_layer[0] - norms
        loaded = sum(parameter.numel() for parameter in phi.model.parameters()) + 2 * 80  # and the mean, the deviation
        assert facts.weight_bytes == 4 * loaded
        assert facts.kv_bytes == 2 * 2 * 8 * 4 * 4  # keys and values, heads, numbers, layers, bytes

    def test_tower_flops_by_formula_equal_pytorchs_counter_at_full_size(self) -> None:
        config = Phi4MultimodalConfig(num_attention_heads=24)
        config.audio_config._attn_implementation = "eager"
        with torch.device("meta"):
            tower, features = Phi4MultimodalAudioEmbedding(config).eval(), torch.zeros(1, 3000, 80)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            heard = tower.encoder(features, None)
            tower.down_proj_for_speech(tower.up_proj_for_speech(heard))
        assert _tower(config) == pytest.approx(counter.get_total_flops() / 30, rel=0.05)  # attention is left out


class TestCheckpoint:
    def test_loading_the_main_revision_of_phi4_is_refused_naming_the_revision_to_use(
        self, folder: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ModelError, match=r"'phi4mm'.*@refs/pr/70"):
            load(changed_copy(folder, tmp_path, config=lambda facts: facts.update(model_type="phi4mm")))

    def test_loading_without_peft_names_the_package_to_install(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ModelError, match=r"peft.*pip install -r requirements/phi4mm\.txt"):
            load(folder)

    def test_a_chat_template_that_accepts_only_strings_as_message_contents_gives_the_same_prompt(
        self, folder: Path, tmp_path: Path, phi: Phi4MM
    ) -> None:
        """The template of the main revision joins strings and fails on a list of contents."""
        copy = changed_copy(folder, tmp_path)
        (copy / "chat_template.jinja").write_text(
            "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
        )
        joining = load(copy)
        for prompt in (Prompt("Who?", (noise(1.0), noise(2.0))), Prompt("Who?", ())):
            ours, other = (lm.prepare([prompt]).tensors["input_ids"] for lm in (phi, joining))
            assert torch.equal(ours, other)

    def test_a_checkpoint_revision_name_may_contain_slashes(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asked = []

        def snapshot_download(name: str, **options: object) -> str:
            asked.append((name, options["revision"]))
            return str(tmp_path)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        checkpoint = find_checkpoint(get_model("phi4mm").checkpoint)
        assert asked == [("microsoft/Phi-4-multimodal-instruct", "refs/pr/70")]
        assert (checkpoint.name, checkpoint.folder_name) == (asked[0][0], "Phi-4-multimodal-instruct")
        with pytest.raises(ModelError, match="not a hub id"):
            find_checkpoint("org/name/more@main")


class TestPrompt:
    def test_splitting_audio_tokens_by_clip_gives_each_of_two_adjacent_clips_its_own_tokens(self, phi: Phi4MM) -> None:
        inputs = phi.prepare([Prompt("?", (noise(5.3), noise(3.05)))])
        parts = by_clip(np.arange(float(inputs.audio_tokens[0])), inputs, (5.3, 3.05))
        assert [len(part) for part in parts] == [tiny_phi4mm.audio_tokens(n) for n in (84800, 48800)] == [66, 38]

    def test_inputs_made_as_the_model_card_documents_equal_those_of_the_phi4_processor(
        self, phi: Phi4MM, folder: Path
    ) -> None:
        prompt = Prompt("Who?", (noise(1.3),))
        assert_equal_tensors(phi.documented_inputs(folder, prompt), tiny_phi4mm.documented(folder, prompt)[0])


class TestEncoder:
    def test_a_clip_encoded_together_with_longer_clips_equals_the_clip_encoded_alone(self, phi: Phi4MM) -> None:
        """The longer clip is in the same prompt or in another sample; its 45 s are two chunks of the encoder."""
        clips = noise(45.0, 1), noise(2.9, 2)
        heard: list[torch.Tensor] = []
        handle = phi.audio_tower.encoder.register_forward_hook(lambda _m, _a, output: heard.append(output))
        try:
            for prompts in ([Prompt("?", clips)], [Prompt("?", clips[:1]), Prompt("?", clips[1:])]):
                run(phi, prompts, Base(), 1)
            for clip in clips:
                run(phi, [Prompt("?", (clip,))], Base(), 1)
        finally:
            handle.remove()
        together, batch, long, short = heard
        assert len(together) == 2  # one call for all clips
        for both in (together, batch):
            assert torch.equal(both[:1], long)
            assert torch.equal(both[1:, : short.shape[1]], short)

    def test_a_clip_of_several_chunks_gives_the_reply_of_the_code_documented_for_phi4(
        self, phi: Phi4MM, folder: Path
    ) -> None:
        prompt = Prompt("Which is it?", (noise(45.0),))  # 563 tokens: a whole chunk and a short one
        inputs, model = tiny_phi4mm.documented(folder, prompt)
        with torch.no_grad():
            plain = model.generate(**inputs, do_sample=False, max_new_tokens=4, eos_token_id=None, pad_token_id=1)
        ours = Base().generate(phi, phi.prepare([prompt]), max_new_tokens=4, ignore_end=True)
        assert list(ours.replies[0].token_ids) == plain[0, inputs["input_ids"].shape[1] :].tolist()

    def test_patched_methods_and_buffers_are_restored_after_a_call(self, phi: Phi4MM) -> None:
        rotary = phi.decoder.rotary_emb
        buffers = {name: (id(tensor), tensor.shape) for name, tensor in rotary.named_buffers()}
        run(phi, [Prompt("?", (noise(1.0), noise(2.0)))], Base(), 2)
        assert "prepare_inputs_for_generation" not in vars(phi.model)
        assert "forward" not in vars(phi.audio_tower.encoder)
        assert {name: (id(tensor), tensor.shape) for name, tensor in rotary.named_buffers()} == buffers

    def test_a_generated_audio_token_is_not_replaced_by_audio_features(self, phi: Phi4MM, monkeypatch) -> None:
        """transformers passes the features to every step and would insert all of them in place of that token."""
        head = phi.lm_head.weight
        favoured = torch.zeros(len(head)).index_fill_(0, torch.tensor([phi.audio_token]), 1e4)
        handle = phi.lm_head.register_forward_hook(lambda _m, _a, output: output + favoured)
        try:
            reply = Base().generate(phi, phi.prepare([prompt_of(60, phi)]), max_new_tokens=3).replies[0]
        finally:
            handle.remove()
        assert reply.token_ids == (phi.audio_token,) * 3


def recomputed(lm: Phi4MM, prompt: Prompt, steps: int, factors: torch.Tensor) -> torch.Tensor:
    """Return greedy logits without a cache: every step runs the whole sequence again with the same factors."""
    inputs, rotary = lm.prepare([prompt]), lm.decoder.rotary_emb
    kept = {name: getattr(rotary, name).clone() for name in ("inv_freq", "original_inv_freq", "long_inv_freq")}
    tensors = {name: tensor for name, tensor in inputs.tensors.items() if name.startswith("audio_")}
    ids, logits = inputs.tensors["input_ids"], []
    try:
        rotary.original_inv_freq = rotary.long_inv_freq = factors
        for _ in range(steps):
            with torch.no_grad():
                out = lm.model(input_ids=ids, use_cache=False, **tensors)
            logits.append(out.logits[:, -1])
            ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)], dim=1)
    finally:
        for name, tensor in kept.items():
            setattr(rotary, name, tensor)
    return torch.stack(logits)


def factors_of(*, long: bool) -> torch.Tensor:
    """Apply LongRoPE's formula (arXiv 2402.13753) to the tiny config: 6 rotated dimensions a head, base 10,000."""
    stretch = torch.tensor([1.0, 4.0, 32.0] if long else [1.0, 1.0, 1.0])
    return 1.0 / (stretch * 10000.0 ** (torch.arange(0, 6, 2) / 6))


class TestSwitch:
    """The switch of factors at 4,096 tokens, here at 64. The numbers of steps let the reply grow past it."""

    @pytest.mark.parametrize(
        ("prompt", "limit", "long"),
        [(SWITCH - 10, 10, False), (SWITCH - 9, 10, True), (80, 4, True)],
    )
    def test_decode_equals_recomputing_without_a_kv_cache_under_short_or_long_rotary_factors(
        self, switching: Phi4MM, prompt: int, limit: int, long: bool
    ) -> None:
        long_prompt = prompt_of(prompt, switching)
        ours = run(switching, [long_prompt], Base(), limit)
        plain = recomputed(switching, long_prompt, limit, factors_of(long=long))
        torch.testing.assert_close(ours, plain, atol=2e-5, rtol=1e-4)
        other = recomputed(switching, long_prompt, limit, factors_of(long=not long))
        assert (ours - other).abs().max() > 1e-3

    @pytest.mark.parametrize("method", [Base(), get_method("snapkv", 0.5)], ids=lambda method: method.key)
    def test_each_sample_of_a_batch_keeps_its_own_rotary_factors_in_a_cuda_graph(
        self, switching: Phi4MM, method: Method, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inputs = switching.prepare([prompt_of(n, switching, seed) for seed, n in enumerate((30, SWITCH - 8, 100))])
        done = []
        for how in ("graph", "eager"):
            monkeypatch.setattr(switching, "decode", how)
            done.append(method.generate(switching, inputs, max_new_tokens=10, ignore_end=True, keep_logits=True))
        assert done[0].replies == done[1].replies
        torch.testing.assert_close(done[0].logits, done[1].logits, atol=1e-5, rtol=0)

    @pytest.mark.parametrize(
        ("method", "attention"),
        [("base", "eager"), ("fast_v:0.5", "eager"), ("random:0.5", "sdpa")],
    )
    def test_a_batch_of_short_and_long_prompts_gives_the_logits_of_single_prompts(
        self, switching: Phi4MM, method: str, attention: str
    ) -> None:
        switching.model.set_attn_implementation({"": attention})
        prompts = [prompt_of(n, switching, seed) for seed, n in enumerate((30, SWITCH - 8, 100))]
        how = get_method(method, layer=1)
        try:
            together = run(switching, prompts, how, 10)
            for row, prompt in enumerate(prompts):
                alone = run(switching, [prompt], how, 10)
                torch.testing.assert_close(together[:, row], alone[:, 0], atol=2e-5, rtol=1e-4)
        finally:
            switching.model.set_attn_implementation({"": "sdpa"})

    @pytest.mark.parametrize("method", ["random", "snapkv"])
    def test_prune_ratio_0_gives_the_logits_of_base(self, switching: Phi4MM, method: str) -> None:
        long_prompt = prompt_of(SWITCH - 8, switching)
        zero = dataclasses.replace(get_method(method, 0.5), ratio=0.0)
        assert torch.equal(run(switching, [long_prompt], zero, 12), run(switching, [long_prompt], Base(), 12))

    @pytest.mark.parametrize("method", ["random", "knorm"])
    def test_decode_uses_the_rotary_factors_of_the_prompt_even_if_pruning_shortens_the_cache(
        self, switching: Phi4MM, method: str
    ) -> None:
        """transformers takes layer 0's short cache for a short sequence and would drop the cache at every step."""
        short_prompt = prompt_of(100, switching)
        how = get_method(method, 0.9, **({"layer": 0} if method == "random" else {}))
        inputs = switching.prepare([short_prompt])
        short = how.generate(switching, inputs, max_new_tokens=12, ignore_end=True, keep_logits=True)
        assert short.kv_lengths[0] < SWITCH
        cosines = rotations_seen(switching, lambda: run(switching, [short_prompt], how, 12))
        assert all(torch.equal(cos[0, -1], expected_cos(99 + step)) for step, cos in enumerate(cosines))

    def test_presses_that_predict_future_queries_use_the_rotary_factors_of_the_running_call(
        self, switching: Phi4MM
    ) -> None:
        inputs = switching.prepare([prompt_of(30, switching)])
        for limit, long in ((8, False), (60, True)):
            with switching.generating(inputs, limit):
                cos, sin = switching.rotation(30, 512)  # future positions pass the switch with either factors
            angle = torch.arange(30, 542)[:, None] * factors_of(long=long)
            scale = switching.decoder.rotary_emb.attention_scaling
            torch.testing.assert_close(cos, torch.cat([angle, angle], -1).cos() * scale, atol=1e-4, rtol=0)
            assert cos.shape == sin.shape == (512, 6)

    def test_more_tokens_than_the_model_has_positions_are_refused(self, switching: Phi4MM) -> None:
        inputs = switching.prepare([prompt_of(30, switching)])
        with pytest.raises(ModelError, match=r"131073 tokens.*131072"):
            Base().generate(switching, inputs, max_new_tokens=131072 - 29)


def test_transformers_still_has_the_phi4_internals_that_the_project_patches(phi: Phi4MM) -> None:
    """As test_transformers_internals.py: messages name the part of transformers that moved."""
    rotary, native = phi.decoder.rotary_emb, Phi4MultimodalForCausalLM
    for name in ("inv_freq", "original_inv_freq", "long_inv_freq"):
        assert getattr(rotary, name).shape == (3,), f"rotary_emb.{name} moved (Phi4MM.generating)"
    assert "prepare_inputs_for_generation" in vars(native), "the fault with the cache is gone, or elsewhere"
    names = list(inspect.signature(phi.audio_tower.encoder.forward).parameters)
    assert names[:2] == ["hidden_states", "mask"], "the audio encoder takes other arguments (phi4mm._each_alone)"
    assert not hasattr(phi.model.config, "layer_types"), "the config now says which layers slide (window_of)"


@pytest.mark.parametrize("method", ["snapkv", "random:0.5+snapkv:0.5"])
@pytest.mark.parametrize(("window", "types", "refused"), [
    (None, None, False), (131072, None, False), (262144, None, False), (131071, None, True), (2047, None, True),
    (4096, ["full_attention"] * 4, False), (512, ["full_attention"] * 3 + ["sliding_attention"], True),
    (262144, ["sliding_attention"] * 4, False),
])  # fmt: skip
def test_presses_refuse_a_model_only_if_its_sliding_window_is_shorter_than_its_context(
    method: str, window: int | None, types: list[str] | None, refused: bool
) -> None:
    config = SimpleNamespace(
        num_hidden_layers=4, sliding_window=window, layer_types=types, max_position_embeddings=131072
    )
    how = get_method(method, 0.5)
    with pytest.raises(MethodError, match="sliding-window") if refused else nullcontext():
        how.check_config(config)


def test_dropping_tokens_equals_hiding_them_with_a_short_sliding_window(folder: Path, tmp_path: Path) -> None:
    lm = load(changed_copy(folder, tmp_path, config=lambda facts: facts.update(sliding_window=40)))
    inputs = lm.prepare([Prompt("Which is it?", (noise(3.0),))])

    def generate(method: Method) -> Generation:
        return method.generate(lm, inputs, max_new_tokens=6, ignore_end=True, keep_logits=True)

    dropped = generate(Frame(0.3, layer=2))
    assert inputs.prompt_tokens[0] > 45
    assert dropped.kv_lengths[0] == 39
    hidden = generate(Hidden(kept=dropped.kept_positions[0], first=2))
    torch.testing.assert_close(dropped.logits, hidden.logits, atol=2e-5, rtol=1e-4)
    with pytest.raises(MethodError, match="allowed layers: none"):
        FastV(0.5, layer=2).check(lm)


def test_a_sliding_window_longer_than_the_phi4_context_is_disabled_on_loading(phi: Phi4MM, folder: Path) -> None:
    assert read_json(folder / "config.json")["sliding_window"] == 262144
    get_method("snapkv", 0.5).check(phi)
    assert phi.model.config.sliding_window is None


def expected_cos(position: int) -> torch.Tensor:
    """Return the cosines of one position with the long factors, by the model's formula."""
    angle = torch.tensor(float(position)) * factors_of(long=True)
    return torch.cat([angle, angle]).cos() * math.sqrt(1 + math.log(131072 / SWITCH) / math.log(SWITCH))


def rotations_seen(lm: Phi4MM, work: Callable[[], object]) -> list[torch.Tensor]:
    """Return the cosines of each forward pass."""
    seen: list[torch.Tensor] = []
    handle = lm.decoder.rotary_emb.register_forward_hook(lambda _m, _a, output: seen.append(output[0].clone()))
    try:
        work()
    finally:
        handle.remove()
    return seen
