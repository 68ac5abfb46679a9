"""The hooks of this wing, which the core calls."""

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
    """Audio encoders, and the towers of audio LLMs, probed on X-ARES' tasks and on AudioMarathon's long clips."""

    key = "encoders"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return X-ARES, and AudioMarathon's tasks as tasks for encoders; see :meth:`Wing.benchmarks`."""
        from audiomarathon.wings.encoders.home_tasks import LONG
        from audiomarathon.wings.encoders.xares.benchmark import XARES

        return (XARES, LONG)

    def task(self, name: str) -> Task | None:
        """Return a task from a user's X-ARES file, by the key of its runs, or None; see :meth:`Wing.task`."""
        from audiomarathon.wings.encoders.xares.task_config import on_record

        return on_record(name)

    def mini(self, root: Path) -> None:
        """Write short synthetic clips for X-ARES' public tasks into a data root; see :meth:`Wing.mini`."""
        from audiomarathon.wings.encoders.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return `audiomarathon encoder`, by the help's heading for it; see :meth:`Wing.commands`."""
        from audiomarathon.wings.encoders.commands import encoder_app

        return {"Other benchmarks, and their files": {"encoder": encoder_app}}

    def templates(self) -> Mapping[str, Template]:
        """Return the package that `audiomarathon new encoder` writes; see :meth:`Wing.templates`."""
        folder = Path(__file__).parent / "new_template"
        return {"encoder": Template(folder, "audiomarathon encoder check {name}", _taken)}

    def sections(self, data: PageData) -> Sequence[Section]:
        """Return the page's sections: encoders' scores, towers alone, towers beside their models' replies.

        See :meth:`Wing.sections`.
        """
        from audiomarathon.wings.encoders.report.sections import sections

        return sections(data.runs)

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:
        """Return tables of encoders' scores (baselines also beside published scores); see :meth:`Wing.tables`."""
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
