"""A judge that takes its answers from a table: the first pattern found in the question decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Request

ANSWERS = {  # the format that JASCO asks of judges
    r"(?i)\b(sorry|cannot|can't)\b": "Rating: 0\nOrientation: Neither",
    "": "Rating: 1\nOrientation: Both",
}


class NewName(Judge):
    """Ask your own model in `ask`. Answers may come in any order; a failed request gives `Reply(error="why")`."""

    key = "newname"

    def identity(self) -> Mapping[str, Any]:
        """Return everything that the answers depend on: stored answers are reused as long as it is unchanged."""
        return {"backend": "table", "answers": ANSWERS}

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with its answer."""
        for request in requests:
            question = request.messages[-1]["content"]
            yield (
                request,
                Reply(next(text for pattern, text in ANSWERS.items() if re.search(pattern, question)), "stop"),
            )
