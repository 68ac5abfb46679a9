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
        """See :meth:`Wing.benchmarks`."""
        from audiomarathon.wings.ruler.task import RULER

        return (RULER,)

    def mini(self, root: Path) -> None:
        """See :meth:`Wing.mini`."""
        from audiomarathon.wings.ruler.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """See :meth:`Wing.commands`."""
        from audiomarathon.wings.ruler.commands import ruler

        return {"Other benchmarks, and their files": {"ruler": ruler}}

    def sections(self, data: PageData) -> Sequence[Section]:
        """See :meth:`Wing.sections`: the score by length and place, and why answers are wrong."""
        from audiomarathon.wings.ruler.figures import section

        return section(data)


WING = RulerWing()
