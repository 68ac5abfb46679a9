"""A log-mel spectrogram: 64 bands of 25 ms windows every 10 ms."""

from __future__ import annotations

import torch
from librosa.filters import mel

from audiomarathon.encoders import EncoderSpec


class NewNameEncoder(torch.nn.Module):
    """A log-mel spectrogram as an encoder. X-ARES requires that the name of the class ends in Encoder."""

    sampling_rate, output_dim, hop_size_in_ms = 16_000, 64, 10
    mel: torch.Tensor
    window: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mel", torch.from_numpy(mel(sr=16_000, n_fft=400, n_mels=64)))
        self.register_buffer("window", torch.hann_window(400))

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Turn float32 audio `[B, T]` into features `[B, T', 64]`.

        Edges are padded with zeros, so that a clip gets the same features alone and in a batch.
        """
        spectrum = torch.stft(audio, 400, 160, window=self.window, pad_mode="constant", return_complex=True)
        return (self.mel @ spectrum.abs().square() + 1e-6).log().transpose(1, 2)


SPEC = EncoderSpec("newname", NewNameEncoder)
