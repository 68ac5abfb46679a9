"""The hooks of this wing, which the core calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from audiomarathon.benchmarks.task import Task


class Exchange(Wing):
    """Logs of lmms-eval and Inspect as runs, and runs as logs of Inspect or as a dataset for the hub."""

    key = "exchange"

    def task(self, name: str) -> Task | None:
        """Return a task known only from the scores that a log reports; None for other names. See :meth:`Wing.task`."""
        from audiomarathon.wings.exchange.reported import on_record

        return on_record(name)

    def importers(self) -> Commands:
        """Return the commands that import logs of lmms-eval and of Inspect; see :meth:`Wing.importers`."""
        from audiomarathon.wings.exchange.commands import import_log

        return {"lmms-eval": import_log, "inspect": import_log}

    def exporters(self) -> Commands:
        """Return the commands that export logs of Inspect and a dataset for the hub; see :meth:`Wing.exporters`."""
        from audiomarathon.wings.exchange.commands import export_hub, export_inspect

        return {"inspect": export_inspect, "hub": export_hub}


WING = Exchange()
