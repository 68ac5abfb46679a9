"""The Qwen2.5-Omni family: loading, prompts, long audio, parity of batches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import load_tiny, noise
from safetensors.torch import load_file, save_file
from transformers import WhisperFeatureExtractor

from audiomarathon.compression.method import Base
from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.prompt import Prompt


@pytest.fixture
def copy_of(tmp_path: Path, tiny_checkpoint: Path):
    return lambda: Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


class TestLoading:
    def test_weights_in_the_layout_of_the_hub_are_loaded_unchanged(self, tiny_checkpoint: Path, lm: AudioLM) -> None:
        stored = load_file(tiny_checkpoint / "model.safetensors")
        assert {name.split(".")[0] for name in stored} == {"thinker", "talker", "token2wav"}
        assert torch.equal(lm.lm_head.weight, stored["thinker.lm_head.weight"])
        first = lm.decoder_layers[0].self_attn.q_proj.weight
        assert torch.equal(first, stored["thinker.model.layers.0.self_attn.q_proj.weight"])

    def test_a_checkpoint_with_a_tensor_of_the_wrong_shape_is_refused(self, copy_of) -> None:
        folder = copy_of()
        weights = load_file(folder / "model.safetensors")
        weights["thinker.lm_head.weight"] = torch.ones(3, 32)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=r"mismatched keys.*lm_head"):
            load_tiny(folder)

    def test_the_tokenizer_of_another_model_is_refused(self, copy_of) -> None:
        folder = copy_of()
        config = json.loads((folder / "config.json").read_text())
        config["thinker_config"]["audio_token_index"] = 7
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match="do not belong together"):
            load_tiny(folder)

    def test_a_checkpoint_without_a_chat_template_is_refused(self, copy_of) -> None:
        folder = copy_of()
        (folder / "chat_template.json").unlink()
        with pytest.raises(ModelError, match="chat template"):
            load_tiny(folder)

    def test_a_folder_without_a_checkpoint_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"no config\.json"):
            find_checkpoint(str(tmp_path))
        with pytest.raises(ModelError, match="no such folder"):
            find_checkpoint(str(tmp_path / "nowhere"))

    def test_the_fingerprint_changes_with_one_weight(self, copy_of, tiny_checkpoint: Path) -> None:
        folder = copy_of()
        assert find_checkpoint(str(folder)).fingerprint() == find_checkpoint(str(tiny_checkpoint)).fingerprint()
        weights = load_file(folder / "model.safetensors")
        weights["thinker.lm_head.weight"][0, 0] += 1
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        assert find_checkpoint(str(folder)).fingerprint() != find_checkpoint(str(tiny_checkpoint)).fingerprint()


class TestPrompt:
    def test_has_the_chat_template_of_the_checkpoint_with_audio_first(self, lm: AudioLM) -> None:
        inputs = lm.prepare([Prompt("Who?", (noise(1.0), noise(2.0)))])
        text = lm.tokenizer.decode(inputs.tensors["input_ids"][0])
        assert text == (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            + "<|audio_bos|>" + "<|AUDIO|>" * 25 + "<|audio_eos|>"
            + "<|audio_bos|>" + "<|AUDIO|>" * 50 + "<|audio_eos|>"
            + "Who?<|im_end|>\n<|im_start|>assistant\n"
        )  # fmt: skip
        assert torch.equal(inputs.audio_mask, inputs.tensors["input_ids"] == lm.audio_token)

    @pytest.mark.parametrize(
        "seconds", [0.5, 1, 29.99, 30, 90.01, *(pytest.param(length, marks=pytest.mark.long) for length in (300, 600))]
    )
    def test_audio_is_not_cut_and_gives_25_tokens_a_second(self, lm: AudioLM, seconds: float) -> None:
        inputs = lm.prepare([Prompt("?", (noise(seconds),))])
        assert inputs.audio_tokens[0] == pytest.approx(25 * seconds, abs=1)
        assert inputs.tensors["feature_attention_mask"].sum() == -(-round(seconds * 16000) // 160)

    def test_features_equal_those_of_the_processor(self, lm: AudioLM) -> None:
        """The family's processor pads (to 300 s; here to 60); ours must give the same frames without the padding."""
        clip = noise(7.3)
        padded = WhisperFeatureExtractor(feature_size=128, chunk_length=60)(
            clip, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="pt"
        )
        frames = int(padded["attention_mask"].sum())
        ours = lm.prepare([Prompt("?", (clip,))]).tensors["input_features"]
        assert ours.shape[-1] == frames
        assert torch.equal(ours[0], padded["input_features"][0, :, :frames])

    def test_a_clip_shorter_than_one_audio_token_is_refused(self, lm: AudioLM) -> None:
        with pytest.raises(ModelError, match="too short"):
            lm.prepare([Prompt("?", (noise(0.01),))])


class TestReplies:
    def test_the_finish_field_tells_token_limit_from_end_token(self, lm: AudioLM, prompts: list[Prompt]) -> None:
        inputs = lm.prepare(prompts[:1])
        cut = Base().generate(lm, inputs, max_new_tokens=3).replies[0]
        assert (cut.finish, cut.new_tokens) == ("length", 3)
        ends, lm.end_tokens = lm.end_tokens, (cut.token_ids[1],)
        try:
            ended = Base().generate(lm, inputs, max_new_tokens=3).replies[0]
        finally:
            lm.end_tokens = ends
        expected = cut.token_ids.index(cut.token_ids[1]) + 1
        assert (ended.finish, ended.new_tokens) == ("stop", expected)
