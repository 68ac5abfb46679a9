"""Provide the names that X-ARES' task files and Python examples import."""

from audiomarathon.benchmarks.xares.foreign import TaskConfig
from audiomarathon.cli.xares import XaresTask

__all__ = ["TaskConfig", "XaresTask"]
