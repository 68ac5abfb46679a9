"""The data2vec baseline of X-ARES."""

from audiomarathon.encoders import baselines


class Data2VecEncoder(baselines.Data2VecEncoder):
    """As released; its faults are named in audiomarathon/encoders/baselines.py."""
