"""Score a finished checkpoint on the mini benchmark's whole clips, through the engine that users run."""

import tempfile
from pathlib import Path

from audiomarathon.embedded.mini_benchmark import mini_benchmark
from audiomarathon.embedded.world import TASKS
from audiomarathon.engine.run import run
from audiomarathon.settings import RunSettings


def held_out_figures(checkpoint: Path) -> dict[str, float]:
    """Return {task: macro-F1, or WER of the transcription task}, and under "mean macro-F1" the mean over nine tasks."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings(model_path=str(checkpoint), data=str(mini_benchmark()), results=Path(folder))
        for result in run(TASKS, "embedded", settings):
            summary = result.summary
            figures[summary["task"]] = round(summary[summary["headline"]], 3)
    choice = [figure for task, figure in figures.items() if task != "librispeech"]
    return figures | {"mean macro-F1": round(sum(choice) / len(choice), 3)}
