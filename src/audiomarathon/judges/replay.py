"""A judge that answers from stored judgements, such as those of another run, and sends no requests to a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from audiomarathon.errors import RecordError
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Judgement, Request, judge_of, lines_in


class ReplayJudge(Judge):
    """A judge that answers from `judgements-<judge>.jsonl`; a request without a stored answer fails."""

    stored, on_gpu = True, False

    def __init__(self, file: Path) -> None:
        self.file = file
        self.key = judge_of(file)

    @cached_property
    def _answers(self) -> Mapping[str, Judgement]:
        judgements = {judgement.request_hash: judgement for judgement in lines_in(self.file) if judgement.error is None}
        if not judgements:
            raise RecordError(f"{self.file}: contains no answered judgement; name another file")
        return judgements

    def identity(self) -> Mapping[str, Any]:
        """Return the identity (back-end, model, fingerprint, sampling) of the judge that gave the stored answers."""
        return next(iter(self._answers.values())).identity

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with its stored answer, or with an error if the file has none."""
        for request in requests:
            if (stored := self._answers.get(request.hash)) is None:
                yield request, Reply(error=f"{self.file.name} has no judgement of this request")
            else:
                counts = (stored.prompt_tokens, stored.new_tokens)
                yield request, Reply(stored.text, stored.finish, None, *counts, stored.seconds)
