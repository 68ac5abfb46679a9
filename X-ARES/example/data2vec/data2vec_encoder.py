"""X-ARES' data2vec baseline, as an encoder file."""

from audiomarathon.encoders import baselines


class Data2VecEncoder(baselines.Data2VecEncoder):
    """The encoder as X-ARES released it; audiomarathon/encoders/baselines.py names its faults."""
