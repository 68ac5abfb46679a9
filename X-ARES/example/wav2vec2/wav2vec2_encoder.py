"""The wav2vec2 baseline of X-ARES."""

from audiomarathon.encoders import baselines


class Wav2vec2Encoder(baselines.Wav2vec2Encoder):
    """As released; its faults are named in audiomarathon/encoders/baselines.py."""
