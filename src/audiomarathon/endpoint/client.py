"""Chat with a model behind an OpenAI-compatible endpoint: a closed model, or one that vLLM serves.

The file begins with answers and prices. The client follows, with its settings, retries and requests, then the reading
of streamed replies. At the end are the checks of the address and its proxy, and the removal of the key from texts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import ssl
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache, partial
from ipaddress import ip_address
from math import inf
from typing import Any, NoReturn, Self, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio.lowlevel
import httpx2

from audiomarathon.errors import ModelError, SettingsError, warn
from audiomarathon.records import MAX_REPLY
from audiomarathon.thinking import begin_of_text

DEFAULT_URL = "https://api.openai.com/v1"
_URL_HINT = "set OPENAI_BASE_URL to the full address, which usually ends in /v1"
_PRICES = ("OPENAI_PRICE_IN", "OPENAI_PRICE_OUT", "OPENAI_PRICE_AUDIO")

_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0  # seconds between attempts
_LIMIT_S, _CONNECT_S = 600.0, 10.0  # seconds for one attempt, and for its connection
_AFTERWARDS_S = 5.0  # seconds to wait for the token counts after the reply has ended
_BYTES, _BYTES_A_TOKEN = 1 << 20, 4096  # limits of an answer's size; each token arrives in its own event
_CHARACTERS_A_TOKEN = 32  # limit of a reply's length, if it may be longer than `MAX_REPLY`
_NOTED = 100  # number of characters to show of an answer of another kind
_FIELD = re.compile(rb"^(?:\xef\xbb\xbf)?(data|event|id|retry)?:", re.MULTILINE)  # a line of server-sent events
_KEY_SHOWN = 5  # this many characters of a key are not secret, since services show this many

_SECRET_LENGTH = 16
_PIECE = re.compile("[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_PAIRS = (  # the most frequent pairs of letters in English words
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro "
    "ic ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us ac ot il tr ly nc et ut ss so "
    "rs un lo wa ge ie wh ee wi em ad ol rt po we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl "
    "ig tu ev ld ry mp fe bl ab gh ty op wo sa ay ex ke ui fr oo"
)

_AGAIN = (408, 409, 425, 429)  # statuses worth a retry, like every status from 500
_HOPELESS = (401, 402, 403, 404, 405)  # statuses after which every request would fail
_HOPELESS_CODES = ("insufficient_quota", "unsupported_parameter", "unsupported_value")
_TOOLS = ("tool_calls", "function_call")
_WITHHELD = ("safety", "recitation", "blocklist", "prohibited_content", "spii", "sensitive", "refusal", "other")
_OTHER_FIELDS = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking",
    "audio",
    *_TOOLS,
)
_END_TOKENS = 2  # an empty reply may count its end token, and the line break before it
_GONE_WRONG = ("abort", "error")  # finish_reason values that mean a server error
_LOCAL = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Answer:
    """One reply of a model, with its times, token counts and cost.

    Attributes
    ----------
    text
        The reply; if there is none, the refusal that the server sent. `***` replaces the API key if :func:`is_secret`.
    finish
        Why the reply ended, in the server's words: `stop`, `length` (token limit), `content_filter`, …; `refusal` if
        the server sent a refusal instead of a reply.
    first_token, total
        Seconds from the start of the successful attempt to the piece that begins the visible text, after any thinking
        (without such text, to the last piece), and to the last piece.
    prompt_tokens, audio_tokens, new_tokens
        Numbers of tokens, as the server counted them; None if it does not send them.
    attempts
        Number of requests sent.
    cost
        Cost in the currency of the prices; None if prices or counts are unknown.
    masked
        True if the reply contained the API key, which is masked in `text`.
    """

    text: str
    finish: str
    first_token: float
    total: float
    prompt_tokens: int | None
    audio_tokens: int | None
    new_tokens: int | None
    attempts: int
    cost: float | None = None
    masked: bool = False


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens: of text in the prompt, of the reply, and of audio in the prompt.

    If `audio` is None, audio costs as much as text.
    """

    prompt: float
    reply: float
    audio: float | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Prices | None:
        """Return the prices in `OPENAI_PRICE_IN`, `OPENAI_PRICE_OUT` and `OPENAI_PRICE_AUDIO`; None if none of them is
        set.

        Raises
        ------
        SettingsError
            A value is not a price, or one of the first two is missing.
        """
        given = {name: env[name] for name in _PRICES if env.get(name)}
        if not given:
            return None
        with suppress(ValueError):
            prices = [float(given[name]) if name in given else None for name in _PRICES]
            if None not in prices[:2] and all(price is None or 0 <= price < inf for price in prices):
                return cls(*prices)  # type: ignore[arg-type]
        shown = ", ".join(f"{name}={env.get(name, '')}" for name in _PRICES)
        raise SettingsError(f"{shown}: allowed: 0 or more per million tokens; set both {_PRICES[0]} and {_PRICES[1]}")

    def cost(self, prompt_tokens: int | None, audio_tokens: int | None, new_tokens: int | None) -> float | None:
        """Return the cost of one request, in the currency of the prices; None if a required count is unknown."""
        audio = 0 if self.audio is None else audio_tokens
        if prompt_tokens is None or new_tokens is None or audio is None:
            return None
        text = (prompt_tokens - audio) * self.prompt
        return (text + audio * (self.audio or 0.0) + new_tokens * self.reply) / 1e6


class EndpointError(Exception):
    """Raised if a request failed and will not be tried again; the message contains no secret."""


class _BadReplyError(Exception):
    """Raised if the server's answer contains no complete reply, or reports an error.

    Attributes
    ----------
    status
        The HTTP status; 0 if the reply's stream breaks off, is invalid or does not end.
    code
        The protocol's error code, such as `insufficient_quota`, or "".
    """

    def __init__(self, text: str, status: int = 0, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.code, self.headers = status, code, headers or {}


class _ForeignError(_BadReplyError):
    """Raised if the answer is no stream of chat completions: the server, or the address, is of another kind."""


class _TooLongError(_BadReplyError):
    """Raised if the reply is much longer than the requested number of tokens. A retry would give the same reply."""


_FAULTS = (_BadReplyError, httpx2.HTTPError, OSError, ValueError)
"""Errors after which a request is worth a retry, unless `_raise_if_final` raises an error."""


@dataclass
class Endpoint:
    """A client of one model behind one endpoint; several threads may use it at once.

    If the server asks to wait (`Retry-After`), the requests of all threads wait. At the end of a `with` block, the
    client cancels the requests in flight, and refuses new requests until the next `with` block.

    Attributes
    ----------
    model, url, key
        The server's name for the model, the address up to `/v1`, and the bearer token ("" sends none).
    attempts
        Maximum number of requests for one reply.
    limit_s
        Time limit in seconds of an attempt, from connecting to the end of the reply.
    prices
        None if unknown; then answers have no cost.
    sleep
        Function that waits a number of seconds before an attempt.
    given_up
        Number of chats in a row that failed in all of their attempts.
    trouble
        Reason for the most recent failure; cleared by the next success.
    via
        Host of the proxy, or "".
    """

    model: str
    url: str
    key: str = field(repr=False)
    attempts: int = _ATTEMPTS
    limit_s: float = _LIMIT_S
    prices: Prices | None = None
    sleep: Callable[[float], Awaitable[object]] = field(default=asyncio.sleep, repr=False)
    given_up: int = field(default=0, init=False)
    trouble: str = field(default="", init=False)
    via: str = field(default="", init=False)
    _not_before: float = field(default=0.0, init=False, repr=False)
    _answered: bool = field(default=False, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)
    _running: set[Future[Any]] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        """Load certificates, proxy settings and whatever else would slow the first timed request."""
        self._loop = _loop()
        proxy = proxy_of(self.url)
        self.via = (urlsplit(proxy).hostname or "") if proxy else ""
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json", "User-Agent": "audiomarathon"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        # A new client for each request: latencies include the connection; no cookie or stale connection is reused.
        self._client = partial(
            httpx2.AsyncClient,
            headers=headers,
            verify=_trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            proxy=proxy,
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            trust_env=False,  # else .netrc could supply a key, and requests to this machine could use a proxy
        )
        self._client()

    @classmethod
    def from_env(cls, model: str, env: Mapping[str, str] | None = None) -> Endpoint:
        """Return a client for `model`, with the address, key and prices that the env vars set.

        The env vars are `OPENAI_BASE_URL`, `OPENAI_API_KEY` and those of :meth:`Prices.from_env`.

        Raises
        ------
        SettingsError
            The model's name, the key or a usable address is missing, or a price is invalid. The message shows no
            address or key, which may contain a secret.
        """
        env = os.environ if env is None else env
        url, key = _read_url(env), env.get("OPENAI_API_KEY", "").strip()
        if not model or not model.isprintable():
            raise SettingsError("openai: name the model, as in --model-path gpt-4o-audio-preview (or MODEL_PATH=…)")
        if not key.isascii() or not key.isprintable():
            raise SettingsError("OPENAI_API_KEY must be printable ASCII; copy the key again (it is not shown here)")
        if key and not is_secret(key):
            advice = "fine for a placeholder; a secret key should have 16 or more random letters and digits"
            warn(f"OPENAI_API_KEY is short or made of plain words, so replies that contain it are not masked; {advice}")
        if not key and url == DEFAULT_URL:
            raise SettingsError("OPENAI_API_KEY is not set; set it, or set OPENAI_BASE_URL to your own endpoint")
        return cls(model, url, key, prices=Prices.from_env(env))

    @property
    def host(self) -> str:
        """The server's host and port, without path or secret."""
        return urlsplit(self.url).netloc

    def __enter__(self) -> Self:
        self._stopped, self.given_up = False, 0
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stopped = True
        for request in list(self._running):
            request.cancel()

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, max_new_tokens: int, seed: int | None = None, **extra: Any
    ) -> Answer:
        """Send a conversation and return the model's reply.

        Parameters
        ----------
        messages
            In the protocol's form: `{"role": "user", "content": "…"}`; a content may be a list of parts, such as
            `{"type": "input_audio", "input_audio": {"data": <base64>, "format": "wav"}}`.
        max_new_tokens
            Sent as `max_tokens`; it also limits the reply's characters, for servers that ignore it.
        extra
            Further fields of the request, such as `response_format`, `top_p` or `temperature` (0 if not given). Fields
            that are None are left out. Replies are always streamed.

        Raises
        ------
        EndpointError
            This request cannot succeed or has failed in all attempts, or the client was stopped. Or the server withheld
            the reply (content filter), or put all tokens into another field, such as `reasoning_content`.
        ModelError
            Every request would fail: a wrong key, model or address, or a server that speaks another protocol.
        """
        fields = {"max_tokens": max_new_tokens, "temperature": 0, "seed": seed} | extra
        request = {"model": self.model, "messages": messages, **{k: v for k, v in fields.items() if v is not None}}
        body = json.dumps(request | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        return self._run(self._chat(body, max_new_tokens))

    def models(self) -> list[str]:
        """Return the names of the models that the endpoint lists, with only one attempt.

        Raises
        ------
        EndpointError, ModelError
            The endpoint does not return such a list.
        """
        return self._run(self._models())

    def _run(self, request: Coroutine[Any, Any, _T]) -> _T:
        """Run a request on the event loop that all threads share, and return its result.

        Raises
        ------
        EndpointError
            Another thread has left the client's `with` block.
        """
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        self._running.add(future)
        try:
            if self._stopped:  # check after adding the request; else neither this line nor `__exit__` may cancel it
                future.cancel()
            return future.result()
        except CancelledError:
            raise EndpointError("stopped") from None
        finally:
            self._running.discard(future)
            future.cancel()  # Ctrl-C may have ended the wait

    async def _chat(self, body: bytes, max_new_tokens: int) -> Answer:
        reason = ""
        for attempt in range(1, self.attempts + 1):
            await self._wait(attempt)
            try:
                reply = await self._reply(body, max_new_tokens)
            except _FAULTS as error:
                self._raise_if_final(error, f"{self.host} refuses {self.model}")
                self.trouble = reason = self.clean(error)
                if isinstance(error, _TooLongError):
                    self.given_up += 1
                    raise EndpointError(f"{reason}; the server ignores max_tokens={max_new_tokens}") from None
                asked = _seconds(getattr(error, "headers", {}).get("Retry-After"))
                self._not_before = max(self._not_before, time.monotonic() + min(_LONGEST_WAIT, asked))
            else:
                self._answered, self.given_up, self.trouble = True, 0, ""
                return self._answer(reply, attempt)
        self.given_up += 1
        raise EndpointError(f"{reason} ({self.attempts} attempts)")

    async def _wait(self, attempt: int) -> None:
        """Wait before an attempt: longer after each failure, and at least as long as the server asked for.

        A wait that the server asked of one thread holds for all threads.
        """
        backoff = 0.0 if attempt == 1 else min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 2)) * random.uniform(0.5, 1)
        asked = (self._not_before - time.monotonic()) * random.uniform(1.0, 1.25)  # spreads the threads' requests
        if max(backoff, asked) > 0:
            await self.sleep(max(backoff, asked))

    def _raise_if_final(self, error: Exception, refusal: str) -> None:
        """Raise an error if a retry cannot succeed; else return, and the caller tries again.

        `refusal` is the beginning of the message if the server would refuse every request.
        """
        if _is_certificate(error):
            raise ModelError(f"{self.host}: {self.clean(error)}") from None
        if _is_foreign(error) and not self._answered:  # later it may be a gateway's page about a fault
            no_http = "" if isinstance(error, _ForeignError) else "without valid HTTP: "
            raise ModelError(
                f"{self.host} answers /chat/completions {no_http}{self.clean(error)}; expected chat completions as a "
                f"stream (text/event-stream); use a server that streams replies, and {_URL_HINT}"
            ) from None
        if not isinstance(error, _BadReplyError) or not error.status:
            return
        status = error.status
        if status == 401:  # the server's message often quotes the key
            reason = "refuses OPENAI_API_KEY" if self.key else "requires a key, and OPENAI_API_KEY is not set"
            raise ModelError(f"{self.host} {reason} (401)") from None
        if 300 <= status < 400:
            to = self.clean(error.headers.get("Location", "").partition("?")[0])
            raise ModelError(f"{self.host} redirects to {to[:99]!r}, which is not followed: {_URL_HINT}") from None
        if error.code in _HOPELESS_CODES or (status in _HOPELESS and not (status == 403 and self._answered)):
            hint = f"; {_URL_HINT}" if status in (404, 405) and not self.url.endswith("/v1") else ""
            raise ModelError(f"{refusal}: {self.clean(error)}{hint}") from None
        if status not in _AGAIN and status < 500:
            raise EndpointError(self.clean(error)) from None

    def _answer(self, reply: _Reply, attempt: int) -> Answer:
        text = self._masked(reply.text)
        prompt, new = _count(reply.usage, "prompt_tokens"), _count(reply.usage, "completion_tokens")
        audio = _count(reply.usage.get("prompt_tokens_details"), "audio_tokens")
        if why := reply.lost(new or 0):
            raise EndpointError(why)
        return Answer(
            text=text,
            finish="refusal" if reply.refused else self._masked(_one_line(reply.finish)),
            first_token=reply.first,
            total=reply.last,
            prompt_tokens=prompt,
            audio_tokens=audio,
            new_tokens=new,
            attempts=attempt,
            cost=self.prices.cost(prompt, audio, new) if self.prices else None,
            masked=text != reply.text,
        )

    async def _reply(self, body: bytes, max_new_tokens: int) -> _Reply:
        """Send the request once, and return the streamed reply. Errors after the reply's end are ignored."""
        begin, reply = time.perf_counter(), _Reply(max(MAX_REPLY, max_new_tokens * _CHARACTERS_A_TOKEN))
        most_bytes = _BYTES + max_new_tokens * _BYTES_A_TOKEN
        try:
            async with self._response("POST", "/chat/completions", body) as (response, limit):
                async for data in _events(response, most_bytes):
                    reply.take(data, time.perf_counter() - begin)
                    if reply.finish:
                        limit.reschedule(min(limit.when() or 0.0, self._loop.time() + _AFTERWARDS_S))
        except (_BadReplyError, httpx2.HTTPError):
            if not reply.finish:
                raise
        if not reply.finish and reply.odd and not reply.choices:
            raise _ForeignError(f"with events that have no 'choices', such as {_quoted(reply.odd)}")
        if not reply.finish:
            raise _BadReplyError("the reply broke off" if reply.last else "the stream ended without a reply")
        return reply

    async def _models(self) -> list[str]:
        try:
            async with self._response("GET", "/models") as (response, _limit):
                kind, content = response.headers.get("Content-Type"), await _beginning(response)
            listed = _json(content.decode(errors="replace"), f"expected JSON, got {kind}")
            if not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
                raise _BadReplyError("the response is not a list of models")
        except _FAULTS as error:
            self._raise_if_final(error, f"{self.host} lists no models")
            raise EndpointError(self.clean(error)) from None
        names = [row.get("id") for row in listed["data"] if isinstance(row, dict)]
        return [self._masked(_one_line(name)) for name in names if isinstance(name, str)]

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, body: bytes | None = None
    ) -> AsyncIterator[tuple[httpx2.Response, asyncio.Timeout]]:
        """Send a request; yield (response, its time limit). A status other than 200 is an error."""
        try:
            async with (
                asyncio.timeout(self.limit_s) as limit,
                self._client() as client,
                client.stream(method, self.url + path, content=body) as response,
            ):
                if response.status_code != 200:
                    text, code = _message_and_code((await _beginning(response)).decode(errors="replace"))
                    text = text.strip() or httpx2.codes.get_reason_phrase(response.status_code)
                    raise _BadReplyError(text, response.status_code, code, response.headers)
                yield response, limit
        except TimeoutError:
            raise _BadReplyError(f"no complete reply within {self.limit_s:g} s") from None

    def clean(self, error: Exception | str) -> str:
        """Return an error or a text as one line, with `***` in place of parts of the key, which servers may quote."""
        text, kind = unquote(str(error)), type(error).__name__
        if isinstance(error, _BadReplyError):
            text = f"{error.status} {text}" if error.status else text
        elif isinstance(error, Exception):
            text = (f"{kind}: {text}" if text else kind) + (f" (through the proxy {self.via})" if self.via else "")
        return without_key(_one_line(text), self.key)[:300]

    def _masked(self, text: str) -> str:
        """Return a text with `***` in place of the API key, if the key is certainly a secret; parts of the key stay."""
        return text.replace(self.key, "***") if is_secret(self.key) else text


@cache
def _trusted(*_places: str | None) -> ssl.SSLContext:
    """Return the certificates that servers are checked with; cached, since loading takes 30 ms.

    The arguments are the values of `SSL_CERT_FILE` and `SSL_CERT_DIR`: if they change, certificates are loaded again.
    """
    return ssl.create_default_context()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that all requests of this process share; it runs in a separate thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http requests", daemon=True).start()
    asyncio.run_coroutine_threadsafe(anyio.lowlevel.checkpoint(), loop).result()  # load the backend
    return loop


@dataclass
class _Reply:
    """The part of a streamed reply that has arrived so far.

    `most` is the limit on its characters. `pieces` has the text's length after each piece, and the seconds from the
    attempt's start to the piece; `last` is the seconds to the last piece. `usage` has the token counts as the server
    sent them. `refused` says that the text is a refusal, and `elsewhere` names the field to which the server sent
    tokens instead of to the text. `choices` tells whether an event of the protocol has arrived, and `odd` is the first
    event of another kind.
    """

    most: int
    choices: bool = False
    odd: str = ""
    text: str = ""
    finish: str = ""
    refused: bool = False
    elsewhere: str = ""
    pieces: list[tuple[int, float]] = field(default_factory=list)
    last: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, data: str, now: float) -> None:
        """Add an event of the stream to the reply; `now` is its time since the attempt's start.

        Raises
        ------
        _BadReplyError
            The event reports an error, or is invalid.
        """
        event = _json(data, f"with an event that is not JSON: {_quoted(data)}")
        try:
            self.choices |= "choices" in event
            self.odd = self.odd or ("" if {"choices", "usage", "error"} & event.keys() else data)
            if event.get("error"):
                message, code = _message_and_code(data)
                raise _BadReplyError(f"the server reports {message}", _status(code), code)
            if isinstance(event.get("usage"), dict):
                self.usage = event["usage"]
            for choice in event.get("choices") or ():
                if "text" in choice and not {"delta", "message"} & choice.keys():  # a completion, not of a chat
                    raise TypeError
                delta = choice.get("delta") or choice.get("message") or {}
                text, refusal = _text(delta.get("content")), _text(delta.get("refusal"))
                self.refused = not text and (self.refused or (bool(refusal) and not self.text))
                self.elsewhere = self.elsewhere or _elsewhere(delta)
                if text := text or refusal:
                    self.text += text
                    self.pieces.append((len(self.text), now))
                    if len(self.text) > self.most:
                        raise _TooLongError(f"a reply of more than {self.most:,} characters")
                finish = _text(choice.get("finish_reason"))
                if finish in _GONE_WRONG:
                    raise _BadReplyError(f"the server did not finish the reply ({finish})")
                self.finish = finish or self.finish
                self.last = now
        except (AttributeError, TypeError):
            raise _ForeignError(f"with a malformed event: {_quoted(data)}") from None

    @property
    def first(self) -> float:
        """Seconds to the piece that begins the visible text; if there is no such text, to the last piece."""
        begin = begin_of_text(self.text)
        return self.last if begin is None else next(now for length, now in self.pieces if length > begin)

    def lost(self, new_tokens: int) -> str:
        """Return why generated tokens gave no reply, with a remedy; "" if there is no problem.

        A reply that the token limit cut before its text began still counts as a reply.
        """
        if self.text.strip() or self.finish == "length":
            return ""
        if self.finish == "content_filter":
            return "the server's content filter withheld the reply (content_filter); change the filter's settings"
        if self.elsewhere in _TOOLS:
            return f"the reply is empty, and the server sent {self.elsewhere}; serve the model without tools"
        if self.elsewhere or new_tokens > _END_TOKENS:
            count = f"{new_tokens:,} tokens were" if new_tokens else "its text was"
            where = f"sent as {self.elsewhere}" if self.elsewhere else "generated"
            advice = "raise MAX_NEW_TOKENS, or turn off thinking or the reasoning parser of the server"
            return f"the reply is empty, but {count} {where}; {advice}"
        if self.finish.lower() in _WITHHELD:
            return f"the server withheld the reply (finish_reason {self.finish}); its documentation says why"
        return ""


def _elsewhere(delta: Mapping[str, Any]) -> str:
    """Return the name of the field, other than the text, into which the server put content of a reply's piece.

    An example is `reasoning_content`; "" if there is none.
    """
    content = delta.get("content")
    if isinstance(content, list) and any(part.get("type") != "text" for part in content):
        return "parts that are not text"
    return next((name for name in _OTHER_FIELDS if delta.get(name)), "")


async def _events(response: httpx2.Response, most_bytes: int) -> AsyncIterator[str]:
    """Yield the data of each server-sent event in a response, up to the event `[DONE]`."""
    kind = response.headers.get("Content-Type", "")
    if not kind.lower().startswith("text/event-stream"):
        _refuse(kind, (await _beginning(response)).decode(errors="replace"))
    begun = bytearray()

    async def noted() -> AsyncIterator[bytes]:
        async for piece in _bounded(response, most_bytes):
            begun.extend(piece[: _NOTED - len(begun)])
            yield piece

    bounded = httpx2.Response(200, headers={"Content-Type": kind}, content=noted(), request=response.request)
    bounded.encoding = "utf-8-sig"  # some servers send a byte order mark
    async for event in httpx2.EventSource(bounded, max_event_size=None):
        if event.data.strip() == "[DONE]":
            return
        if event.data:
            yield event.data
    if begun.strip() and not _FIELD.search(begun):
        raise _ForeignError(f"with a stream that has no events: {_quoted(begun.decode(errors='replace'))}")


def _refuse(kind: str, body: str) -> NoReturn:
    """Raise an error for an answer that is not a stream of a chat's reply; `kind` is its content type, `body` its text.

    Some gateways report an error with the status 200, and put the true status into the body.
    """
    message, code = _message_and_code(body)
    if status := _status(code):
        raise _BadReplyError(message, status, code)
    raise _ForeignError(f"with {kind[:50] or 'no content type'}, not as a stream: {_quoted(body)}")


def _status(code: str) -> int:
    """Return an error's code as an HTTP status; 0 if the code is not a status."""
    return int(code) if re.fullmatch("[45][0-9][0-9]", code) else 0


def _is_foreign(error: Exception) -> bool:
    """Tell whether an error means that the server speaks another protocol than HTTP with chat completions."""
    illegal = isinstance(error, httpx2.RemoteProtocolError) and str(error).startswith(("illegal", "Receive buffer"))
    return illegal or isinstance(error, _ForeignError)


def _quoted(text: str) -> str:
    return repr(text.strip()[:_NOTED]) if text.strip() else "nothing"


async def _beginning(response: httpx2.Response) -> bytes:
    """Return the body of a response that is not streamed, such as an error; at most about 1 MiB of it."""
    content = bytearray()
    with suppress(_BadReplyError):
        async for piece in _bounded(response, _BYTES):
            content += piece
    return bytes(content)


async def _bounded(response: httpx2.Response, most_bytes: int) -> AsyncIterator[bytes]:
    """Yield a response's decompressed bytes; the limit applies to compressed and to decompressed bytes.

    httpx2 could decompress too, but it accepts nested encodings, and does not count bytes that decompress to nothing.

    Raises
    ------
    _BadReplyError
        There are more bytes than `most_bytes`, or they cannot be decompressed.
    """
    coding = response.headers.get("Content-Encoding", "").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise _ForeignError(f"with Content-Encoding {coding[:50]!r}; allowed: none, gzip or deflate")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if coding not in ("", "identity") else None
    unpacked = 0
    async for piece in response.aiter_raw():
        try:
            content = unpack.decompress(piece, most_bytes + 1 - unpacked) if unpack else piece
        except zlib.error as error:
            raise _ForeignError(f"with Content-Encoding {coding}: {error}") from None
        unpacked += len(content)
        yield content
        if max(response.num_bytes_downloaded, unpacked) > most_bytes:
            raise _TooLongError(f"more than {most_bytes:,} bytes, which is too long for the requested reply")


def _json(text: str, complaint: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise _ForeignError(f"{complaint} (nested too deeply)") from None
    except ValueError:
        is_cut = text.lstrip().startswith("{")  # perhaps the end is missing
        raise (_BadReplyError if is_cut else _ForeignError)(complaint) from None


def _text(content: Any) -> str:
    """Return the text of `content`, a field of a reply, which some servers send as a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError
    return content or ""


def _message_and_code(body: str) -> tuple[str, str]:
    """Return (message, code) from the body of an error, in any of the formats that servers use."""
    try:
        content = json.loads(body)
        error = content.get("error") or content if isinstance(content, dict) else content
        if isinstance(error, dict):
            return str(error.get("message") or error.get("detail") or body)[:2000], str(error.get("code") or "")
        return str(error)[:2000], ""
    except (ValueError, RecursionError):
        return body[:2000], ""


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _seconds(retry_after: str | None) -> float:
    """Return how many seconds a `Retry-After` header asks to wait, given as seconds or a date; 0 if it is invalid."""
    try:
        return max(0.0, float(retry_after or 0))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(str(retry_after)).timestamp() - time.time())
    except (ValueError, OverflowError):  # not a date, or out of range
        return 0.0


def _is_certificate(error: BaseException | None) -> bool:
    """Tell whether an error means that this machine does not trust the server's certificate."""
    return error is not None and (isinstance(error, ssl.SSLCertVerificationError) or _is_certificate(error.__context__))


def _read_url(env: Mapping[str, str]) -> str:
    """Return the endpoint's address from the env vars, after checking it and its proxy.

    Error messages show no part that may be secret.
    """
    url = (env.get("OPENAI_BASE_URL") or DEFAULT_URL).strip().rstrip("/")
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https"):
        raise SettingsError("OPENAI_BASE_URL is not a usable address; set one such as http://localhost:8000/v1")
    if "@" in parts.netloc:
        raise SettingsError("OPENAI_BASE_URL contains a user or password; put the key into OPENAI_API_KEY instead")
    if parts.query or parts.fragment:
        raise SettingsError(f"OPENAI_BASE_URL contains a query (?) or fragment (#); set one such as {DEFAULT_URL}")
    proxy = proxy_of(url)
    proxy_parts = _parts(proxy) if proxy else None
    if proxy and (proxy_parts is None or proxy_parts.scheme != "http"):
        kind = f" names a proxy of the kind {proxy_parts.scheme!r}" if proxy_parts else ""
        raise SettingsError(f"{parts.scheme}_proxy{kind}: set an http:// address, such as http://proxy:3128")
    return url


def _parts(url: str) -> SplitResult | None:
    """Split an address into scheme, host, port and path (`urlsplit`); None if no request can be sent to it."""
    try:
        httpx2.URL(url)
        parts = urlsplit(url)
        usable = parts.hostname and parts.port != 0 and url.isascii() and url.isprintable() and " " not in url
    except (ValueError, httpx2.InvalidURL):
        return None
    return parts if usable else None


def proxy_of(url: str) -> str | None:
    """Return the proxy that env vars name for an address; None if there is none, or if the address is this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    named = getproxies().get(parts.scheme)
    if not named or _is_this_machine(host) or proxy_bypass(host):
        return None
    return named if "://" in named else f"http://{named}"


def _is_this_machine(host: str) -> bool:
    """Tell whether a host name or address means this machine, in any spelling.

    No name server is asked, since it may be unreachable.
    """
    name = host.rstrip(".").lower()
    if name in (*_LOCAL, socket.gethostname().lower()) or name.endswith(".localhost"):
        return True
    try:
        kind, *_, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        address = ip_address(str(place[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_loopback or address.is_unspecified:
            return True
        with socket.socket(kind, socket.SOCK_DGRAM) as route:
            route.connect(place)  # sends nothing; a route to this machine's own address starts at that address
            return bool(route.getsockname()[0] == place[0])
    except (OSError, ValueError):  # a name, or an address without a route
        return False


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def is_secret(key: str) -> bool:
    """Tell whether an API key is certainly a secret: 16 characters or more, and not made of plain words.

    Replies are masked only for such keys. `lm-studio` or `recording-studio-2024` may be right answers. A key is made of
    words if 40 % of its letters and digits begin a frequent pair of letters. This is true for 99 % of keys of two to
    four English words, for 0.1 % of random keys, and for 3 % of random keys of 16 lower-case letters.
    """
    pieces = _PIECE.findall(key)
    frequent = sum(piece[at : at + 2].lower() in _PAIRS for piece in pieces for at in range(len(piece) - 1))
    return len(key) >= _SECRET_LENGTH and len(set(key)) > 2 and 5 * frequent < 2 * sum(map(len, pieces))


def without_key(text: str, key: str) -> str:
    """Return a text with `***` in place of every part of the API key that is long enough to be secret."""
    size = min(_KEY_SHOWN + 1, len(key))
    parts = {key[start : start + size] for start in range(len(key) - size + 1)} - {""}
    hidden = {at + place for at in range(len(text)) if text[at : at + size] in parts for place in range(size)}
    blank = "".join("\0" if at in hidden else character for at, character in enumerate(text))
    return re.sub("\0+", "***", blank) if hidden else text
