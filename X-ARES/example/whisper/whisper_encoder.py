"""X-ARES' whisper baseline, as an encoder file."""

from audiomarathon.encoders import baselines


class WhisperEncoder(baselines.WhisperEncoder):
    """The encoder as X-ARES released it; audiomarathon/encoders/baselines.py names its faults."""
