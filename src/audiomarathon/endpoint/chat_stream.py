"""One chat request over HTTP and its streamed reply, within limits of time and size."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio.lowlevel
import httpx2

from audiomarathon.endpoint.access import proxy_of

_CONNECT_S = 10.0
_AFTERWARDS_S = 5.0  # how long a finished reply waits for the tokens' count
_ERROR_BYTES = 65536
_BYTES, _BYTES_A_TOKEN = 1 << 20, 4096  # of a stream: each token comes in an event of its own, with what servers add
_T = TypeVar("_T")
_GONE_WRONG = ("abort", "error")  # reasons to finish that are the server's own trouble


class BrokenReplyError(Exception):
    """A reply that broke off, makes no sense or does not end; another attempt may do better."""


class StatusError(Exception):
    """The server answered with an error.

    Attributes
    ----------
    status
        Of HTTP.
    code
        The protocol's own word for the error, such as `insufficient_quota`; "" where there is none.
    headers
        Of the answer.
    """

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        text, self.code = _told(body)
        super().__init__(text.strip() or httpx2.codes.get_reason_phrase(status))
        self.status, self.headers = status, headers


@dataclass
class Reply:
    """What has come of a reply; times are seconds from the request's start to its first and its last piece.

    `usage` is the server's count of tokens, as it sent it.
    """

    text: str = ""
    finish: str = ""
    first: float | None = None
    last: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, event: Any, now: float) -> None:
        """Add what an event of the stream brings.

        Raises
        ------
        BrokenReplyError
            When it reports an error, or is no such event.
        """
        try:
            if event.get("error"):
                raise BrokenReplyError(f"the server reports {_told(json.dumps(event).encode())[0]}")
            self.usage = event.get("usage") or self.usage
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or choice.get("message") or {}
                text = _text(delta.get("content")) or _text(delta.get("refusal"))
                if text:
                    self.first = now if self.first is None else self.first
                    self.text += text
                self.finish = _text(choice.get("finish_reason")) or self.finish
                self.last = now
        except (AttributeError, TypeError):
            raise BrokenReplyError(f"a malformed event: {json.dumps(event)[:100]}") from None
        if self.finish in _GONE_WRONG:
            raise BrokenReplyError(f"the server gave the reply up ({self.finish})")


def _text(content: Any) -> str:
    """Return a piece's text, which some servers send as a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError
    return content or ""


def _told(body: bytes) -> tuple[str, str]:
    """Return the message of an error, whichever way a server words it, and its code."""
    text = body.decode(errors="replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text[:2000], ""
    error = content.get("error") or content if isinstance(content, dict) else content
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or text)[:2000], str(error.get("code") or "")
    return str(error)[:2000], ""


class Wire:
    """Requests to one address, from several threads at once; each on a connection of its own. No redirect is followed.

    Parameters
    ----------
    url
        Up to `/v1`.
    key
        Sent as bearer; "" sends none.
    limit_s
        Seconds that a request may take, whole, whatever trickles in.
    """

    def __init__(self, url: str, key: str, limit_s: float) -> None:
        self._url, self._limit_s = url, limit_s
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "audiomarathon"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._trusted = ssl.create_default_context()
        httpx2.AsyncHTTPTransport(
            verify=self._trusted
        )  # loads what the first request would else load while it is timed
        self._running: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()
        self._lock = threading.Lock()
        self.stopped = threading.Event()

    def stop(self) -> None:
        """End all requests that are on their way, and let none begin."""
        self.stopped.set()
        with self._lock:
            for loop, task in self._running:
                loop.call_soon_threadsafe(task.cancel)

    def chat(self, body: bytes, tokens: int) -> Reply:
        """Return the reply to a request for at most so many tokens.

        Raises
        ------
        BrokenReplyError, StatusError, httpx2.HTTPError
            For a reply that is none.
        """
        return self._run(lambda: self._chat(body, tokens))

    def get(self, path: str) -> Any:
        """Return what lies under a path, as JSON.

        Raises
        ------
        BrokenReplyError, StatusError, httpx2.HTTPError
            When there is none.
        """
        return self._run(lambda: self._get(path))

    def _run(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Make a request in this thread, so that :meth:`stop` can end it from another."""

        async def within() -> _T:
            task = asyncio.current_task()
            assert task is not None
            here = asyncio.get_running_loop(), task
            with self._lock:
                if self.stopped.is_set():
                    raise BrokenReplyError("stopped")
                self._running.add(here)
            try:
                await anyio.lowlevel.checkpoint()  # loads what it needs, before the request is timed
                return await request()
            finally:
                with self._lock:
                    self._running.discard(here)

        try:
            return asyncio.run(within())
        except asyncio.CancelledError:
            raise BrokenReplyError("stopped") from None
        except RecursionError:
            raise BrokenReplyError("JSON that is nested too deep") from None
        except TimeoutError:
            raise BrokenReplyError(f"no whole reply within {self._limit_s:g} s") from None

    async def _chat(self, body: bytes, tokens: int) -> Reply:
        begin, reply = time.perf_counter(), Reply()
        try:
            async with (
                asyncio.timeout(self._limit_s) as limit,
                self._answer("POST", "/chat/completions", body) as answer,
            ):
                async for event in _events(answer, _BYTES + tokens * _BYTES_A_TOKEN):
                    reply.take(event, time.perf_counter() - begin)
                    if reply.finish:
                        limit.reschedule(min(limit.when() or 0.0, asyncio.get_running_loop().time() + _AFTERWARDS_S))
        except (BrokenReplyError, httpx2.HTTPError, TimeoutError):
            if not reply.finish or reply.finish in _GONE_WRONG:
                raise
        if not reply.finish:
            raise BrokenReplyError("the reply broke off" if reply.last else "no reply in the stream")
        return reply

    async def _get(self, path: str) -> Any:
        async with asyncio.timeout(self._limit_s), self._answer("GET", path) as answer:
            content = await _beginning(answer, _BYTES)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise BrokenReplyError(f"{answer.headers.get('Content-Type')} where JSON was expected") from None

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[httpx2.Response]:
        """Send a request, by the environment's proxy; refuse an answer that is an error."""
        proxy = proxy_of(urlsplit(self._url))
        async with (
            httpx2.AsyncClient(
                headers=self._headers,
                verify=self._trusted,
                proxy=proxy.geturl() if proxy else None,
                timeout=httpx2.Timeout(None, connect=_CONNECT_S),
                trust_env=False,  # a proxy is named above, but never for this machine itself
            ) as client,
            client.stream(
                method, self._url + path, content=body, headers={"Content-Type": "application/json"}
            ) as answer,
        ):
            if answer.status_code != 200:
                raise StatusError(answer.status_code, await _beginning(answer, _ERROR_BYTES), answer.headers)
            yield answer


async def _beginning(answer: httpx2.Response, most: int) -> bytes:
    """Return an answer's first so many bytes, about."""
    content = bytearray()
    with suppress(BrokenReplyError):
        async for piece in _bounded(answer, most):
            content += piece
    return bytes(content[:most])


async def _bounded(answer: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """Yield an answer's bytes, unpacked; a limit holds for them as they are sent and as they are unpacked.

    Raises
    ------
    BrokenReplyError
        For more bytes, or bytes that cannot be unpacked.
    """
    coding = answer.headers.get("Content-Encoding", "").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise BrokenReplyError(f"Content-Encoding {coding[:50]!r}, where none was asked for; gzip and deflate are read")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if coding not in ("", "identity") else None
    sent = unpacked = 0
    async for piece in answer.aiter_raw():
        sent += len(piece)
        try:
            content = unpack.decompress(piece, most + 1 - unpacked) if unpack else piece
        except zlib.error as error:
            raise BrokenReplyError(f"Content-Encoding {coding}: {error}") from None
        unpacked += len(content)
        yield content
        if max(sent, unpacked) > most:
            raise BrokenReplyError(f"more than {most:,} bytes, which no reply of the length asked for takes")


async def _events(answer: httpx2.Response, most: int) -> AsyncIterator[Any]:
    """Yield what a stream of server-sent events holds, up to its `[DONE]`."""
    headers = {"Content-Type": answer.headers.get("Content-Type", "")}
    if not headers["Content-Type"].lower().startswith("text/event-stream"):
        kind = headers["Content-Type"][:50] or "no content type"
        raise BrokenReplyError(f"{kind} where a stream of events was asked for; does the server stream replies?")
    stream = httpx2.Response(200, headers=headers, content=_bounded(answer, most), request=answer.request)
    stream.encoding = "utf-8-sig"  # some servers begin with a byte order mark
    async for event in httpx2.EventSource(stream, max_event_size=None):
        if event.data.strip() == "[DONE]":
            return
        if event.data:
            try:
                yield json.loads(event.data)
            except (ValueError, RecursionError):
                raise BrokenReplyError(f"an event that is no JSON: {event.data[:100]!r}") from None
