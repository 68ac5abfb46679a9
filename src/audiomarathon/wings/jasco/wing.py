"""The object `WING`, from which the core gets JASCO's task, commands and report section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from pathlib import Path

    from audiomarathon.benchmarks.benchmark import Benchmark
    from audiomarathon.report.page_data import PageData
    from audiomarathon.report.render import Table
    from audiomarathon.report.sections import Section
    from audiomarathon.runs.read import Run


class JascoWing(Wing):
    """Adds JASCO: do models use the sound and the speech of a clip together?"""

    key = "jasco"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return the benchmark JASCO, whose only task is `jasco`."""
        from audiomarathon.wings.jasco.benchmark import JASCO

        return (JASCO,)

    def mini(self, root: Path) -> None:
        """Write the mini benchmark's part of JASCO, four short synthetic clips and their rows, into a data root."""
        from audiomarathon.wings.jasco.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return the command group `audiomarathon jasco`, as {heading in the help: {name: commands}}."""
        from audiomarathon.wings.jasco.commands import jasco_app

        return {"Other benchmarks, and their files": {"jasco": jasco_app}}

    def sections(self, data: PageData) -> Sequence[Section]:
        """Return the report page's section on whether pruning removes speech or sound first; () without such runs."""
        from audiomarathon.report.sections import Section
        from audiomarathon.wings.jasco import survival_report
        from audiomarathon.wings.jasco.survival_of_runs import survivals

        survival_rows = survivals(data.systems)
        if all(survival.system.is_base for survival in survival_rows):
            return ()
        drawn, said = survival_report.panels(survival_rows), {"": survival_report.sentences(survival_rows)}
        heading, charts = "What pruning removes first", {"": drawn} if drawn else {}
        return (Section("survival", heading, survival_report.tables(survival_rows), charts, said),)

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:
        """Return a table for each finished JASCO run: our figures beside the published ones."""
        from audiomarathon.wings.jasco.published import beside_published

        return [beside_published(run) for run in runs if run.key == "jasco" and run.summary is not None]


WING = JascoWing()
