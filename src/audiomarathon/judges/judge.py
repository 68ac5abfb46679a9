"""The interface of a judge: it answers requests, and states everything that its answers depend on (its identity)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audiomarathon.judges.judgements import Request

if TYPE_CHECKING:
    from audiomarathon.endpoint.client import Prices


@dataclass(frozen=True)
class Reply:
    """A judge's answer to a request, or an error; :class:`Judgement` has the same fields, and explains them."""

    text: str = ""
    finish: str = ""
    error: str | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None


class Judge(ABC):
    """A model that rates replies of the model under test: it answers requests, each with one question about a reply.

    Attributes
    ----------
    key
        Name that the user gives to `--with`. It is also the judge's name in files, unless `--with NAME=…` renames it.
    aliases
        Alternative names for `--with`.
    stored
        Whether all answers come from a file, so that no cache is needed.
    on_gpu
        Whether the judge uses a GPU if there is one.
    """

    key: str
    aliases: tuple[str, ...] = ()
    stored: bool = False
    on_gpu: bool = True

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return everything that the judge's answers depend on, as JSON values: back-end, model, fingerprint, sampling.

        The identity is stored with each judgement, and is part of the key under which the cache stores an answer.
        """

    @abstractmethod
    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Send requests to the judge; yield (request, answer) as soon as the answer arrives, in any order.

        Raises
        ------
        ModelError
            The judge cannot answer any request, for example because its server stopped.
        """

    def prices(self) -> Prices | None:
        """Return the prices of tokens; None if they are unknown, or the judge costs nothing."""
        return None
