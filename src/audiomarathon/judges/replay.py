"""A judge that replays stored judgements, of an earlier run or from elsewhere. It sends no request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from audiomarathon.errors import RecordError
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Judgement, Request, judge_of, lines_in


class ReplayJudge(Judge):
    """Answers from a `judgements-<judge>.jsonl`; a request that is not in it is an error, never a call."""

    stored = True

    def __init__(self, file: Path) -> None:
        self.file = file
        self.key = judge_of(file)

    @cached_property
    def _known(self) -> Mapping[str, Judgement]:
        found = {one.request_hash: one for one in lines_in(self.file) if one.error is None}
        if not found:
            raise RecordError(f"{self.file}: holds no judgement")
        return found

    def identity(self) -> Mapping[str, Any]:
        """Return the identity of the judge that gave the answers."""
        return next(iter(self._known.values())).identity

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """See :meth:`Judge.ask`."""
        for request in requests:
            if (one := self._known.get(request.hash)) is None:
                yield request, Reply(error=f"no judgement of this request in {self.file.name}")
            else:
                yield request, Reply(one.text, one.finish, None, one.prompt_tokens, one.new_tokens, one.seconds)
