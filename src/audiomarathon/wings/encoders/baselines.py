"""Load X-ARES' four baseline encoders as released (0.1.3), with the faults that affect the scores it published.

Audio is cut into pieces of 10 s; a last piece under 1 s is padded with zeros to 1 s. Each class
documents further faults; `hf:ID` loads the same model without any of them. The argument `model` is a hub id or a local
copy.
"""

from __future__ import annotations

import torch

from audiomarathon.errors import EncoderError
from audiomarathon.wings.encoders.hf import from_checkpoint, normalised

_RATE = 16_000


class _Pieces(torch.nn.Module):
    sampling_rate = _RATE

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """Return the features of audio, shape (clips, frames, values), computed for each piece of 10 s alone.

        `audio` has the shape (clips, samples), or (samples,) for one clip.
        """
        audio = audio[None] if audio.ndim == 1 else audio
        if audio.shape[-1] <= 10 * _RATE:
            return self.piece(audio)
        pad = torch.nn.functional.pad
        pieces = [pad(piece, (0, max(0, _RATE - piece.shape[-1]))) for piece in torch.split(audio, 10 * _RATE, dim=-1)]
        return torch.cat([self.piece(piece) for piece in pieces], dim=1)

    def piece(self, audio: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class DashengEncoder(_Pieces):
    """`dasheng_base` of the PyPI package dasheng; `model` is a file with its weights."""

    output_dim, hop_size_in_ms = 768, 40

    def __init__(self, model: str | None = None) -> None:
        super().__init__()
        try:
            from dasheng import dasheng_base
        except (ImportError, OSError) as error:  # a torchaudio of another torch raises OSError
            raise EncoderError(f"dasheng cannot be imported ({error}): pip install 'audiomarathon[encoders]'") from None
        self.model = dasheng_base(model).eval()

    def piece(self, audio: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.model(audio)
        return features


class Wav2vec2Encoder(_Pieces):
    """wav2vec2 trained on 100,000 hours. Fault: audio is normalised over the whole padded batch, not clip by clip."""

    hop_size_in_ms = 20

    def __init__(self, model: str = "facebook/wav2vec2-large-100k-voxpopuli") -> None:
        super().__init__()
        checkpoint, extractor, self.model = from_checkpoint(model)
        self.checkpoint = checkpoint.fingerprint()
        self.output_dim = int(self.model.config.hidden_size)
        self.normalise = bool(extractor.do_normalize)

    def piece(self, audio: torch.Tensor) -> torch.Tensor:
        if self.normalise:
            audio = normalised(audio)
        features: torch.Tensor = self.model(audio).last_hidden_state
        return features


class Data2VecEncoder(Wav2vec2Encoder):
    """data2vec-audio. Fault: audio is normalised over the whole padded batch, as in :class:`Wav2vec2Encoder`."""

    def __init__(self, model: str = "facebook/data2vec-audio-base") -> None:
        super().__init__(model)


class WhisperEncoder(_Pieces):
    """Whisper's encoder.

    Faults: it keeps the frames of the padding to 30 s, and declares half of its true hop (time between frames).
    """

    def __init__(self, model: str = "openai/whisper-base") -> None:
        super().__init__()
        checkpoint, self.extractor, loaded = from_checkpoint(model)
        self.checkpoint = checkpoint.fingerprint()
        self.model = loaded.get_encoder()
        self.output_dim = int(loaded.config.d_model)
        self.hop_size_in_ms = self.extractor.hop_length / self.extractor.sampling_rate * 1000

    def piece(self, audio: torch.Tensor) -> torch.Tensor:
        inputs = self.extractor(audio.cpu().numpy(), sampling_rate=_RATE, return_tensors="pt")
        features: torch.Tensor = self.model(inputs["input_features"].to(audio.device)).last_hidden_state
        return features
