"""The hooks of this wing, which the core calls."""

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
    """JASCO: sound and speech together."""

    key = "jasco"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return JASCO, whose only task is `jasco`; see :meth:`Wing.benchmarks`."""
        from audiomarathon.wings.jasco.benchmark import JASCO

        return (JASCO,)

    def mini(self, root: Path) -> None:
        """Write four short synthetic clips and their rows into a data root; see :meth:`Wing.mini`."""
        from audiomarathon.wings.jasco.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return `audiomarathon jasco`, by the help's heading for it; see :meth:`Wing.commands`."""
        from audiomarathon.wings.jasco.commands import jasco_app

        return {"Other benchmarks, and their files": {"jasco": jasco_app}}

    def sections(self, data: PageData) -> Sequence[Section]:
        """Return the page's section on whether pruning removes speech or sound first; see :meth:`Wing.sections`."""
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
        """Return a table for each finished run: our figures beside the published ones; see :meth:`Wing.tables`."""
        from audiomarathon.wings.jasco.published import beside_published

        return [beside_published(run) for run in runs if run.key == "jasco" and run.summary is not None]


WING = JascoWing()
