"""The object `WING`, from which the core gets LALM Bench's tasks, commands, importer and exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from pathlib import Path

    from audiomarathon.benchmarks.benchmark import Benchmark


class Lalm(Wing):
    """Adds LALM Bench: captions, and questions about audio."""

    key = "lalm"

    def benchmarks(self) -> Sequence[Benchmark]:
        """Return LALM Bench, with its captioning and question tasks."""
        from audiomarathon.wings.lalm.benchmark import LALM_BENCH

        return (LALM_BENCH,)

    def mini(self, root: Path) -> None:
        """Write LALM Bench's part of the mini benchmark (short synthetic clips of each task) into a data root."""
        from audiomarathon.wings.lalm.mini import write

        write(root)

    def commands(self) -> Mapping[str, Commands]:
        """Return the command group `audiomarathon experiment`, as {heading in the help: {name: commands}}."""
        from audiomarathon.wings.lalm.experiments import experiment_app

        return {"Other benchmarks, and their files": {"experiment": experiment_app}}

    def importers(self) -> Commands:
        """Return {"lalm": function} for `import lalm`, which turns LALM Bench's files of replies into runs."""
        from audiomarathon.wings.lalm.commands import import_

        return {"lalm": import_}

    def exporters(self) -> Commands:
        """Return {"lalm": function} for `export lalm`, which writes runs as LALM Bench's files."""
        from audiomarathon.wings.lalm.commands import export

        return {"lalm": export}


WING = Lalm()
