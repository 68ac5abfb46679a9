"""Aero-1's own behaviour: tensor names, config, a tied head, and repository code that is never run."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_aero
import torch
from conftest import noise

from audiomarathon.costs.config_facts import model_facts
from audiomarathon.errors import ModelError
from audiomarathon.models.aero import Aero
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.prompt import Prompt


@pytest.fixture(scope="module")
def folder(family_checkpoint: Callable[[str], Path]) -> Path:
    return family_checkpoint("aero-1")


def load(folder: Path) -> Aero:
    return Aero.load(folder, device="cpu", dtype="float32", attn_implementation="sdpa")


class TestLoading:
    @pytest.mark.parametrize("tied", [True, False])
    def test_a_checkpoint_in_hub_layout_gives_the_same_logits_as_in_native_transformers_layout(
        self, tmp_path: Path, tied: bool
    ) -> None:
        folder = tiny_aero.checkpoint(tmp_path / "aero", tied=tied)
        lm, native = load(folder), tiny_aero.native(folder)
        theirs = native.state_dict()
        assert lm.model.state_dict().keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in lm.model.state_dict().items())
        assert (lm.lm_head.weight.data_ptr() == lm.decoder.embed_tokens.weight.data_ptr()) is tied
        tensors = lm.prepare([Prompt("Who?", (noise(1.0), noise(2.0)))]).tensors
        with torch.no_grad():
            assert torch.equal(lm.model(**tensors).logits, native(**tensors).logits)

    def test_python_code_referenced_by_a_checkpoint_is_not_executed(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[object] = []
        monkeypatch.setattr(builtins, "input", lambda *words: asked.append(words) or "n")
        lm = load(folder)
        facts = model_facts(folder, 4, Aero)
        assert asked == []
        assert facts.weight_bytes == 4 * sum(parameter.numel() for parameter in lm.model.parameters())
        assert facts.kv_bytes == 4 * 2 * 2 * 8 * 4  # layers; keys and values; 2 heads of 8 numbers of 4 bytes

    def test_a_wrong_hub_name_of_the_checkpoint_is_refused_before_any_download(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_a, **_k: pytest.fail("asked the hub"))
        with pytest.raises(ModelError, match="lmms-lab/Aero-1-Audio"):
            find_checkpoint("Aero-1/Aero-1-7B")


class TestPrompt:
    @pytest.mark.parametrize("in_a_file", [True, False])
    def test_the_prompt_has_one_line_of_audio_placeholders_for_each_30_s_window(
        self, tmp_path: Path, in_a_file: bool
    ) -> None:
        """Made with the checkpoint's chat template or, if it has none, with the built-in template."""
        folder = tiny_aero.checkpoint(tmp_path / "aero")
        if not in_a_file:
            (folder / "chat_template.json").unlink()
        lm = load(folder)
        inputs = lm.prepare([Prompt("Who?", (noise(31.0), noise(2.0)))])
        assert lm.tokenizer.decode(inputs.tensors["input_ids"][0]) == (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            + "<|AUDIO|>" * 750 + "\n" + "<|AUDIO|>" * 25 + "\n" + "<|AUDIO|>" * 50 + "\n"
            + "Who?<|im_end|>\n<|im_start|>assistant\n"
        )  # fmt: skip
