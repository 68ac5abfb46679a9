"""Provide the names that X-ARES' task files and Python examples import."""

from audiomarathon.wings.encoders.xares.task_config import TaskConfig
from audiomarathon.wings.encoders.xares_commands import XaresTask

__all__ = ["TaskConfig", "XaresTask"]
