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
from audiomarathon.models.loading import patched_attribute
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
    def test_a_checkpoint_with_weights_of_wrong_shape_or_another_tokenizer_is_refused(
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


class TestPrompt:
    def test_audio_features_equal_those_of_the_transformers_processor(self, lm: AudioLM) -> None:
        """The family's processor pads (to 300 s; here to 60); ours must give the same frames without the padding."""
        clip = noise(7.3)
        padded = WhisperFeatureExtractor(feature_size=128, chunk_length=60)(
            clip, sampling_rate=16000, padding="max_length", return_attention_mask=True, return_tensors="pt"
        )
        frames = int(padded["attention_mask"].sum())
        ours = lm.prepare([Prompt("?", (clip,))]).tensors["input_features"]
        assert ours.shape[-1] == frames
        assert torch.equal(ours[0], padded["input_features"][0, :, :frames])


class TestReplies:
    def test_the_finish_field_of_a_reply_is_length_at_the_token_limit_and_stop_at_an_end_token(
        self, lm: AudioLM, prompts: list[Prompt]
    ) -> None:
        inputs = lm.prepare(prompts[:1])
        cut = Base().generate(lm, inputs, max_new_tokens=3).replies[0]
        assert (cut.finish, cut.new_tokens) == ("length", 3)
        with patched_attribute(lm, "end_tokens", (cut.token_ids[1],)):
            ended = Base().generate(lm, inputs, max_new_tokens=3).replies[0]
        expected = cut.token_ids.index(cut.token_ids[1]) + 1
        assert (ended.finish, ended.new_tokens) == ("stop", expected)
