"""The object `WING`, from which the core gets the commands that import and export logs of other suites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from audiomarathon.benchmarks.task import Task


class Exchange(Wing):
    """Imports logs of lmms-eval and Inspect as runs; exports runs as logs of Inspect or as a dataset for the hub."""

    key = "exchange"

    def task(self, name: str) -> Task | None:
        """Return a task known only from the scores that a log reports (`reported/NAME`); None for other names."""
        from audiomarathon.wings.exchange.reported import on_record

        return on_record(name)

    def importers(self) -> Commands:
        """Return the commands that import logs of lmms-eval and of Inspect, as {name: function}."""
        from audiomarathon.wings.exchange.commands import import_log

        return {"lmms-eval": import_log, "inspect": import_log}

    def exporters(self) -> Commands:
        """Return the commands that export runs as logs of Inspect and as a dataset for the hub, as {name: function}."""
        from audiomarathon.wings.exchange.commands import export_hub, export_inspect

        return {"inspect": export_inspect, "hub": export_hub}


WING = Exchange()
