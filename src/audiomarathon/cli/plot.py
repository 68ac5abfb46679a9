"""`audiomarathon plot`: draw finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from audiomarathon.cli.options import Runs, option, output_folder
from audiomarathon.cli.output import say


def plot(
    runs: Runs,
    output: Annotated[Path, output_folder("Output folder.")] = Path("plots"),
    kind: Annotated[str, option("File format: png, pdf or svg.", "--format")] = "png",
) -> None:
    """Plot score, LLM prefill and KV cache against the ratio, one line per method: a picture per task, and the mean.

    Further pictures of single benchmarks, such as the ruler's heat maps, are drawn too.

    Example: audiomarathon plot results -o plots --format pdf
    """
    from audiomarathon.report.pictures import plot_runs

    for path in plot_runs(runs, output, kind):
        say(f"picture: {path}")
