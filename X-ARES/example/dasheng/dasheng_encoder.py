"""The dasheng baseline of X-ARES."""

from audiomarathon.encoders import baselines


class DashengEncoder(baselines.DashengEncoder):
    """As released; its faults are named in audiomarathon/encoders/baselines.py."""
