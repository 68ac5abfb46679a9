"""The hooks of this wing, which the core calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from audiomarathon.runs.read import Run


class Attention(Wing):
    """Pictures of the attention that runs captured."""

    key = "attention"

    def commands(self) -> Mapping[str, Commands]:
        """Return `audiomarathon attention`, by the help's heading for it; see :meth:`Wing.commands`."""
        from audiomarathon.wings.attention.commands import attention_app

        return {"Look at results": {"attention": attention_app}}

    def pictures(self, runs: Sequence[Run], folder: Path) -> None:
        """Draw the attention of those runs that captured it into a folder; see :meth:`Wing.pictures`."""
        from audiomarathon.wings.attention.pictures import draw

        draw(runs, folder)


WING = Attention()
