"""The object `WING`, from which the core gets the command `audiomarathon attention` and the pictures of attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from audiomarathon.wing import Commands, Wing

if TYPE_CHECKING:
    from audiomarathon.runs.read import Run


class Attention(Wing):
    """Adds `audiomarathon attention` and its pictures of captured attention."""

    key = "attention"

    def commands(self) -> Mapping[str, Commands]:
        """Return the command `audiomarathon attention`, as {heading in the help: {name: command}}."""
        from audiomarathon.wings.attention.commands import attention_app

        return {"Look at results": {"attention": attention_app}}

    def pictures(self, runs: Sequence[Run], folder: Path) -> None:
        """Draw the attention that was captured in the given runs; write the pictures into the folder `folder`."""
        from audiomarathon.wings.attention.pictures import draw

        draw(runs, folder)


WING = Attention()
