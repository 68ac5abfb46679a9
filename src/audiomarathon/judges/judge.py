"""The interface of a judge: it answers requests, and names everything that its answers depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audiomarathon.endpoint.client import Prices
from audiomarathon.judges.judgements import Request


@dataclass(frozen=True)
class Reply:
    """A judge's answer to a request, or an error; see :class:`Judgement` for the fields."""

    text: str = ""
    finish: str = ""
    error: str | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    seconds: float | None = None
    cost: float | None = None


class Judge(ABC):
    """A model that rates replies by answering requests.

    Attributes
    ----------
    key
        Name after `--with`. It is also the judge's name in files, unless `--with NAME=…` gives another.
    aliases
        Other names after `--with`.
    stored
        Whether all answers come from a file, so that no cache is needed.
    """

    key: str
    aliases: tuple[str, ...] = ()
    stored: bool = False

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Return everything that the answers depend on, as JSON values: back-end, model, fingerprint, sampling.

        The identity is stored with each judgement, and is part of the cache's key.
        """

    @abstractmethod
    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with its answer as soon as it arrives, in any order.

        Raises
        ------
        ModelError
            No request can succeed.
        """

    def prices(self) -> Prices | None:
        """Return the prices of tokens; None if they are unknown, or the judge costs nothing."""
        return None
