"""The object `WING`, from which the core gets the tasks, commands and report sections of audio encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Template, Wing

if TYPE_CHECKING:
    from audiomarathon.benchmarks.benchmark import Benchmark
    from audiomarathon.benchmarks.task import Task
    from audiomarathon.plugins import Named
    from audiomarathon.report.page_data import PageData
    from audiomarathon.report.render import Table
    from audiomarathon.report.sections import Section
    from audiomarathon.runs.read import Run


class Encoders(Wing):
    """Adds X-ARES, and probes of audio encoders and of audio LLMs' towers on X-ARES' and AudioMarathon's clips."""

    key = "encoders"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return two benchmarks: X-ARES, and AudioMarathon's tasks as tasks for encoders."""
        from audiomarathon.wings.encoders.home_tasks import LONG
        from audiomarathon.wings.encoders.xares.benchmark import XARES

        return (XARES, LONG)

    def task(self, name: str) -> Task | None:
        """Return a task that a user declared in an X-ARES task file, rebuilt from its name in run folders.

        Return None for other names.
        """
        from audiomarathon.wings.encoders.xares.task_config import on_record

        return on_record(name)

    def mini(self, root: Path) -> None:
        """Write the mini benchmark's clips (short, synthetic) for X-ARES' public tasks into a data root."""
        from audiomarathon.wings.encoders.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return the command group `audiomarathon encoder`, as {heading in the help: {name: commands}}."""
        from audiomarathon.wings.encoders.commands import encoder_app

        return {"Other benchmarks, and their files": {"encoder": encoder_app}}

    def templates(self) -> Mapping[str, Template]:
        """Return the package template that `audiomarathon new encoder` fills in, as {name: template}."""
        folder = Path(__file__).parent / "new_template"
        return {"encoder": Template(folder, "audiomarathon encoder check {name}", _taken)}

    def sections(self, data: PageData) -> Sequence[Section]:
        """Return the page's sections on encoders, on LLMs' audio towers, and on towers beside the models' replies."""
        from audiomarathon.wings.encoders.report.sections import sections

        return sections(data.runs)

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:
        """Return tables of encoders' scores; X-ARES' baselines also get a table beside the published scores."""
        from audiomarathon.wings.encoders.report.encoder_sections import score_tables
        from audiomarathon.wings.encoders.report.tower_sections import of_encoders
        from audiomarathon.wings.encoders.results.scores import task_scores
        from audiomarathon.wings.encoders.xares.task import EncoderTask

        encoder_runs = of_encoders([run for run in runs if isinstance(run.task, EncoderTask)])
        return score_tables(task_scores(encoder_runs)) if encoder_runs else ()


def _taken() -> Sequence[Named]:
    from audiomarathon.wings.encoders.registry import all_encoders

    return all_encoders()


WING = Encoders()
