"""X-ARES' wav2vec2 baseline, as an encoder file."""

from audiomarathon.wings.encoders import baselines


class Wav2vec2Encoder(baselines.Wav2vec2Encoder):
    """The encoder as X-ARES released it; audiomarathon/wings/encoders/baselines.py names its faults."""
