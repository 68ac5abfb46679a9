"""X-ARES' dasheng baseline, as an encoder file."""

from audiomarathon.wings.encoders import baselines


class DashengEncoder(baselines.DashengEncoder):
    """The encoder as X-ARES released it; audiomarathon/wings/encoders/baselines.py names its faults."""
