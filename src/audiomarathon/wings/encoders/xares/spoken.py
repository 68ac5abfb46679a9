"""Speech recognition tasks: a probe predicts a clip's transcript from the frames of its embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from audiomarathon.errors import ModelError
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.wings.encoders.scoring.recognised import Recognised
from audiomarathon.wings.encoders.xares.task import EncoderTask


@dataclass(frozen=True, kw_only=True)
class SpokenTask(EncoderTask):
    """A speech recognition task: clips have transcripts, and probes predict these from frames.

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
        """Why X-ARES' probe is not run: it needs a causal LM, and `llm` is empty; "" if `llm` names one."""
        return "" if self.llm else "its probe trains an adapter for a causal LM; name one with --llm Qwen/Qwen2.5-0.5B"

    def made_with(self, *, released: bool) -> dict[str, str]:
        """Return {"llm": fingerprint of the causal LM}, a fact on which the predictions of X-ARES' probe depend.

        `released` selects X-ARES' probe. Return {} for our probe, which uses no LM.
        """
        if not released:
            return {}
        try:
            return {"llm": find_checkpoint(self.llm, named="name a folder: --llm FOLDER").fingerprint()}
        except ModelError as error:
            raise ModelError(f"{self.name}: {error} (the causal LM: --llm, XARES_LLM)") from None

    def facts(self, meta: Any) -> tuple[str, ...]:
        """Return (transcript,) of a clip, from its JSON; raise ValueError if the transcript is empty or not a text."""
        transcript = meta[self.transcript]
        if not isinstance(transcript, str) or not transcript.strip():
            raise ValueError(f"{self.transcript!r} is {transcript!r}; allowed: text")
        return (transcript,)
