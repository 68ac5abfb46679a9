"""Speech recognition tasks: a probe writes a clip's transcript from frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from audiomarathon.errors import ModelError
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.wings.encoders.scoring.recognised import Recognised
from audiomarathon.wings.encoders.xares.task import EncoderTask


@dataclass(frozen=True, kw_only=True)
class SpokenTask(EncoderTask):
    """A speech recognition task: its clips have transcripts, which probes write from frames.

    Attributes
    ----------
    transcript
        The JSON field with the transcript.
    llm
        The causal LM of X-ARES' probe: a hub id, or a folder; "" leaves that probe out.
    """

    transcript: str = "trans"
    llm: str = ""
    kind: ClassVar[str] = "spoken"
    framed: ClassVar[bool] = True
    labelled: ClassVar[bool] = False
    scorer = Recognised()  # scored by word error rate

    @property
    def lacking(self) -> str:
        """Why X-ARES' probe is not run: it needs a causal LM, and `llm` names none; "" if `llm` names an LM."""
        return "" if self.llm else "its probe trains an adapter for a causal LM; name one with --llm Qwen/Qwen2.5-0.5B"

    def made_with(self, *, released: bool) -> dict[str, str]:
        """Return facts that a probe's identity depends on: for X-ARES' probe (`released`), the causal LM's fingerprint.

        {} for our probe, which uses no LM.
        """
        if not released:
            return {}
        try:
            return {"llm": find_checkpoint(self.llm, named="name a folder: --llm FOLDER").fingerprint()}
        except ModelError as error:
            raise ModelError(f"{self.name}: {error} (the causal LM: --llm, XARES_LLM)") from None

    def facts(self, meta: Any) -> tuple[str, ...]:
        """Return a clip's transcript; raise ValueError if it is not a text, or empty."""
        transcript = meta[self.transcript]
        if not isinstance(transcript, str) or not transcript.strip():
            raise ValueError(f"{self.transcript!r} is {transcript!r}; allowed: text")
        return (transcript,)
