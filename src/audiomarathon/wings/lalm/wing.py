"""The hooks of this wing, which the core calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from pathlib import Path

    from audiomarathon.benchmarks.benchmark import Benchmark


class Lalm(Wing):
    """LALM Bench: captions, and questions about audio."""

    key = "lalm"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return LALM Bench, with its tasks of captions and questions; see :meth:`Wing.benchmarks`."""
        from audiomarathon.wings.lalm.benchmark import LALM_BENCH

        return (LALM_BENCH,)

    def mini(self, root: Path) -> None:
        """Write short synthetic clips of each task of LALM Bench into a data root; see :meth:`Wing.mini`."""
        from audiomarathon.wings.lalm.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return `audiomarathon experiment`, by the help's heading for it; see :meth:`Wing.commands`."""
        from audiomarathon.wings.lalm.experiments import experiment_app

        return {"Other benchmarks, and their files": {"experiment": experiment_app}}

    def importers(self) -> Commands:
        """Return the command `import lalm`, which turns files of replies into runs; see :meth:`Wing.importers`."""
        from audiomarathon.wings.lalm.commands import import_

        return {"lalm": import_}

    def exporters(self) -> Commands:
        """Return the command `export lalm`, which writes runs as LALM Bench's files; see :meth:`Wing.exporters`."""
        from audiomarathon.wings.lalm.commands import export

        return {"lalm": export}


WING = Lalm()
