"""A user's encoder file in X-ARES' format: Resemblyzer's speaker LSTM (GE2E, Apache-2.0) with its real weights."""

from __future__ import annotations

import librosa
import torch


class GE2EEncoder(torch.nn.Module):
    """A speaker LSTM with three layers: 256 state values of the last layer every 10 ms."""

    sampling_rate, output_dim, hop_size_in_ms = 16_000, 256, 10

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(40, 256, 3, batch_first=True)
        state = torch.load(weights, map_location="cpu", weights_only=True)["model_state"]
        self.lstm.load_state_dict({name[5:]: tensor for name, tensor in state.items() if name.startswith("lstm.")})
        self.register_buffer("mel", torch.from_numpy(librosa.filters.mel(sr=16_000, n_fft=400, n_mels=40)).float())
        self.register_buffer("window", torch.hann_window(400))

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Raise quiet clips to -30 dBFS, as Resemblyzer does, and run the LSTM on the mel power spectrum."""
        level = audio.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-6)
        audio = audio * (10 ** (-30 / 20) / level).clamp_min(1.0)
        spectrum = torch.stft(audio, 400, 160, window=self.window, return_complex=True).abs() ** 2
        states: torch.Tensor = self.lstm((self.mel @ spectrum).transpose(1, 2))[0]
        return states
