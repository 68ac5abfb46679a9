"""X-ARES' data2vec baseline, as an encoder file."""

from audiomarathon.wings.encoders import baselines


class Data2VecEncoder(baselines.Data2VecEncoder):
    """The encoder as X-ARES released it; audiomarathon/wings/encoders/baselines.py names its faults."""
