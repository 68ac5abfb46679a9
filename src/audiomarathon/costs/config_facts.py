"""Estimate a checkpoint's costs from its config and the headers of its weight files. No weights are loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from audiomarathon import models
from audiomarathon.costs.cost import Cost
from audiomarathon.errors import ModelError, WeightsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.checkpoint import header_of, is_ignored
from audiomarathon.models.layers import attention_windows, source_of
from audiomarathon.models.loading import loading
from audiomarathon.models.registry import all_models
from audiomarathon.models.tower_states import tower_depth

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FRAMES_PER_SECOND = 50  # frames of Whisper's encoder, the audio tower of most models
_ADAPTER = "speech-lora/*.safetensors"  # Phi-4's speech adapter, which is loaded with the model
_ADAPTER_RANK = 320
# Tensors that are not loaded: those of speech generators, and of Gemma 3n's vision tower.
_LEFT_ON_DISK = ("talker.", "token2wav.", "code2wav.", "model.vision_tower.timm_model.")


@dataclass(frozen=True)
class ModelFacts:
    """Bytes and FLOPs that a model needs, estimated from its checkpoint's config and the headers of its weight files.

    Sizes in bytes assume the run's precision.

    Attributes
    ----------
    config
        The decoder's config.
    cost
        Factors from which FLOPs are computed.
    weight_bytes, logits_bytes
        Bytes of all weights, and of one position's logits.
    kv_bytes, activation_bytes
        Bytes per prompt token: of the KV cache, and of the activations.
    state_bytes, tower_bytes
        Bytes per prompt token: of the hidden states, which prefill in chunks keeps for the whole prompt; and of the
        audio tower's first convolution.
    size
        Bytes of one number.
    """

    config: Any

    cost: Cost
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    logits_bytes: float
    state_bytes: float = 0.0
    tower_bytes: float = 0.0
    size: int = 2

    def memory(self, tokens: int, batch: int = 1, chunk: int = 0) -> dict[str, float]:
        """Return the bytes that a batch of prompts with `tokens` tokens each needs, as {part, such as `weights`:
        bytes}.

        With `chunk`, each layer processes this many tokens at a time: then only the hidden states and a chunk's mask
        grow with the prompt's length.
        """
        activations = self.activation_bytes * tokens
        if chunk and self.state_bytes:
            of_chunk = self.state_bytes * tokens + (self.activation_bytes + self.size * tokens) * chunk
            activations = min(activations, max(of_chunk, self.tower_bytes * tokens))
        return {
            "weights": self.weight_bytes,
            "KV cache": batch * self.kv_bytes * tokens,
            "activations": batch * activations,
            "LM head": batch * self.logits_bytes,
        }


def published_config(source: str) -> Path | None:
    """Return this package's folder with a copy of a hub checkpoint's config, so that estimates need no download.

    None if the package has no config for this checkpoint.
    """
    folder = Path(models.__file__).parent / "configs" / source.partition("@")[0].partition("/")[2]
    return folder if source in {spec.checkpoint for spec in all_models()} and folder.is_dir() else None


def model_facts(path: Path, size: int, family: type[AudioLM] = AudioLM) -> ModelFacts:
    """Return the bytes and FLOPs that a checkpoint needs, estimated from its config and its weight files' headers.

    Parameters
    ----------
    size
        Bytes of one number in the run's precision.
    family
        The model family whose `read_config` is used; the base class reads the config with transformers.

    Raises
    ------
    ModelError
        The files cannot be read, or the config lacks the usual fields of a decoder.
    """
    with loading(path, "a checkpoint with known costs"):
        try:
            return _facts(path, size, family.read_config(path), family.encoder_window_seconds)
        except AttributeError as error:
            raise ModelError(f"{path}: the config lacks a field of a decoder ({error})") from error


def _cross_facts(path: Path, size: int, config: Any, encoder_window: float) -> ModelFacts:
    """Return the estimated costs of an encoder-decoder (Whisper); the encoder's states count as tokens, see
    :class:`Cost`.
    """
    width, layers, tokens = config.d_model, config.decoder_layers, 4  # forced tokens
    state = 2.0 * 2 * width * width + 4.0 * tokens * width
    rest = 2.0 * tokens * (6 * width * width + 2 * width * config.decoder_ffn_dim) + 2.0 * tokens * tokens * width
    head = float(width * config.vocab_size)
    cost = Cost(
        (state,) * layers, (0.0,) * layers, 0.0, _tower(SimpleNamespace(audio_config=config)), encoder_window,
        window_tokens=config.max_source_positions + tokens,
        window_states=config.max_source_positions, window_flops=layers * (rest - tokens * state) + 2.0 * head,
        **_tower_layers(SimpleNamespace(audio_config=config)),
    )  # fmt: skip
    return ModelFacts(
        config=config,
        cost=cost,
        weight_bytes=float((_parameters(path) or _configured_parameters(config)) * size),
        kv_bytes=2.0 * width * layers * size,
        activation_bytes=float(6 * width + 3 * config.encoder_ffn_dim) * size,
        logits_bytes=4.0 * config.vocab_size,
    )


def _facts(path: Path, size: int, whole: Any, encoder_window: float) -> ModelFacts:
    config = whole.get_text_config(decoder=True)
    if whole.is_encoder_decoder:
        return _cross_facts(path, size, whole, encoder_window)
    layers, hidden, heads = config.num_hidden_layers, config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or hidden // heads
    keys = 2 * config.num_key_value_heads * head
    wide = config.intermediate_size
    if getattr(config, "num_experts", 0):
        wide = config.moe_intermediate_size * config.num_experts_per_tok
    wides = wide if isinstance(wide, list) else [wide] * layers
    extra = getattr(config, "laurel_rank", 0) + getattr(config, "hidden_size_per_layer_input", 0)  # Gemma 3n
    router = hidden * getattr(config, "num_experts", 0)
    rest = 2 * hidden * (heads * head + extra) + router
    adapter = _parameters_in(path.glob(_ADAPTER)) or _configured_adapter(whole, config, heads * head + keys)
    rest += adapter // layers  # the adapter is not merged into the weights, so it costs FLOPs for every token
    cached = [source_of(config, layer) == layer for layer in range(layers)]
    per_layer = tuple(2.0 * (rest + kv * hidden * keys + 3 * hidden * w) for kv, w in zip(cached, wides, strict=True))
    cost = Cost(
        per_layer,
        (2.0 * heads * head,) * layers,
        2.0 * hidden * config.vocab_size,
        _tower(whole),
        encoder_window,
        attention_windows(config),
        **_tower_layers(whole),
    )
    # Gemma 3n carries several versions of the hidden states through all layers, and an input for each layer.
    inputs = getattr(config, "hidden_size_per_layer_input", 0) * layers
    states = getattr(config, "altup_num_inputs", 0) * hidden + inputs
    return ModelFacts(
        config=config,
        cost=cost,
        weight_bytes=float((_parameters(path) or _configured_parameters(whole) + adapter) * size),
        kv_bytes=float(keys * sum(cached) * size),  # an upper bound: a sliding-window layer's cache stops growing
        activation_bytes=float(max(6 * hidden + 3 * max(wides) + 3 * states, _first_convolution(whole)) * size),
        logits_bytes=4.0 * config.vocab_size,
        state_bytes=float((3 * hidden + 3 * states + 2 * keys) * size),
        tower_bytes=float(_first_convolution(whole) * size),
        size=size,
    )


def _tower(config: Any) -> float:
    """Return the audio tower's FLOPs per second of audio; 0 if the config describes no known kind of tower."""
    audio = _audio_config(config)
    if hasattr(audio, "nemo_conv_channels"):
        return 2.0 * _conformer(audio, config.hidden_size)
    if hasattr(audio, "sscp_conv_channel_size"):
        return 2.0 * _universal_speech(audio)

    def first(*names: str) -> int:
        return next((int(getattr(audio, name)) for name in names if getattr(audio, name, None)), 0)

    width, depth = first("d_model", "hidden_size"), first("encoder_layers", "num_hidden_layers")
    wide = first("encoder_ffn_dim", "intermediate_size")
    blocks = depth * (4 * width * width + 2 * width * wide)
    channels = first("downsample_hidden_size")
    if not channels:
        return 2.0 * FRAMES_PER_SECOND * blocks
    places = 64 * 50 + channels * (32 * 25 + 16 * 13)  # Qwen3-Omni: three convolutions over bands and frames
    ends = 16 * channels * width + width * width + width * audio.output_dim
    return float(2 * (9 * channels * places + 13 * (blocks + ends)))


def _tower_layers(config: Any) -> dict[str, Any]:
    """Return the fields `tower_layers` and `tower_linear` of :class:`Cost` for a Whisper-like audio tower; {} for
    others.

    The fields are the number of layers, and a layer's FLOPs per second of audio, which all count as those of matrices.
    """
    audio = _audio_config(config)
    depth = (
        0 if hasattr(audio, "nemo_conv_channels") or hasattr(audio, "sscp_conv_channel_size") else tower_depth(config)
    )
    return {"tower_layers": depth, "tower_linear": _tower(config) / depth} if depth else {}


def _audio_config(config: Any) -> Any:
    return getattr(getattr(config, "thinker_config", config), "audio_config", None)


def _first_convolution(config: Any) -> int:
    """Return how many activations per audio token the tower's first convolution over mel bands and frames makes.

    Only Phi-4-multimodal and Qwen3-Omni have such a convolution; for other towers, which convolve over frames only,
    return 0.
    """
    audio = _audio_config(config)
    phi = getattr(audio, "nemo_conv_channels", 0) * 4 * 40  # steps, bands
    qwen = getattr(audio, "downsample_hidden_size", 0) * 50 * 64 // 13
    return 2 * int(phi + qwen)


def _conformer(audio: Any, hidden: int) -> float:
    """Return the multiplications per second of audio in Phi-4-multimodal's audio tower, without attention scores."""
    width, wide, channels, bands = audio.hidden_size, audio.intermediate_size, audio.nemo_conv_channels, 40
    steps = FRAMES_PER_SECOND / 4
    places = FRAMES_PER_SECOND * bands * (1 / 4 + 1 / 16)  # outputs of the two separable convolutions
    subsampling = 9 * channels * FRAMES_PER_SECOND * bands + (channels + 9) * channels * places
    block = 8 * width * width + 6 * width * wide  # attention and convolutions; two gated feed-forward networks
    ends = channels * audio.nemo_final_size * width + width * hidden + hidden * hidden
    return float(subsampling + steps * (audio.num_blocks * block + ends))


def _universal_speech(audio: Any) -> float:
    """Return the multiplications per second of audio in Gemma 3n's audio tower, without attention scores."""
    width, bands, (first, second) = audio.hidden_size, audio.input_feat_size, audio.sscp_conv_channel_size
    subsampling = 9 * first * 50 * bands // 2 + 9 * first * second * 25 * bands // 4
    block = 24 * width * width  # two feed-forward networks, attention with relative positions, a gated convolution
    return float(subsampling + 25 * (second * bands // 4 * width + audio.conf_num_hidden_layers * block))


def _parameters(path: Path) -> int:
    """Return the number of parameters to load, read from the headers of the safetensors files; 0 without such files."""
    whole = _parameters_in(file for file in path.glob("*.safetensors") if not is_ignored(file.name))
    return whole and whole + _parameters_in(path.glob(_ADAPTER))


def _parameters_in(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        shapes = [
            tensor.get("shape")
            for name, tensor in header_of(file).items()
            if name != "__metadata__" and not name.startswith(_LEFT_ON_DISK)
        ]
        if not all(isinstance(shape, list) and all(type(size) is int for size in shape) for shape in shapes):
            raise WeightsError(f"{file}: not a safetensors file: a tensor has no shape")
        total += sum(map(math.prod, shapes))
    return total


def _configured_parameters(config: Any) -> int:
    """Return the number of parameters that a config describes, by building the model on the meta device (without
    memory).
    """
    import torch
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_MULTIMODAL_LM_MAPPING,
        AutoModelForCausalLM,
        AutoModelForMultimodalLM,
        AutoModelForSeq2SeqLM,
        AutoModelForSpeechSeq2Seq,
    )

    config = getattr(config, "thinker_config", config)
    kind = AutoModelForMultimodalLM if type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING else AutoModelForSeq2SeqLM
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and _audio_config(config) is None:
        kind = AutoModelForCausalLM
    if config.is_encoder_decoder:
        kind = AutoModelForSpeechSeq2Seq
    with torch.device("meta"):
        model = kind.from_config(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    if config.model_type in ("qwen2_audio", "aero") and config.get_text_config().tie_word_embeddings:
        total -= model.get_output_embeddings().weight.numel()  # the class does not tie the head; our loading does
    return int(total)


def _configured_adapter(whole: Any, config: Any, attended: int) -> int:
    """Return the number of parameters of Phi-4's speech adapter, from the config; 0 for other models.

    The adapter adds two matrices to each matrix of a layer. `attended` is the output width of queries, keys and values
    together.
    """
    if not hasattr(_audio_config(whole), "nemo_conv_channels"):
        return 0
    hidden, wide = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * (getattr(config, "head_dim", None) or hidden // config.num_attention_heads)
    sides = (hidden + attended) + (heads + hidden) + (hidden + 2 * wide) + (wide + hidden)
    return int(_ADAPTER_RANK * sides * config.num_hidden_layers)
