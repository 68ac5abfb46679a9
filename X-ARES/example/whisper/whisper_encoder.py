"""The whisper baseline of X-ARES."""

from audiomarathon.encoders import baselines


class WhisperEncoder(baselines.WhisperEncoder):
    """As released; its faults are named in audiomarathon/encoders/baselines.py."""
