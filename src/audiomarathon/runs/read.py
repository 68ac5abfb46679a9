"""A finished run as its folder holds it: what everything above this room reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audiomarathon.costs.prefill import Cost, Drops
from audiomarathon.runs.folder import read_records, read_run

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A finished setting: its facts, and by id the records of the samples it selected, answered and `failed`."""

    facts: Mapping[str, Any]
    records: Mapping[str, Record]
    failed: Mapping[str, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, *, selected: bool = True) -> Run:
        """Read a run folder.

        Parameters
        ----------
        selected
            Only the samples that its last run selected; else all on record, of larger runs before it too.

        Raises
        ------
        RecordError
            When it holds no run, or its files cannot be read.
        """
        facts, by_id = read_run(folder), read_records(folder)
        wanted = [by_id[id_] for id_ in (facts.get("samples", by_id) if selected else by_id) if id_ in by_id]
        answered, failed = (
            {row["id"]: row for row in wanted if (row.get("error") is None) is fine} for fine in (True, False)
        )
        return cls(facts, answered, failed)

    def sums_up(self, summary: Mapping[str, Any]) -> bool:
        """Whether a summary is of the records as they are: a longer run that was killed has left a shorter one's."""
        told = summary.get("expected"), summary.get("n")
        return told == (len(self.facts.get("samples", ())), len(self.records))

    @property
    def cost(self) -> Cost | None:
        """The model's counted FLOPs, when the run has them."""
        return Cost.read(self.facts["cost"]) if self.facts.get("cost") else None

    @property
    def drops(self) -> Drops | None:
        """What prefill is spared; None when that is not known of the method."""
        return Drops(**self.facts["drops"]) if self.facts.get("drops") else None
