"""Control encoders, which a useful encoder must beat: spectrogram, random weights, length and loudness, noise."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from librosa.filters import mel


class LogMelEncoder(torch.nn.Module):
    """A log-mel spectrogram of 64 bins, with windows of 25 ms every 10 ms."""

    sampling_rate, output_dim, hop_size_in_ms = 16_000, 64, 10
    mel: torch.Tensor
    window: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mel", torch.from_numpy(mel(sr=16_000, n_fft=400, n_mels=64)))
        self.register_buffer("window", torch.hann_window(400))

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return features, shape (clips, frames, 64), of audio, shape (clips, samples).

        Edges are zero-padded, so that a clip's features are the same alone and in a batch.
        """
        spectrum = torch.stft(audio, 400, 160, window=self.window, pad_mode="constant", return_complex=True)
        return (self.mel @ spectrum.abs().square() + 1e-6).log().transpose(1, 2)


class RandomEncoder(torch.nn.Module):
    """Untrained convolutions over the waveform, with seeded random weights."""

    sampling_rate, output_dim, hop_size_in_ms = 16_000, 256, 20

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = torch.nn.ModuleList()
        for inner, outer, kernel, stride in ((1, 64, 20, 10), (64, 128, 8, 8), (128, 256, 8, 4)):
            layer = torch.nn.Conv1d(inner, outer, kernel, stride, bias=False)
            weight = torch.randn(layer.weight.shape, generator=generator) / math.sqrt(inner * kernel)
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.layers.append(layer)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return features, shape (clips, frames, 256), of audio, shape (clips, samples)."""
        hidden = torch.nn.functional.pad(audio, (0, max(330, 650 - audio.shape[-1])))[
            :, None
        ]  # one frame covers 650 samples
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return hidden.transpose(1, 2)


class LengthLoudnessEncoder(torch.nn.Module):
    """An encoder with one frame per clip, which encodes only the clip's length and loudness.

    Each of the two numbers is encoded by 32 Gaussian bumps along a scale. Two plain numbers would be lost, because
    probes scale each embedding to mean 0 and variance 1.
    """

    sampling_rate, output_dim, hop_size_in_ms = 16_000, 64, 1000

    seconds: torch.Tensor
    decibels: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seconds", torch.linspace(math.log(0.05), math.log(600), 32))
        self.register_buffer("decibels", torch.linspace(-80, 0, 32))

    def forward(self, audio: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
        """Return one frame per clip, shape (clips, 1, 64), of audio, shape (clips, samples).

        With `lengths` (each clip's number of samples without padding), also return each clip's number of frames, 1.
        """
        samples = torch.tensor([audio.shape[-1]] * len(audio), device=audio.device) if lengths is None else lengths
        power = audio.square().sum(-1) / samples  # zeros after a clip add nothing
        scales = ((samples / 16_000).log(), self.seconds), (10 * power.clamp_min(1e-8).log10(), self.decibels)
        bumps = [torch.exp(-(((value[:, None] - places) / (places[1] - places[0])) ** 2)) for value, places in scales]
        features = torch.cat(bumps, dim=1)[:, None]
        return features if lengths is None else (features, torch.ones_like(samples))


class NoiseEncoder(torch.nn.Module):
    """An encoder whose features are noise, seeded by a hash of the clip's samples.

    A rerun gives the same features; a probe can learn nothing from them.
    """

    sampling_rate, output_dim, hop_size_in_ms = 16_000, 64, 40

    def forward(self, audio: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
        """Return noise as features, shape (clips, frames, 64), seeded by the samples of audio, shape (clips, samples).

        With `lengths` (each clip's number of samples without padding), also return each clip's number of frames.
        """
        held = [audio.shape[-1]] * len(audio) if lengths is None else lengths.tolist()
        frames = [max(1, length // 640) for length in held]
        features = torch.zeros(len(audio), max(frames), 64)
        for row, samples, length, count in zip(features, audio.cpu(), held, frames, strict=True):
            seed = int.from_bytes(hashlib.sha256(samples[:length].contiguous().numpy().data).digest()[:7], "little")
            row[:count] = torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))
        features = features.to(audio.device)
        return features if lengths is None else (features, torch.tensor(frames))
