"""A judge behind an OpenAI-compatible endpoint: a closed model, or one that vLLM, SGLang or transformers serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

from audiomarathon.endpoint.client import Endpoint, EndpointError, Prices
from audiomarathon.errors import ModelError
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Request

_GIVE_UP = 6  # stop after this many failed requests in a row, not counting those in flight
_SEED = 42


@dataclass
class EndpointJudge(Judge):
    """A judge that is a served model, asked at temperature 0 with a seed; at most `at_once` requests are open."""

    key: str
    endpoint: Endpoint
    at_once: int = 8
    on_gpu = False

    def identity(self) -> Mapping[str, Any]:
        """Return everything that the judge's answers depend on: served model, host, temperature and seed."""
        server = {"model": self.endpoint.model, "host": self.endpoint.host}
        return {"backend": "endpoint", **server, "temperature": 0, "seed": _SEED}

    def prices(self) -> Prices | None:
        """Return the endpoint's prices of tokens; None if unknown."""
        return self.endpoint.prices

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Send up to `at_once` requests at a time; yield each with its answer or error as it arrives.

        Raise ModelError after several failures in a row.
        """
        waiting, running = iter(requests), set[Future[tuple[Request, Reply]]]()
        with ThreadPoolExecutor(self.at_once, "judge") as pool, self.endpoint:
            while True:
                free = self.at_once - len(running)
                running.update(pool.submit(self._answer, request) for request in islice(waiting, free))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in sorted(
                    done, key=lambda future: future.exception() is not None
                ):  # answers first, to keep them
                    yield future.result()
                if self.endpoint.given_up >= _GIVE_UP + self.at_once:
                    raise ModelError(f"{self.endpoint.host} stopped answering: {self.endpoint.trouble}")

    def _answer(self, request: Request) -> tuple[Request, Reply]:
        try:
            answer = self.endpoint.chat(request.messages, max_new_tokens=request.max_new_tokens, seed=_SEED)
        except EndpointError as error:
            return request, Reply(error=str(error))
        if answer.masked:
            return request, Reply(error="the answer contains the API key and is not stored")
        if not answer.text.strip():
            why = f"{answer.finish}, {'unknown' if answer.new_tokens is None else f'{answer.new_tokens:,}'} tokens"
            return request, Reply(
                error=f"the answer is empty ({why}); turn off the judge's thinking, or use another judge"
            )
        tokens = (answer.prompt_tokens, answer.new_tokens)
        return request, Reply(answer.text, answer.finish, None, *tokens, answer.total, answer.cost)
