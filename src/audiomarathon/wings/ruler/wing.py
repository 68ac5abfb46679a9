"""The object `WING`, from which the core gets the ruler's tasks, command and report section."""

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
    """Adds the ruler: needles (words and bells) planted at known seconds of long audio."""

    key = "ruler"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return the benchmark `ruler`, with a task for each kind of question."""
        from audiomarathon.wings.ruler.task import RULER

        return (RULER,)

    def mini(self, root: Path) -> None:
        """Write the mini benchmark's ruler, with clips of 15 and 30 s, into a data root."""
        from audiomarathon.wings.ruler.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return the command `audiomarathon ruler`, as {heading in the help: {name: command}}."""
        from audiomarathon.wings.ruler.commands import ruler

        return {"Other benchmarks, and their files": {"ruler": ruler}}

    def sections(self, data: PageData) -> Sequence[Section]:
        """Return the page's section on the ruler: scores by clip length and word position, causes of errors."""
        from audiomarathon.wings.ruler.figures import section

        return section(data)


WING = RulerWing()
