"""Any model behind an OpenAI-compatible chat endpoint that takes audio: closed models, and served ones (vLLM).

Nothing of the model is seen but its replies, so nothing can be pruned, and times are what a client sees: to the first
streamed token, and to the last.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import httpx2
import soundfile

from audiomarathon.endpoint.access import DEFAULT_URL, proxy_of, read_key, read_url, without_key
from audiomarathon.endpoint.chat_stream import BrokenReplyError, Reply, StatusError, Wire
from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.models.prompt import Prompt, Waveform

SAMPLING_RATE = 16_000
_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0  # seconds
_LIMIT_S = 600.0  # of one request
_AGAIN = (408, 409, 425, 429)  # and all from 500
_HOPELESS = (401, 402, 403, 404, 405)  # for every sample alike
_HOPELESS_CODES = ("insufficient_quota", "unsupported_parameter", "unsupported_value")
_URL_HINT = "OPENAI_BASE_URL is the address up to and with /v1"
FAULTS = (BrokenReplyError, httpx2.HTTPError, OSError, ValueError)
"""What may befall a request of which another may do better."""


@dataclass(frozen=True)
class Answer:
    """One reply, and what a client can tell of it.

    Attributes
    ----------
    finish
        In the server's words: `stop`, `length` when the token limit cut it, `content_filter`, …
    first_token, total
        Seconds from the start of the request that succeeded to its first and to its last piece of text.
    prompt_tokens, audio_tokens, new_tokens
        As the server counts them; None where it does not say.
    attempts
        Requests that it took.
    masked
        Whether the model repeated the key or a part of it; `***` stands there in `text`.
    """

    text: str
    finish: str
    first_token: float
    total: float
    prompt_tokens: int | None
    audio_tokens: int | None
    new_tokens: int | None
    attempts: int
    masked: bool = False


class EndpointError(Exception):
    """One request failed for good; the message holds no secret."""


@dataclass
class Endpoint:
    """A client of one model behind one endpoint; may be used by several threads at once.

    When the server asks to wait (429 with `Retry-After`), all threads wait. As a context manager it ends whatever is on
    its way when the block is left.

    Attributes
    ----------
    given_up
        Samples in a row that failed in spite of all attempts.
    trouble
        Why the last attempt that failed did; "" once another is answered.
    """

    model: str
    url: str
    key: str = field(repr=False)
    attempts: int = _ATTEMPTS
    limit_s: float = _LIMIT_S
    sleep: Callable[[float], object] | None = field(default=None, repr=False)
    given_up: int = field(default=0, init=False)
    trouble: str = field(default="", init=False)
    _not_before: float = field(default=0.0, init=False, repr=False)
    _answered: bool = field(default=False, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        """Make what sends requests."""
        self.wire = Wire(self.url, self.key, self.limit_s)

    def __enter__(self) -> Self:
        self.wire.stopped.clear()
        self.given_up = 0
        return self

    def __exit__(self, *_exc: object) -> None:
        self.wire.stop()

    @classmethod
    def from_env(cls, model: str, env: Mapping[str, str] | None = None) -> Endpoint:
        """Read `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

        Raises
        ------
        SettingsError
            When the model's name, the key, or a usable address is missing; no value is shown, it may be a secret.
        """
        env = os.environ if env is None else env
        url = read_url(env)
        if not model or not model.isprintable():
            raise SettingsError("openai: say which model: --model-path gpt-4o-audio-preview (MODEL_PATH=…)")
        key = read_key(env)
        if not key and url == DEFAULT_URL:
            raise SettingsError("OPENAI_API_KEY is not set; OPENAI_BASE_URL names an endpoint of your own")
        return cls(model, url, key)

    @property
    def host(self) -> str:
        """Where the requests go, without path or secret."""
        return urlsplit(self.url).netloc

    def ask(self, prompt: Prompt, *, max_new_tokens: int, seed: int) -> Answer:
        """Return the reply to a prompt.

        Raises
        ------
        EndpointError
            When this request fails for good, or too often.
        ModelError
            When every further request would fail alike: a wrong key, model or address.
        """
        return self.send(self.request(prompt, max_new_tokens=max_new_tokens, seed=seed), max_new_tokens)

    def request(self, prompt: Prompt, *, max_new_tokens: int, seed: int) -> bytes:
        """Return what asks for the reply to a prompt."""
        content = {
            "model": self.model,
            "messages": [{"role": "user", "content": list(_content(prompt))}],
            "max_tokens": max_new_tokens,
            "temperature": 0,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(content).encode()

    def send(self, request: bytes, max_new_tokens: int) -> Answer:
        """Return the reply to what :meth:`request` made; raises as :meth:`ask` does."""
        for attempt in range(1, self.attempts + 1):
            self._wait_for_the_others()
            try:
                reply = self.wire.chat(request, max_new_tokens)
            except StatusError as error:
                self._judge(error)
                self._pause(attempt, self.clean(error), error.headers.get("Retry-After"))
            except FAULTS as error:
                if _is_certificate(error):
                    raise ModelError(f"{self.host}: {self.clean(error)}") from None
                self._pause(attempt, self.clean(error), None)
            else:
                self._answered, self.given_up, self.trouble = True, 0, ""
                return self._answer(reply, attempt)
        raise AssertionError("the last attempt raises")

    def models(self) -> list[str]:
        """Return the models that the endpoint lists.

        Raises
        ------
        ModelError, BrokenReplyError, httpx2.HTTPError
            When it does not.
        """
        try:
            listed = self.wire.get("/models")
        except StatusError as error:
            self._judge(error, f"{self.host} lists no models")
            raise BrokenReplyError(self.clean(error)) from None
        rows = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(rows, list):
            raise BrokenReplyError("no list of models where one was expected")
        return [self.clean(row["id"]) for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

    def _answer(self, reply: Reply, attempt: int) -> Answer:
        details = reply.usage.get("prompt_tokens_details") if isinstance(reply.usage, dict) else None
        text = without_key(reply.text, self.key)
        return Answer(
            text=text,
            finish=self.clean(reply.finish),
            first_token=reply.last if reply.first is None else reply.first,
            total=reply.last,
            prompt_tokens=_count(reply.usage, "prompt_tokens"),
            audio_tokens=_count(details, "audio_tokens"),
            new_tokens=_count(reply.usage, "completion_tokens"),
            attempts=attempt,
            masked=text != reply.text,
        )

    def _judge(self, error: StatusError, refuses: str = "") -> None:
        """Raise unless another attempt may do better."""
        status = error.status
        if status == 401:  # what servers say of a key often quotes it
            what = "refuses OPENAI_API_KEY" if self.key else "wants a key, and OPENAI_API_KEY is not set"
            raise ModelError(f"{self.host} {what} (401)")
        if 300 <= status < 400:
            to = self.clean(error.headers.get("Location", "").partition("?")[0])
            raise ModelError(f"{self.host} redirects to {to[:99]!r}, which is not followed: {_URL_HINT}")
        if error.code in _HOPELESS_CODES or (status in _HOPELESS and not (status == 403 and self._answered)):
            hint = f"; {_URL_HINT}" if status in (404, 405) and not self.url.endswith("/v1") else ""
            raise ModelError(f"{refuses or f'{self.host} refuses {self.model}'}: {self.clean(error)}{hint}")
        if status not in _AGAIN and status < 500 and not refuses:
            raise EndpointError(self.clean(error))

    def _pause(self, attempt: int, reason: str, retry_after: str | None) -> None:
        """Wait before another attempt, longer each time and at random; the last one is not followed by any."""
        self.trouble = reason
        if attempt == self.attempts or self.wire.stopped.is_set():
            self.given_up += 1
            raise EndpointError(f"{reason} ({attempt} attempts)")
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        asked = _seconds(retry_after)
        if asked is not None:
            wait = max(wait, min(_LONGEST_WAIT, asked) * random.uniform(1.0, 1.25))
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + wait)
        self._sleep(wait)

    def _wait_for_the_others(self) -> None:
        with self._lock:
            wait = self._not_before - time.monotonic()
        if wait > 0:
            self._sleep(min(wait, _LONGEST_WAIT) * random.uniform(1.0, 1.25))  # not all at the same moment

    def _sleep(self, seconds: float) -> None:
        (self.sleep or self.wire.stopped.wait)(seconds)

    def clean(self, error: Exception | str) -> str:
        """Return an error as one line without the key, or any part of it, as servers quote them."""
        text, kind = unquote(str(error)), type(error).__name__
        if isinstance(error, StatusError):
            text = f"{error.status} {text}"
        elif isinstance(error, Exception) and not isinstance(error, BrokenReplyError):
            via = proxy_of(urlsplit(self.url))
            text = (f"{kind}: {text}" if text else kind) + (f" (by way of the proxy {via.hostname})" if via else "")
        return without_key(" ".join("".join(c if c.isprintable() else " " for c in text).split()), self.key)[:300]


def _is_certificate(error: BaseException | None) -> bool:
    """Whether a request failed since the server's certificate is not trusted here, as every further one would."""
    return error is not None and (isinstance(error, ssl.SSLCertVerificationError) or _is_certificate(error.__context__))


def _content(prompt: Prompt) -> Iterable[dict[str, Any]]:
    for clip in prompt.clips:
        yield {"type": "input_audio", "input_audio": {"data": _wav(clip), "format": "wav"}}
    yield {"type": "text", "text": prompt.text}


def _wav(clip: Waveform) -> str:
    """Return a clip as base64 of a 16-bit WAV."""
    stream = io.BytesIO()
    soundfile.write(stream, clip, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    return base64.b64encode(stream.getbuffer()).decode()


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _seconds(text: str | None) -> float | None:
    """Return how long a server asks to wait: in seconds, or until a date."""
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):  # no date, or one out of range
        return None
