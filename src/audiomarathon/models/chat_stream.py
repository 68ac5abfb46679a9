"""One chat request over HTTP and its streamed reply, within limits of time and size.

Made of the standard library: nothing is sent after a redirect, nothing but a reply is waited for, no log sees the key.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, responses
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import urlsplit

from audiomarathon.models.endpoint_access import proxy_headers, proxy_of

_CONNECT_S = 10.0
_AFTERWARDS_S = 5.0  # how long a finished reply waits for the tokens' count
_READ = 65536
_BYTES, _BYTES_A_TOKEN = 1 << 20, 4096  # of a stream: each token comes in an event of its own, with what servers add
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
        super().__init__(text.strip() or responses.get(status, ""))
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
                delta = choice.get("delta") or {}
                text = _text(delta.get("content")) or _text(delta.get("refusal"))
                if text:
                    self.first = now if self.first is None else self.first
                    self.text += text
                self.finish = choice.get("finish_reason") or self.finish
                self.last = now
        except (AttributeError, TypeError):
            raise BrokenReplyError(f"a malformed event: {json.dumps(event)[:100]}") from None
        if self.finish in _GONE_WRONG:
            raise BrokenReplyError(f"the server gave the reply up ({self.finish})")


def _text(content: Any) -> str:
    """Return a piece's text, which some servers send as a list of parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if part.get("type") == "text")
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
    """Requests to one address, from several threads at once; each on a connection of its own.

    Parameters
    ----------
    url
        Up to `/v1`.
    key
        Sent as bearer; "" sends none.
    limit_s
        Seconds that a request may take, whole.
    """

    def __init__(self, url: str, key: str, limit_s: float) -> None:
        self._url, self._key, self._limit_s = urlsplit(url), key, limit_s
        self._open: set[socket] = set()
        self._lock = threading.Lock()
        self.stopped = threading.Event()

    def stop(self) -> None:
        """End all requests that are on their way, and let none begin."""
        self.stopped.set()
        with self._lock:
            for one in self._open:
                _cut(one)

    def chat(self, body: bytes, tokens: int) -> Reply:
        """Return the reply to a request for at most so many tokens.

        Raises
        ------
        BrokenReplyError, StatusError, OSError, HTTPException
            For a reply that is none.
        """
        begin, reply = time.perf_counter(), Reply()
        try:
            with self._answer("POST", "/chat/completions", body) as (response, line):
                for event in _events(response, _BYTES + tokens * _BYTES_A_TOKEN):
                    reply.take(event, time.perf_counter() - begin)
                    if reply.finish:
                        line.settimeout(_AFTERWARDS_S)
        except (BrokenReplyError, OSError, HTTPException):
            if not reply.finish or reply.finish in _GONE_WRONG:
                raise
        if not reply.finish:
            kind = response.getheader("Content-Type")
            raise BrokenReplyError("the reply broke off" if reply.last else f"no reply in a stream of {kind}")
        return reply

    def get(self, path: str) -> Any:
        """Return what lies under a path, as JSON.

        Raises
        ------
        BrokenReplyError, StatusError, OSError, HTTPException
            When there is none.
        """
        with self._answer("GET", path, None) as (response, _line):
            try:
                return json.loads(response.read(_BYTES))
            except (ValueError, RecursionError):
                raise BrokenReplyError(f"{response.getheader('Content-Type')} where JSON was expected") from None

    @contextmanager
    def _answer(self, method: str, path: str, body: bytes | None) -> Iterator[tuple[HTTPResponse, socket]]:
        """Send a request; the connection is cut when its time is up, whatever trickles in."""
        connection, target, headers = self._route(self._url.path.rstrip("/") + path)
        connection.connect()
        line = connection.sock
        line.settimeout(self._limit_s)
        late = threading.Event()
        timer = threading.Timer(self._limit_s, _cut, (line, late))
        timer.daemon = True
        with self._lock:
            self._open.add(line)
        timer.start()
        try:
            if self.stopped.is_set():
                raise BrokenReplyError("stopped")
            with suppress(BrokenPipeError, ConnectionResetError):  # one that refuses may not read to the end
                connection.request(method, target, body, headers)
            response = connection.getresponse()
            if response.status != 200:
                raise StatusError(response.status, response.read(_READ), dict(response.headers.items()))
            yield response, line
            if late.is_set():
                raise BrokenReplyError
        except (OSError, HTTPException, BrokenReplyError, ValueError):
            if late.is_set():
                raise BrokenReplyError(f"no whole reply within {self._limit_s:g} s") from None
            raise
        finally:
            timer.cancel()
            with self._lock:
                self._open.discard(line)
            connection.close()

    def _route(self, path: str) -> tuple[HTTPConnection, str, dict[str, str]]:
        """Return a connection, not yet made, what to ask it for, and the headers; by the environment's proxy."""
        url, target = self._url, path
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "audiomarathon"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        proxy = proxy_of(url)
        at, via = (proxy, proxy_headers(proxy)) if proxy else (url, {})
        assert at.hostname is not None
        if url.scheme == "https":
            secure = HTTPSConnection(at.hostname, at.port, timeout=_CONNECT_S, context=ssl.create_default_context())
            if proxy:
                secure.set_tunnel(str(url.hostname), url.port, via)
            return secure, target, headers
        if proxy:
            target = f"{url.scheme}://{url.netloc}{path}"
        return HTTPConnection(at.hostname, at.port, timeout=_CONNECT_S), target, headers | via


def _cut(line: socket, late: threading.Event | None = None) -> None:
    if late:
        late.set()
    with suppress(OSError):
        line.shutdown(SHUT_RDWR)


def _events(response: HTTPResponse, most: int) -> Iterator[Any]:
    """Yield what a stream of server-sent events holds, up to its `[DONE]`."""
    data: list[bytes] = []
    for line in _lines(response, most):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            text, data = b"\n".join(data), []
            if text.strip() == b"[DONE]":
                return
            try:
                yield json.loads(text)
            except (ValueError, RecursionError):
                raise BrokenReplyError(f"an event that is no JSON: {text[:100]!r}") from None


def _lines(response: HTTPResponse, most: int) -> Iterator[bytes]:
    """Yield a stream's lines, and an empty one at its end."""
    inflate = zlib.decompressobj(47) if response.getheader("Content-Encoding") else None
    rest, size = b"", 0
    while piece := response.read1(_READ):
        if inflate:
            try:
                piece = inflate.decompress(piece, most)
            except zlib.error:
                raise BrokenReplyError(f"encoded as {response.getheader('Content-Encoding')}") from None
        if not size:
            piece = piece.removeprefix(b"\xef\xbb\xbf")
        size += len(piece)
        if size > most:
            raise BrokenReplyError(f"more than {most:,} bytes, which no reply of the length asked for takes")
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.rstrip(b"\r") for line in whole)
    yield from (rest, b"")
