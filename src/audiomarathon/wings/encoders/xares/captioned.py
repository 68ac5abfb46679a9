"""Retrieval tasks: a probe finds a clip's captions among all captions, and a caption's clip among all clips."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from audiomarathon.errors import ModelError, told
from audiomarathon.models.checkpoint import embedded_checkpoint
from audiomarathon.models.registry import EMBEDDED
from audiomarathon.wings.encoders.scoring.retrieved import Retrieved
from audiomarathon.wings.encoders.xares.task import EncoderTask


@dataclass(frozen=True, kw_only=True)
class CaptionedTask(EncoderTask):
    """A retrieval task: all values in the JSON of a clip are its captions, whatever the fields are called.

    Attributes
    ----------
    tokenizer
        Tokenizer of captions: a hub id, a folder, or `embedded` for the embedded model's.
    """

    tokenizer: str = "google-bert/bert-base-uncased"
    kind: ClassVar[str] = "captioned"
    labelled: ClassVar[bool] = False
    scorer = Retrieved()  # scored by recall in both directions: from clip to captions, and from caption to clip

    def made_with(self, *, released: bool) -> dict[str, str]:  # noqa: ARG002
        """Return {"tokenizer": hash of its vocabulary}, a fact on which the probe's predictions depend."""
        words = sorted(self.load_tokenizer().get_vocab().items())
        return {"tokenizer": hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]}

    def load_tokenizer(self) -> Any:
        """Load the tokenizer that splits captions into tokens.

        Raises
        ------
        ModelError
            The tokenizer cannot be loaded.
        """
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(
                embedded_checkpoint() if self.tokenizer == EMBEDDED else self.tokenizer
            )
        except (OSError, ValueError) as error:
            allowed = "a hub id that can be reached, or a folder (--tokenizer, XARES_TOKENIZER)"
            raise ModelError(f"{self.name}: tokenizer {self.tokenizer}: {told(error)}; allowed: {allowed}") from None

    def facts(self, meta: Any) -> tuple[str, ...]:
        """Return a clip's captions, from its JSON; raise ValueError if it has none, or one is empty or not a text."""
        captions = tuple(meta.values())
        if not captions or not all(isinstance(caption, str) and caption.strip() for caption in captions):
            raise ValueError(f"captions are {captions}; allowed: one text or more, none of them empty")
        return captions
