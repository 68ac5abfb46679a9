"""The Qwen2.5-Omni family: loading, prompts, long audio, parity of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import load_tiny, noise
from safetensors.torch import load_file
from tiny_base import changed_copy
from transformers import WhisperFeatureExtractor

from audiomarathon.compression.method import Base
from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.prompt import Prompt


class TestLoading:
    def test_weights_in_the_layout_of_the_hub_are_loaded_unchanged(self, tiny_checkpoint: Path, lm: AudioLM) -> None:
        stored = load_file(tiny_checkpoint / "model.safetensors")
        assert {name.split(".")[0] for name in stored} == {"thinker", "talker", "token2wav"}
        assert torch.equal(lm.lm_head.weight, stored["thinker.lm_head.weight"])
        first = lm.decoder_layers[0].self_attn.q_proj.weight
        assert torch.equal(first, stored["thinker.model.layers.0.self_attn.q_proj.weight"])

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"weights": lambda tensors: tensors.update({"thinker.lm_head.weight": torch.ones(3, 32)})},
             r"mismatched keys.*lm_head"),
            ({"config": lambda facts: facts["thinker_config"].update(audio_token_index=7)}, "do not belong together"),
        ],
        ids=["a tensor of another shape", "the tokenizer of another model"],
    )  # fmt: skip
    def test_a_checkpoint_whose_parts_do_not_fit_is_refused(
        self, tiny_checkpoint: Path, tmp_path: Path, change: Any, said: str
    ) -> None:
        with pytest.raises(ModelError, match=said):
            load_tiny(changed_copy(tiny_checkpoint, tmp_path, **change))

    def test_a_checkpoint_without_a_chat_template_is_refused(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        folder = changed_copy(tiny_checkpoint, tmp_path)
        (folder / "chat_template.json").unlink()
        with pytest.raises(ModelError, match="chat template"):
            load_tiny(folder)

    def test_a_folder_without_a_checkpoint_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"no config\.json"):
            find_checkpoint(str(tmp_path))
        with pytest.raises(ModelError, match="no such folder"):
            find_checkpoint(str(tmp_path / "nowhere"))

    def test_the_fingerprint_changes_with_one_weight(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        def fingerprint(**change: Any) -> str:
            return find_checkpoint(
                str(changed_copy(tiny_checkpoint, tmp_path / str(len(change)), **change))
            ).fingerprint()

        unchanged = find_checkpoint(str(tiny_checkpoint)).fingerprint()
        assert fingerprint() == unchanged
        assert fingerprint(weights=lambda tensors: tensors["thinker.lm_head.weight"][0, 0].add_(1)) != unchanged


class TestPrompt:
    def test_the_prompt_is_the_chat_template_of_the_checkpoint_with_audio_first(self, lm: AudioLM) -> None:
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
        "seconds", [0.5, 29.99, 90.01, *(pytest.param(length, marks=pytest.mark.long) for length in (300, 600))]
    )
    def test_long_audio_is_not_cut_and_gives_25_tokens_a_second(self, lm: AudioLM, seconds: float) -> None:
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
