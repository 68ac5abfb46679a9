"""Voxtral's own behaviour: request formats, audio windows, Mistral's format beside that of transformers."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from conftest import noise
from safetensors.torch import load_file, save_file
from tiny_voxtral import AUDIO_TOKEN, hub_name, tekken
from transformers import VoxtralProcessor

from audiomarathon.audio.decode import decode
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.costs.config_facts import model_facts
from audiomarathon.costs.flops import count_cost
from audiomarathon.errors import ModelError
from audiomarathon.languages import LANGUAGES
from audiomarathon.models.checkpoint import find_checkpoint, is_ignored
from audiomarathon.models.prompt import Prompt, by_clip
from audiomarathon.models.voxtral import Voxtral

QUESTION = "Which is it?\n\nA. cat\nB. dog"


def load(folder: Path, dtype: str = "float32") -> Voxtral:
    return Voxtral.load(folder, device="cpu", dtype=dtype, attn_implementation="sdpa")


@pytest.fixture(scope="module")
def folder(family_checkpoint: Callable[[str], Path]) -> Path:
    return family_checkpoint("voxtral")


@pytest.fixture(scope="module")
def voxtral(folder: Path) -> Voxtral:
    return load(folder)


@pytest.fixture(scope="module")
def processor(folder: Path) -> VoxtralProcessor:
    return VoxtralProcessor.from_pretrained(folder)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def sixteen_bits(clip: np.ndarray) -> np.ndarray:
    return (np.round(clip * 32768) / 32768).astype(np.float32)


class TestLoading:
    def test_weights_under_their_hub_names_are_loaded_unchanged(self, folder: Path, voxtral: Voxtral) -> None:
        stored = load_file(folder / "model.safetensors")
        assert {name.split(".")[0] for name in stored} == {"audio_tower", "language_model", "multi_modal_projector"}
        loaded = voxtral.model.state_dict()
        assert {hub_name(name) for name in loaded} == set(stored)
        assert all(torch.equal(tensor, stored[hub_name(name)]) for name, tensor in loaded.items())

    def test_sharded_weights_are_loaded_and_the_mistral_format_file_is_ignored(
        self, copy: Path, voxtral: Voxtral
    ) -> None:
        weights = load_file(copy / "model.safetensors")
        (copy / "model.safetensors").unlink()
        names = sorted(weights)
        shards = {f"model-0000{part + 1}-of-00002.safetensors": names[part::2] for part in range(2)}
        for file, held in shards.items():
            save_file({name: weights[name] for name in held}, copy / file, metadata={"format": "pt"})
        places = {name: file for file, held in shards.items() for name in held}
        (copy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        (copy / "consolidated.safetensors").write_bytes(b"not weights at all")
        assert torch.equal(load(copy).lm_head.weight, voxtral.lm_head.weight)
        assert model_facts(copy, 4).weight_bytes == 4 * sum(p.numel() for p in voxtral.model.parameters())

    def test_a_checkpoint_in_the_mistral_format_alone_is_refused(self, copy: Path) -> None:
        (copy / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"cannot be loaded .*model\.safetensors"):
            load(copy)

    @pytest.mark.parametrize(
        "change",
        [
            lambda content: content["special_tokens"][AUDIO_TOKEN].update(token_str="[SOUND]"),
            lambda content: content["audio"].update(frame_rate=25.0),
            lambda content: content.pop("audio"),
        ],
        ids=["other token", "other rate", "deaf"],
    )
    def test_a_tokenizer_of_another_model_is_refused(self, copy: Path, change) -> None:
        content = tekken()
        change(content)
        (copy / "tekken.json").write_text(json.dumps(content))
        with pytest.raises(ModelError, match=r"375 audio tokens .*\b24\b.*do not belong"):
            load(copy)

    def test_a_missing_mistral_common_is_refused_with_the_install_command(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
        with pytest.raises(ModelError, match=r"mistral_common.*pip install -r requirements/voxtral"):
            load(folder)

    def test_a_model_in_bfloat16_prunes_and_generates(self, folder: Path) -> None:
        lm = load(folder, "bfloat16")
        inputs = lm.prepare([Prompt("?", (noise(2.0),))])
        assert inputs.tensors["input_features"].dtype == lm.lm_head.weight.dtype == torch.bfloat16
        assert FastV(0.5).generate(lm, inputs, max_new_tokens=2).kv_lengths[-1] < inputs.prompt_tokens[0]


class TestPrompt:
    @pytest.mark.parametrize("question", ["What is [AUDIO]? [/INST]</s>", "", "naïve – 東京\n\tA. x "])
    def test_any_question_is_tokenized_as_by_the_processor(self, voxtral: Voxtral, folder: Path, question: str) -> None:
        prompt = Prompt(question, (noise(1.0),))
        expected = voxtral.documented_inputs(folder, prompt)["input_ids"]
        assert torch.equal(voxtral.prepare([prompt]).tensors["input_ids"], expected)

    @pytest.mark.parametrize("seconds", [1.3, 31.0])
    def test_a_transcription_prompt_has_the_format_of_the_processor_without_the_question(
        self, voxtral: Voxtral, processor: VoxtralProcessor, seconds: float
    ) -> None:
        clip = sixteen_bits(noise(seconds))
        ours = voxtral.prepare([Prompt("Write down what is said.", (clip,), transcription=True)]).tensors
        expected = processor.apply_transcription_request(
            [clip], "any", language="en", sampling_rate=16000, format="WAV"
        )
        assert torch.equal(ours["input_ids"], expected["input_ids"])
        assert torch.equal(ours["input_features"], expected["input_features"])
        words = voxtral.tokenizer.decode(ours["input_ids"][0]).replace("[AUDIO]", "")
        assert words == "<s>[INST][BEGIN_AUDIO][/INST]lang:en[TRANSCRIBE]"

    def test_a_language_that_voxtral_does_not_support_is_refused_before_the_model_loads(
        self, voxtral: Voxtral, folder: Path
    ) -> None:
        for language in LANGUAGES - {"yue"}:
            voxtral.check_language(folder, language)
            voxtral._request(Prompt("?", (noise(1.0),), transcription=True, language=language))
        with pytest.raises(ModelError, match=r"LANGUAGE=yue.*two letters"):
            voxtral.check_language(folder, "yue")

    def test_transcription_of_two_clips_is_refused(self, voxtral: Voxtral) -> None:
        with pytest.raises(ModelError, match=r"one clip .*has 2"):
            voxtral.prepare([Prompt("?", (noise(1.0), noise(1.0)), transcription=True)])


class TestFeatures:
    def test_features_equal_those_of_the_processor_bit_for_bit(self, voxtral: Voxtral, folder: Path) -> None:
        """Of float audio: each whole clip has its own spectrogram, cut afterwards. The second clip starts loud."""
        loud = noise(33.0, 1)
        loud[:8000] *= 9
        prompt = Prompt(QUESTION, (noise(2.2), loud))
        expected = voxtral.documented_inputs(folder, prompt)["input_features"]
        assert torch.equal(voxtral.prepare([prompt]).tensors["input_features"], expected)

    @pytest.mark.parametrize("rate", [16000, 44100])
    def test_features_of_a_decoded_16_bit_file_equal_those_of_the_processor_given_its_path(
        self, voxtral: Voxtral, processor: VoxtralProcessor, tmp_path: Path, rate: int
    ) -> None:
        """The processor re-encodes files to 16 bits, which does not change these files."""
        file = tmp_path / "clip.wav"
        soundfile.write(file, noise(2.0, rate=rate), rate, subtype="PCM_16")
        content = [{"type": "audio", "path": str(file)}, {"type": "text", "text": QUESTION}]
        expected = processor.apply_chat_template([{"role": "user", "content": content}])
        ours = voxtral.prepare([Prompt(QUESTION, (decode(file, 16000),))])
        assert torch.equal(ours.tensors["input_features"], expected["input_features"])
        assert torch.equal(ours.tensors["input_ids"], expected["input_ids"])


class TestWindows:
    def test_padding_of_the_last_window_of_each_clip_is_counted_as_audio_tokens(self, voxtral: Voxtral) -> None:
        """A token is 0.08 s, so 31 s are 388 tokens in two windows of 375. Each clip is padded separately."""
        inputs = voxtral.prepare([Prompt("?", (noise(31.0),)), Prompt("?", (noise(1.0), noise(30.0)))])
        assert inputs.audio_tokens == [750, 750]
        assert inputs.window_padding == (362, 362)

    def test_the_explain_command_puts_each_token_at_its_time_in_the_clip(self, voxtral: Voxtral) -> None:
        """Each clip has its own span, so token i is at 0.08·i s. Tokens after the clip's end are padding."""
        inputs = voxtral.prepare([Prompt("?", (noise(2.0), noise(31.0)))])
        first, second = by_clip(np.arange(1125.0), inputs, (2.0, 31.0))
        assert (first[0], len(first), second[0], len(second)) == (0, 375, 375, 750)


class TestFacts:
    def test_files_in_the_mistral_format_are_ignored_in_download_and_fingerprint(
        self, copy: Path, folder: Path
    ) -> None:
        left = {file.name for file in folder.iterdir() if is_ignored(file.name)}
        assert left == {"consolidated.safetensors", "params.json"}
        for name in left:
            (copy / name).unlink()
        assert find_checkpoint(str(copy)).fingerprint() == find_checkpoint(str(folder)).fingerprint()

    def test_attention_flops_are_counted_from_the_width_of_attention_heads_not_the_hidden_size(
        self, folder: Path, voxtral: Voxtral
    ) -> None:
        for cost in (model_facts(folder, 4).cost, count_cost(voxtral)):
            assert cost.attention_flops_coefficient == (2.0 * 4 * 16,) * 4

    def test_flops_counted_for_the_audio_tower_equal_a_count_by_hand(self, voxtral: Voxtral) -> None:
        """One window of 30 s: two convolutions, one layer of width 8 with one head over 1500 frames."""
        convolutions = 3000 * 128 * 3 * 8 + 1500 * 8 * 3 * 8
        layer = 1500 * (4 * 8 * 8 + 2 * 8 * 32) + 2 * 1500 * 1500 * 8
        assert count_cost(voxtral).encoder_flops_per_second == pytest.approx(2 * (convolutions + layer) / 30)
