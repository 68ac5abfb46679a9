"""Any model behind an OpenAI-compatible chat endpoint that takes audio: closed models, and served ones (vLLM).

Nothing of the model is seen but its replies, so nothing can be pruned, and times are what a client sees: to the first
streamed token, and to the last.
"""

from __future__ import annotations

import base64
import io
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import soundfile

from audiomarathon.errors import ModelError, SettingsError
from audiomarathon.models.loading import check_installed
from audiomarathon.models.prompt import Prompt, Waveform

SAMPLING_RATE = 16_000
DEFAULT_URL = "https://api.openai.com/v1"
_ATTEMPTS = 8
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0  # seconds
_TIMEOUT = 600.0


@dataclass(frozen=True)
class Answer:
    """One reply, and what a client can tell of it.

    Attributes
    ----------
    finish
        `stop`, or `length` when the token limit cut it.
    first_token, total
        Seconds from the request that succeeded to its first and to its last token.
    prompt_tokens, audio_tokens, new_tokens
        As the server counts them; None where it does not say.
    attempts
        Requests that it took.
    """

    text: str
    finish: str
    first_token: float
    total: float
    prompt_tokens: int | None
    audio_tokens: int | None
    new_tokens: int | None
    attempts: int


class EndpointError(Exception):
    """One request failed for good; the message holds no secret."""


@dataclass
class Endpoint:
    """A client of one model behind one endpoint; may be used by several threads at once.

    When the server asks to wait (429 with `Retry-After`), all threads wait.
    """

    model: str
    url: str
    key: str = field(repr=False)
    attempts: int = _ATTEMPTS
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    _not_before: float = field(default=0.0, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        """Make the connection pool."""
        check_installed("openai", "openai")
        import openai

        # Attempts are counted here, since a stream that breaks off half-way is to be tried again too.
        self._client = openai.OpenAI(base_url=self.url, api_key=self.key, max_retries=0, timeout=_TIMEOUT)

    @classmethod
    def from_env(cls, model: str, env: Mapping[str, str] | None = None) -> Endpoint:
        """Read `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

        Raises
        ------
        SettingsError
            When the model's name, the key, or a usable address is missing.
        """
        env = os.environ if env is None else env
        url = env.get("OPENAI_BASE_URL") or DEFAULT_URL
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"OPENAI_BASE_URL={url}: allowed is an address such as http://localhost:8000/v1")
        if parts.username or parts.password:
            raise SettingsError("OPENAI_BASE_URL holds a password: put the key into OPENAI_API_KEY instead")
        if not model:
            raise SettingsError("openai: say which model: --model-path gpt-4o-audio-preview (MODEL_PATH=…)")
        key = env.get("OPENAI_API_KEY", "")
        if not key and url == DEFAULT_URL:
            raise SettingsError("OPENAI_API_KEY is not set; OPENAI_BASE_URL names an endpoint of your own")
        return cls(model, url, key or "none")

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
        import openai

        message = {"role": "user", "content": list(_content(prompt))}
        for attempt in range(1, self.attempts + 1):
            self._wait_for_the_others()
            try:
                return self._stream(message, max_new_tokens, seed, attempt)
            except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
                raise ModelError(f"{self.host} refuses {self.model}: {self.clean(error)}") from None
            except openai.APIStatusError as error:
                if error.status_code not in (408, 409, 429) and error.status_code < 500:
                    raise EndpointError(self.clean(error)) from None
                self._pause(attempt, self.clean(error), error.response.headers.get("retry-after"))
            except (openai.APIError, _BrokenReplyError, OSError, ValueError) as error:
                self._pause(attempt, self.clean(error), None)
        raise AssertionError("the last attempt raises")

    def _stream(self, message: Mapping[str, Any], max_new_tokens: int, seed: int, attempt: int) -> Answer:
        begin = time.perf_counter()
        first: float | None = None
        texts: list[str] = []
        finish, usage = None, None
        chunks: Iterable[Any] = self._client.chat.completions.create(
            model=self.model,
            messages=[message],
            max_tokens=max_new_tokens,
            temperature=0,
            seed=seed,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in chunks:
            usage = getattr(chunk, "usage", None) or usage
            for choice in getattr(chunk, "choices", None) or ():
                text = getattr(choice.delta, "content", None) if choice.delta else None
                if text:
                    first = time.perf_counter() - begin if first is None else first
                    texts.append(str(text))
                finish = choice.finish_reason or finish
        if finish is None:
            raise _BrokenReplyError("the reply broke off")
        total = time.perf_counter() - begin
        details = getattr(usage, "prompt_tokens_details", None)
        return Answer(
            text="".join(texts),
            finish="length" if finish == "length" else "stop",
            first_token=total if first is None else first,
            total=total,
            prompt_tokens=getattr(usage, "prompt_tokens", None),
            audio_tokens=getattr(details, "audio_tokens", None),
            new_tokens=getattr(usage, "completion_tokens", None),
            attempts=attempt,
        )

    def _pause(self, attempt: int, reason: str, retry_after: str | None) -> None:
        """Wait before another attempt, longer each time and at random; the last one is not followed by any."""
        if attempt == self.attempts:
            raise EndpointError(f"{reason} ({attempt} attempts)")
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        asked = _seconds(retry_after)
        if asked is not None:
            wait = min(_LONGEST_WAIT, asked) * random.uniform(1.0, 1.25)
            with self._lock:
                self._not_before = max(self._not_before, time.monotonic() + wait)
        self.sleep(wait)

    def _wait_for_the_others(self) -> None:
        with self._lock:
            wait = self._not_before - time.monotonic()
        if wait > 0:
            self.sleep(min(wait, _LONGEST_WAIT))

    def clean(self, error: Exception) -> str:
        """Return an error as one line without the key."""
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return text.replace(self.key, "***") if len(self.key) > 4 else text


class _BrokenReplyError(Exception):
    """A stream that ended before the reply did."""


def _content(prompt: Prompt) -> Iterable[dict[str, Any]]:
    for clip in prompt.clips:
        yield {"type": "input_audio", "input_audio": {"data": _wav(clip), "format": "wav"}}
    yield {"type": "text", "text": prompt.text}


def _wav(clip: Waveform) -> str:
    """Return a clip as base64 of a 16-bit WAV."""
    stream = io.BytesIO()
    soundfile.write(stream, clip, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    return base64.b64encode(stream.getvalue()).decode()


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:  # a date, which servers of this protocol do not send
        return None
