"""X-ARES' dasheng baseline, as an encoder file."""

from audiomarathon.encoders import baselines


class DashengEncoder(baselines.DashengEncoder):
    """The encoder as X-ARES released it; audiomarathon/encoders/baselines.py names its faults."""
