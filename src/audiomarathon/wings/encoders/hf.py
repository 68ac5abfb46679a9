"""Load audio encoders from transformers so that their features are correct.

Features come from the last layer, with the true hop (time between frames). Each clip is normalised alone, and frames of
padding are removed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import AutoConfig, AutoFeatureExtractor, AutoModel

from audiomarathon.errors import EncoderError
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.models.loading import check_finite, check_loading, loading

_KINDS = ("wav2vec2", "hubert", "wavlm", "data2vec-audio", "whisper", "audio-spectrogram-transformer")


def hugging_face_encoder(model: str) -> torch.nn.Module:
    """Load wav2vec2, HuBERT, WavLM, data2vec-audio, Whisper's encoder or AST from a folder or a hub id.

    Raises
    ------
    ModelError, EncoderError
        When the files cannot be found, downloaded or loaded, or hold another kind of model.
    """
    checkpoint, extractor, loaded = from_checkpoint(model)
    kind = WaveformEncoder if hasattr(loaded.config, "conv_stride") else SpectrogramEncoder
    return kind(checkpoint, extractor, loaded)


def from_checkpoint(model: str) -> tuple[Checkpoint, Any, Any]:
    """Find a checkpoint by hub id or folder; return (checkpoint, feature extractor, model in float32 and eval mode)."""
    checkpoint = find_checkpoint(model, named="name a folder that holds the checkpoint: hf:FOLDER")
    with loading(checkpoint.path, "an audio encoder"):
        kind = AutoConfig.from_pretrained(checkpoint.path).model_type
        if kind not in _KINDS:
            allowed = ", ".join(_KINDS)
            raise EncoderError(f"{model}: config.json says model type {kind!r}; allowed: {allowed}")
        extractor = AutoFeatureExtractor.from_pretrained(checkpoint.path)
        loaded, info = AutoModel.from_pretrained(checkpoint.path, dtype=torch.float32, output_loading_info=True)
    # The checkpoint may hold unused heads. The mask embedding is used in training only, and often not stored.
    missing = [key for key in info["missing_keys"] if not key.endswith("masked_spec_embed")]
    check_loading(checkpoint.path, {"missing_keys": missing, "mismatched_keys": info["mismatched_keys"]})
    check_finite(checkpoint.path, loaded)
    return checkpoint, extractor, loaded


def normalised(audio: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Scale samples to mean 0 and variance 1, over `dim` or over all dimensions, as Wav2Vec2FeatureExtractor does."""
    deviation = (audio.var(dim, correction=0, keepdim=True) + 1e-7).sqrt()
    return (audio - audio.mean(dim, keepdim=True)) / deviation


class WaveformEncoder(torch.nn.Module):
    """Encoders that read the waveform (wav2vec2, HuBERT, WavLM, data2vec-audio).

    Padding would change their features, so `forward` takes no lengths, and clips of a batch must be equally long.
    """

    def __init__(self, checkpoint: Checkpoint, extractor: Any, model: Any) -> None:
        super().__init__()
        self.model, self.checkpoint = model, checkpoint.fingerprint()
        self.normalise, self.sampling_rate = bool(extractor.do_normalize), int(extractor.sampling_rate)
        self.output_dim = int(model.config.hidden_size)
        self.hop_size_in_ms = math.prod(model.config.conv_stride) / self.sampling_rate * 1000
        self.least = 1  # number of samples that one frame needs
        for kernel, stride in list(zip(model.config.conv_kernel, model.config.conv_stride, strict=True))[::-1]:
            self.least = (self.least - 1) * stride + kernel

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer, shape (clips, frames, values), for audio, shape (clips, samples).

        Each clip is normalised alone.
        """
        audio = normalised(audio, -1) if self.normalise else audio
        audio = torch.nn.functional.pad(audio, (0, max(0, self.least - audio.shape[-1])))
        features: torch.Tensor = self.model(audio).last_hidden_state
        return features


class SpectrogramEncoder(torch.nn.Module):
    """Encoders that read a spectrogram (Whisper's encoder, AST).

    Spectrograms are padded to a fixed length, and only the frames of the clip are kept.

    Whisper's frames are kept if they begin within the clip, AST's patches if they lie within it; at least one is kept.
    """

    def __init__(self, checkpoint: Checkpoint, extractor: Any, model: Any) -> None:
        super().__init__()
        config, rate = model.config, int(extractor.sampling_rate)
        self.extractor, self.sampling_rate, self.checkpoint = extractor, rate, checkpoint.fingerprint()
        self.output_dim, self.bands = int(config.hidden_size), 0
        self.window, step = rate // 40, rate // 100  # of the spectrogram: 25 and 10 ms
        if config.model_type == "whisper":
            self.model = model.get_encoder()
            self.span, self.hop = 1, 2 * step  # in samples; Whisper's second convolution halves the rate
            self.max_seconds = config.max_source_positions * self.hop / rate
        else:
            self.model = model
            self.span, self.hop = (config.patch_size - 1) * step + self.window, config.time_stride * step
            self.max_seconds = config.max_length * step / rate
            self.bands = (config.num_mel_bins - config.patch_size) // config.frequency_stride + 1
        self.hop_size_in_ms = self.hop / rate * 1000

    def forward(self, audio: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
        """Return features, shape (clips, frames, values), for audio, shape (clips, samples).

        With `lengths` (each clip's number of samples without padding), also return each clip's number of frames. AST's
        patches are averaged over frequencies.
        """
        held = [audio.shape[-1]] * len(audio) if lengths is None else lengths.tolist()
        if max(held) > self.max_seconds * self.sampling_rate:
            raise ValueError(f"a clip is longer than max_seconds={self.max_seconds:g}")
        padded = torch.nn.functional.pad(audio, (0, self.window)).cpu().numpy()
        rows = [row[: max(length, self.window)] for row, length in zip(padded, held, strict=True)]
        inputs = self.extractor(rows, sampling_rate=self.sampling_rate, return_tensors="pt")
        features = self.model(**inputs.to(audio.device)).last_hidden_state
        if self.bands:  # after two class tokens: each band's patches in time
            features = features[:, 2:].unflatten(1, (self.bands, -1)).mean(1)
        frames = [min(max(1, (length - self.span) // self.hop + 1), features.shape[1]) for length in held]
        features = features[:, : max(frames)]
        return features if lengths is None else (features, torch.tensor(frames))
