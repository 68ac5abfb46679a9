"""Let `from tasks.esc50_task import esc50_config` find the files in src/tasks."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[1] / "src" / "tasks")]
