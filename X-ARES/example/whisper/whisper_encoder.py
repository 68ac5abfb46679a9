"""X-ARES' whisper baseline, as an encoder file."""

from audiomarathon.wings.encoders import baselines


class WhisperEncoder(baselines.WhisperEncoder):
    """The encoder as X-ARES released it; audiomarathon/wings/encoders/baselines.py names its faults."""
