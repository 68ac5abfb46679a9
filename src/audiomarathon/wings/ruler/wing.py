"""The hooks of this wing, which the core calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from audiomarathon.benchmarks.benchmark import Benchmark
    from audiomarathon.report.page_data import PageData
    from audiomarathon.report.sections import Section


class RulerWing(Wing):
    """The ruler: needles at known seconds of long audio."""

    key = "ruler"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return the ruler, with a task for each kind of question; see :meth:`Wing.benchmarks`."""
        from audiomarathon.wings.ruler.task import RULER

        return (RULER,)

    def mini(self, root: Path) -> None:
        """Write a small ruler, with clips of 15 and 30 s, into a data root; see :meth:`Wing.mini`."""
        from audiomarathon.wings.ruler.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return `audiomarathon ruler`, by the help's heading for it; see :meth:`Wing.commands`."""
        from audiomarathon.wings.ruler.commands import ruler

        return {"Other benchmarks, and their files": {"ruler": ruler}}

    def sections(self, data: PageData) -> Sequence[Section]:
        """Return the page's section: score by length and place, why answers are wrong; see :meth:`Wing.sections`."""
        from audiomarathon.wings.ruler.figures import section

        return section(data)


WING = RulerWing()
