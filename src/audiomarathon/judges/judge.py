"""What a judge is: something that answers requests, and says exactly what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audiomarathon.endpoint.client import Prices
from audiomarathon.judges.judgements import Request


@dataclass(frozen=True)
class Reply:
    """A judge's answer to a request, or why there is none; see :class:`Judgement` for the fields."""

    text: str = ""
    finish: str = ""
    error: str | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None


class Judge(ABC):
    """Answers requests.

    Attributes
    ----------
    key
        What users type after `--with`, and the judge's name unless they give another (`NAME=…`).
    aliases
        Other names that users type.
    stored
        Whether answers are on file already, so that the cache has nothing to add.
    """

    key: str
    aliases: tuple[str, ...] = ()
    stored: bool = False

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return all that its answers depend on, JSON-compatible: back-end, model, fingerprint, sampling.

        It is stored with each judgement, and the cache is kept by it.
        """

    @abstractmethod
    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with its answer, in any order, as soon as it is there.

        Raises
        ------
        ModelError
            When no request can succeed.
        """

    def prices(self) -> Prices | None:
        """Return what its tokens cost; None where that is not known, or nothing."""
        return None
