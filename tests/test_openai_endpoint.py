"""A model behind an OpenAI-compatible endpoint, tested on a server process that misbehaves like real servers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import socket
import ssl
import string
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import numpy as np
import psutil
import pytest
import soundfile
from builders import records_in
from endpoint_server import KEY

from audiomarathon.cli import app as cli
from audiomarathon.cli.doctor_checks import examine_endpoint
from audiomarathon.compression.registry import get_method
from audiomarathon.endpoint import client as protocol
from audiomarathon.endpoint.client import Answer, Endpoint, EndpointError, Prices
from audiomarathon.engine.batches import Plan, heard
from audiomarathon.engine.remote import _wav, messages_of
from audiomarathon.engine.run import run
from audiomarathon.errors import MethodError, ModelError, SettingsError
from audiomarathon.models.prompt import Prompt
from audiomarathon.report import render, tables
from audiomarathon.report.page import PageOptions, page
from audiomarathon.report.page_data import PageData
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.folder import RunFolder
from audiomarathon.settings import RunSettings
from audiomarathon.text import flags_of


def told(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url) as reply:
        content: dict[str, int] = json.load(reply)
    return content


def client(url: str, key: str = KEY, model: str = "tiny", waits: list[float] | None = None, **options: Any) -> Endpoint:
    """Return a client that records its waiting times instead of waiting."""

    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    return Endpoint(model, url, key, **{"sleep": sleep, **options})


def attempts(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Set the default number of attempts of new endpoints; `__init__` stores the defaults of fields."""
    _eight, *others = Endpoint.__init__.__defaults__ or ()
    monkeypatch.setattr(Endpoint.__init__, "__defaults__", (count, *others))


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.1, 0.1, 1600).astype(np.float32)


def parts_of_key(text: str) -> list[str]:
    """Return the pieces of the API key that a text contains."""
    return [KEY[at : at + 6] for at in range(len(KEY) - 5) if KEY[at : at + 6] in text]


def ask(endpoint: Endpoint, seed: int = 0, text: str = "What is it?") -> Any:
    return endpoint.chat(messages_of(Prompt(text, (noise(seed),))), max_new_tokens=16, seed=1)


def say(endpoint: Endpoint, text: str, **fields: Any) -> Answer:
    """Chat without audio, as a judge does."""
    turns = [{"role": "system", "content": "Judge."}, {"role": "user", "content": text}]
    return endpoint.chat(turns, **{"max_new_tokens": 16, **fields})


def crc(wav: str) -> str:
    return f"{zlib.crc32(base64.b64decode(wav)):08x}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    script = Path(__file__).parent / "endpoint_server.py"
    server = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def serve(url: str) -> Callable[..., str]:
    """Return a function that opens another server with some options and returns its address."""

    def serve(**options: float) -> str:
        port = told(f"{url.removesuffix('/v1')}/new?{urlencode(options)}")["port"]
        return f"http://127.0.0.1:{port}/v1"

    return serve


READ = (
    "crlf", "byte order mark", "comments", "no space", "many lines", "message", "parts", "null first", "reasoning",
    "not done", "bytes", "chunks", "gzip", "deflate", "HTTP/1.0", "odd usage",
)  # fmt: skip
TOO_LONG = ".*; the server ignores max_tokens=16$"
Serve = Callable[..., str]
SetEnv = Callable[[str, str], None]


class TestAsking:
    def test_a_request_sends_audio_and_gets_the_reply_with_token_counts_and_times(self, url: str) -> None:
        answer = ask(client(url), 3)
        assert answer.text == crc(_wav(noise(3)))
        assert (answer.finish, answer.attempts) == ("stop", 1)
        assert (answer.prompt_tokens, answer.audio_tokens, answer.new_tokens) == (100, 25, 8)
        assert 0 < answer.first_token <= answer.total

    def test_the_first_token_time_is_before_the_end_of_a_slow_stream(self, serve: Serve) -> None:
        answer = ask(client(serve(slow=0.1)))
        assert 0.1 <= answer.first_token < answer.total - 0.07

    @pytest.mark.parametrize(
        ("pieces", "first"),
        [
            (("B", "é"), 0),
            (("<think>", "A?", "</think>", "\n\n", "B", "é"), 4),
            (("A?", "</th", "ink>B", "é"), 2),  # the prompt opened the thinking
            (("<|channel|>analysis<|message|>", "A?", "<|channel|>final", "<|message|>", "B", "."), 4),
            (("<think>", "A?"), 1),  # no text: the last piece counts
        ],
    )
    def test_the_first_token_time_is_that_of_the_first_token_after_thinking(self, pieces, first) -> None:
        reply = protocol._Reply(100)
        for at, piece in enumerate(pieces):
            reply.take(json.dumps({"choices": [{"delta": {"content": piece}}]}), float(at))
        assert reply.first == first

    @pytest.mark.parametrize("wish", READ)
    def test_every_stream_format_that_servers_use_is_read_as_the_same_reply(self, url: str, wish: str) -> None:
        answer = ask(client(url, attempts=1), text=wish)
        assert (answer.text, answer.finish, answer.prompt_tokens, answer.new_tokens) == ("Bé", "stop", None, None)
        assert 0 < answer.first_token <= answer.total

    @pytest.mark.parametrize(
        ("wish", "text", "finish"),
        [
            ("refusal", "No.", "refusal"),
            ("filter later", "B", "content_filter"),
            ("nothing", "", "stop"),
            ("thinking cut", "", "length"),
        ],
    )
    def test_an_empty_reply_is_not_an_error(self, url: str, wish: str, text: str, finish: str) -> None:
        answer = ask(client(url, attempts=1), text=wish)
        assert (answer.text, answer.finish) == (text, finish)

    @pytest.mark.parametrize(
        ("wish", "message"),
        [
            ("filter", "content filter withheld the reply"),
            ("thinking only", "40 tokens were sent as reasoning_content; raise MAX_NEW_TOKENS"),
            ("thinking in a message", "sent as reasoning;"),
            ("thinking in parts", "sent as parts that are not text"),
            ("tool call", "the server sent tool_calls; serve the model without tools"),
            ("unsafe", "withheld the reply .finish_reason SAFETY"),
            ("tokens without text", "empty, but 40 tokens were generated"),
            ("400 context_length_exceeded", "400 context_length_exceeded"),
            ("413 too large", "413 too large"),
            ("422 no", "422 no"),
            ("900,000 characters", f"a reply of more than 100,000 characters{TOO_LONG}"),
            ("2 MB", f"more than 1,114,112 bytes{TOO_LONG}"),
            ("endless", f"more than{TOO_LONG}"),
            ("endless line", f"more than{TOO_LONG}"),
            ("bomb", f"more than 131,072 bytes{TOO_LONG}"),
            ("bomb of events", f"more than 131,072 bytes{TOO_LONG}"),
        ],
    )
    def test_a_withheld_refused_or_endless_reply_is_an_error_without_a_retry(
        self, url: str, wish: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if wish.startswith("bomb"):  # a smaller limit takes less time
            monkeypatch.setattr("audiomarathon.endpoint.client._BYTES", 1 << 16)
        endpoint, before = client(url), told(url)["posts"]
        with pytest.raises(EndpointError, match=message):
            ask(endpoint, text=wish)
        assert told(url)["posts"] == before + 1
        assert endpoint.given_up == (TOO_LONG in message)

    @pytest.mark.parametrize(
        ("wish", "message"),
        [
            ("no choices", "the stream ended without a reply"),
            ("error inside", "the engine died"),
            ("hang up", "RemoteProtocolError"),
            ("cut event", "with an event that is not JSON"),
            ("heartbeats", "no complete reply within 0.1 s"),
            ("busy in json", "429 slow down"),
        ],
    )
    def test_an_incomplete_or_failed_reply_is_retried_and_then_an_error(self, url, wish, message) -> None:
        waits: list[float] = []
        limit = 0.1 if wish == "heartbeats" else 30.0
        with pytest.raises(EndpointError, match=rf"{message}.* \(2 attempts\)$"):
            ask(client(url, attempts=2, limit_s=limit, waits=waits), text=wish)
        assert len(waits) == 1

    @pytest.mark.parametrize(
        ("wish", "message"),
        [
            ("text for choices", "malformed event"),
            ("null for choices", "malformed event"),
            ("a number", "malformed event: '5'"),
            ("deep", "nested too deeply"),
            ("deep parts", "a malformed event|nested too deep"),
            ("odd finish", "a malformed event"),
            ("bomb in a bomb", "Content-Encoding 'gzip, gzip'"),
            ("no gzip", "Content-Encoding gzip: .*incorrect header"),
            ("no stream", 'application/json, not as a stream: \'{"choices"'),
            ("html", "text/html, not as a stream: '<html>.*Welcome"),
            ("html as a stream", "a stream that has no events: '<html>"),
            ("utf-16", "a stream that has no events"),
            ("another protocol", "events that have no 'choices', such as '{\"type\""),
            ("no chat", "a malformed event"),
            ("text in events", "an event that is not JSON: 'Hello'"),
            ("no type", "no content type"),
        ],
    )
    def test_a_server_that_sends_no_chat_stream_is_reported_without_a_retry(self, url, wish, message) -> None:
        """After an earlier answer it is retried, since it may be a gateway's page about a passing fault."""
        before = told(url)["posts"]
        with pytest.raises(ModelError, match=rf"^127.*{message}.*; expected chat completions as a stream.*[^\n]$"):
            ask(client(url), text=wish)
        assert told(url)["posts"] == before + 1
        known = client(url, attempts=2, waits=[])
        ask(known)
        with pytest.raises(EndpointError, match=r"\(2 attempts\)$"):
            ask(known, text=wish)

    def test_the_client_returns_a_finished_reply_though_the_server_keeps_the_stream_open(
        self, url: str, monkeypatch
    ) -> None:
        monkeypatch.setattr("audiomarathon.endpoint.client._AFTERWARDS_S", 0.1)
        answer = ask(client(url, attempts=1, limit_s=30.0), text="hang after")
        assert (answer.text, answer.finish) == ("Bé", "stop")
        assert answer.total < 20.0

    @pytest.mark.parametrize(
        ("wish", "message"),
        [
            ("404 no", "tiny: .*/v1"),
            ("402 pay", "tiny: .*402 pay"),
            ("403 no", "tiny: .*403 no"),
            ("429 insufficient_quota", "tiny: .*insufficient_quota"),
            ("a key refused", "OPENAI_API_KEY .*401"),  # the status is inside the stream
        ],
    )
    def test_an_http_error_that_would_hit_every_request_ends_the_run(self, url: str, wish: str, message: str) -> None:
        with pytest.raises(ModelError, match=f"refuses {message}"):
            ask(client(url.removesuffix("/v1")), text=wish)

    @pytest.mark.parametrize(
        ("key", "message"), [("wrong-key-987654", r"refuses OPENAI_API_KEY .*401"), ("", "OPENAI_API_KEY is not set")]
    )
    def test_a_wrong_or_missing_api_key_ends_the_run(self, url: str, key: str, message: str) -> None:
        with pytest.raises(ModelError, match=message):
            ask(client(url, key))

    def test_a_403_after_an_answered_request_fails_only_its_sample(self, url: str) -> None:
        ask(endpoint := client(url))
        with pytest.raises(EndpointError, match="403 flagged"):
            ask(endpoint, text="403 flagged")

    @pytest.mark.parametrize("wish", ["307 {elsewhere}/chat/completions", "302 http://[x"])
    def test_the_client_does_not_follow_a_redirect_of_the_server(self, url: str, serve: Serve, wish: str) -> None:
        elsewhere = serve()
        with pytest.raises(ModelError, match="which is not followed"):
            ask(client(url), text=wish.format(elsewhere=elsewhere))
        assert told(elsewhere)["posts"] == 0

    def test_importing_modules_does_not_add_to_the_measured_time_of_the_first_request(self) -> None:
        script = """
import sys, numpy
from audiomarathon.endpoint.client import Endpoint, EndpointError
reply, before = Endpoint._reply, set()
Endpoint._reply = lambda *given: (before.update(sys.modules), reply(*given))[1]
try:
    Endpoint("m", "http://127.0.0.1:9/v1", "", attempts=1).chat([], max_new_tokens=1, seed=1)
except EndpointError:
    print(sorted(set(sys.modules) - before))
"""
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert told.stdout == "[]\n"

    def test_an_endpoint_without_a_server_is_an_error_after_the_retries(self) -> None:
        waits: list[float] = []
        with pytest.raises(EndpointError, match="3 attempts"):
            ask(client("http://127.0.0.1:9/v1", attempts=3, waits=waits))
        first, second = waits
        assert 0.25 <= first <= 0.5 < second * 2 <= 2.0

    def test_certificates_from_ssl_cert_file_are_read_again_only_if_the_variable_changed(
        self, monkeypatch, tmp_path: Path
    ) -> None:
        real, read = ssl.create_default_context, list[str]()
        monkeypatch.setattr("ssl.create_default_context", lambda: (read.append(os.environ["SSL_CERT_FILE"]), real())[1])
        for name in ("first", "second", "second"):
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
            client("http://127.0.0.1:9/v1")
        assert read == [str(tmp_path / name) for name in ("first", "second")]

    def test_a_closed_client_ends_its_requests_and_refuses_new_ones(self, url: str) -> None:
        endpoint = client(url)
        with ThreadPoolExecutor() as pool, endpoint:
            before = told(url)["posts"]
            asked = pool.submit(ask, endpoint, text="heartbeats")
            while told(url)["posts"] == before:
                time.sleep(0.01)
            endpoint.__exit__()
            with pytest.raises(EndpointError, match="stopped"):
                asked.result()
            with pytest.raises(EndpointError, match="stopped"):
                ask(endpoint)
        with endpoint:
            assert ask(endpoint).attempts == 1

    def test_a_wait_that_the_server_asks_for_pauses_the_requests_of_all_threads(self, url: str) -> None:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            for _ in range(500):
                if len(waits) < 2:  # until the other thread waits too
                    await asyncio.sleep(0.01)

        with ThreadPoolExecutor() as pool:
            endpoint = client(url, attempts=2, sleep=sleep)
            refused = pool.submit(ask, endpoint, text="wait 30")
            while not waits:
                time.sleep(0.01)
            unaware = pool.submit(say, endpoint, "Well?")
            assert unaware.result().attempts == 1
            with pytest.raises(EndpointError, match="slow down"):
                refused.result()
        assert len(waits) == 2
        assert all(20.0 < wait <= 37.5 for wait in waits)

    @pytest.mark.parametrize(
        ("asked", "least", "most"),
        [
            *((asked, 1.0, 2.0) for asked in ("0", "-5", "nan", "soon", "Sun, 01 Nov 2020 00:00:00 GMT")),
            (f"Fri, 01 Jan {9**50} 00:00:00 GMT", 1.0, 2.0),
            *((asked, 59.0, 75.0) for asked in ("Fri, 01 Jan 2100 00:00:00 GMT", f"1{'0' * 30}", "1e400")),
        ],
    )
    def test_a_retry_waits_about_a_minute_at_most_whatever_the_retry_after_header_says(
        self, url: str, asked: str, least: float, most: float
    ) -> None:
        assert (protocol._seconds(asked) > 1e9) == (most > 59)
        waits: list[float] = []
        with pytest.raises(EndpointError, match="429 slow down"):
            ask(client(url, attempts=4, waits=waits), text=f"wait {asked}")
        assert len(waits) == 3
        assert least <= waits[-1] <= most


class TestRequestFields:
    def test_given_request_fields_reach_the_server_unchanged(self, url: str) -> None:
        form = {"type": "json_object"}
        sent = json.loads(say(client(url), "echo", seed=7, response_format=form, top_p=0.5).text)
        assert sent.pop("messages") == [{"role": "system", "content": "Judge."}, {"role": "user", "content": "echo"}]
        assert sent == {
            "model": "tiny", "max_tokens": 16, "temperature": 0, "seed": 7, "response_format": form, "top_p": 0.5,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip

    def test_default_request_fields_can_be_changed_and_left_out(self, url: str) -> None:
        fields = {"temperature": 0.7, "max_tokens": None, "max_completion_tokens": 16, "stream": False}
        sent = json.loads(say(client(url), "echo", **fields).text)
        assert (sent["temperature"], sent["max_completion_tokens"], sent["stream"]) == (0.7, 16, True)
        assert not {"max_tokens", "seed"} & sent.keys()

    def test_cost_is_known_only_if_prices_and_token_counts_are_known(self, url: str) -> None:
        assert say(client(url, prices=Prices(2.5, 10, 40)), "Well?").cost == pytest.approx(1267.5e-6)
        assert Prices(2.5, 10).cost(100, None, 8) == pytest.approx(330e-6)
        assert Prices(2.5, 10, 40).cost(100, None, 8) is None
        assert say(client(url, prices=Prices(2.5, 10)), "crlf").cost is None
        assert say(client(url), "Well?").cost is None


class TestKey:
    @pytest.mark.parametrize(
        "wish",
        [
            *(f"400 {{{form}}}" for form in ("key", "quoted", "part", "every")), f"400 {'x' * 280}{{key}}",
            "500 {key}", "500 {quoted}", "403 {part}", f"302 http://x/{KEY}",
        ],
    )  # fmt: skip
    def test_no_part_of_the_api_key_is_in_an_error_message(self, url: str, wish: str) -> None:
        endpoint = client(url, attempts=2)
        with pytest.raises((EndpointError, ModelError), match=r"\*\*\*") as caught:
            ask(endpoint, text=wish)
        assert parts_of_key(f"{caught.value} {endpoint.trouble}") == []
        assert caught.value.__cause__ is None

    def test_an_api_key_that_occurs_whole_in_a_reply_is_masked(self, url: str) -> None:
        answer = ask(client(url), text="the key")
        assert (answer.text, answer.masked, ask(client(url)).masked) == ("Bearer ***", True, False)
        assert say(client(url), "a part of the key").text == f"it ends in {KEY[8:]}"

    @pytest.mark.parametrize(
        ("text", "key", "left"),
        [
            ("a key k-123456789 b", "k-123456789", "a key *** b"),
            ("k-1234...6789", "k-123456789", "***...6789"),
            ("ab", "ab", "***"),
            ("none", "", "none"),
        ],
    )
    def test_without_key_removes_the_api_key_from_a_text(self, text: str, key: str, left: str) -> None:
        assert protocol.without_key(text, key) == left

    def test_an_api_key_is_masked_in_replies_only_if_it_looks_random(self) -> None:
        secret = [KEY, "sk-proj-" + "aB3xT9" * 8, "123e4567-e89b-12d3-a456-426614174000", "0a9f" * 8]
        secret += ["abcdXkqPzrtWvbnQ", "qxvkzjwpfhgtbdnm", "7305918264402957"]
        plain = ["", "k", "EMPTY", "none", "lm-studio", "sk-no-key-required", "a9f3c2", "0" * 32, "x" * 32]
        plain += ["recording-studio-2024", "RecordingStudio01", "lightning-strike"]
        assert [key for key in secret + plain if protocol.is_secret(key)] == secret
        rng = random.Random(1)
        for letters in (string.ascii_letters, string.ascii_letters + string.digits, string.digits):
            drawn = ["".join(rng.choices(letters, k=20)) for _ in range(500)]
            assert sum(map(protocol.is_secret, drawn)) > 490

    @pytest.mark.parametrize("key", ["lm-studio", "sk-no-key-required", "Bearer", "e", KEY])
    def test_masking_the_api_key_never_changes_ordinary_reply_text(self, serve: Serve, key: str) -> None:
        endpoint = client(serve(keyless=1), key)
        answer = say(endpoint, "Recording studio required, Bearer")
        assert (answer.text, answer.finish, answer.masked) == ("Recording studio required, Bearer", "stop", False)
        assert endpoint.models() == ["tiny", "other"]

    def test_an_api_key_too_simple_to_be_masked_in_replies_gives_a_warning(self, recwarn) -> None:
        Endpoint.from_env("m", {"OPENAI_API_KEY": KEY})
        assert not recwarn
        Endpoint.from_env("m", {"OPENAI_API_KEY": "lm-studio"})
        (warning,) = recwarn
        assert "OPENAI_API_KEY is short or made of plain words" in str(warning.message)
        assert "lm-studio" not in str(warning.message)

    def test_the_client_never_shows_its_api_key_in_its_repr(self) -> None:
        assert client("http://x/v1").clean(httpx2.ReadError("")) == "ReadError"
        assert KEY not in repr(client("http://x/v1"))

    def test_an_api_key_with_invalid_characters_is_refused_by_an_error_that_does_not_show_it(self) -> None:
        assert Endpoint.from_env("m", {"OPENAI_API_KEY": f" {KEY}\n"}).key == KEY
        for key in ("sk-se\ncret", "sk-sécret", "sk-se\x00cret"):
            with pytest.raises(SettingsError, match="OPENAI_API_KEY must be") as caught:
                Endpoint.from_env("m", {"OPENAI_API_KEY": key})
            assert "cret" not in str(caught.value)


class TestProxy:
    def test_requests_use_the_proxy_of_the_http_proxy_variable(self, url: str, no_env: SetEnv) -> None:
        no_env("http_proxy", url.removesuffix("/v1").replace("//", "//me:word@"))
        assert ask(client("http://model.invalid/v1"), 5).text == crc(_wav(noise(5)))

    def test_an_endpoint_on_this_machine_is_asked_without_the_proxy(self, url: str, no_env: SetEnv) -> None:
        no_env("http_proxy", "http://127.0.0.1:9")
        assert ask(client(url, attempts=1), 5).text == crc(_wav(noise(5)))
        anywhere = url.replace("127.0.0.1", "0.0.0.0")
        assert ask(client(anywhere, attempts=1), 5).text == crc(_wav(noise(5)))

    def test_only_addresses_of_this_machine_in_any_spelling_bypass_the_proxy(self, no_env: SetEnv) -> None:
        no_env("http_proxy", "http://127.0.0.1:9")
        cards = [address for card in psutil.net_if_addrs().values() for address in card]
        here = [address.address for address in cards if address.family == socket.AF_INET]
        here += [socket.gethostname(), "0.0.0.0", "127.1", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]", "[::1]"]
        here += ["[::]", "LOCALHOST.", "a.localhost"]
        elsewhere = ["192.0.2.7", "model.invalid", "[2001:db8::7]", "127.1.invalid"]
        assert [host for host in here + elsewhere if protocol.proxy_of(f"http://{host}:8000/v1")] == elsewhere

    def test_the_error_for_an_unreachable_proxy_hides_its_password(self, no_env: SetEnv) -> None:
        no_env("http_proxy", "http://me:password@127.0.0.1:9")
        with pytest.raises(EndpointError, match="proxy 127") as caught:
            ask(client("http://model.invalid/v1", attempts=1))
        assert "password" not in str(caught.value)

    def test_a_proxy_of_an_unsupported_kind_is_refused(self, no_env: SetEnv) -> None:
        for proxy, message in (
            ("socks5://127.0.0.1:9", "socks5"),
            ("http://me:word@192.168.1.300:80", "https_proxy: set"),
            ("http://[word", "https_proxy: set"),
        ):
            no_env("https_proxy", proxy)
            with pytest.raises(SettingsError, match=message) as caught:
                Endpoint.from_env("m", {"OPENAI_API_KEY": KEY})
            assert "word" not in str(caught.value)


class TestSettings:
    @pytest.mark.parametrize(
        ("url", "model", "message"),
        [
            ("ftp://x", "m", "is not a usable address"),
            ("htp://me:secret@x", "m", "is not a usable address"),
            ("http://[secret", "m", "is not a usable address"),
            ("http://x:secret/v1", "m", "is not a usable address"),
            ("http://192.168.1.300:8000/v1", "m", "is not a usable address"),
            ("http://me:secret@x/v1", "m", "contains a user or password"),
            ("http://x/v1?key=secret", "m", "contains a query"),
            ("http://x/v1", "", "name the model"),
            (None, "m", "OPENAI_API_KEY is not set"),
        ],
    )
    def test_a_wrong_or_missing_endpoint_setting_is_refused_without_showing_secrets(self, url, model, message) -> None:
        with pytest.raises(SettingsError, match=message) as caught:
            Endpoint.from_env(model, {"OPENAI_BASE_URL": url} if url else {})
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("url", ["http://x/v1", "http://x/v1/", " http://x/v1// "])
    def test_a_slash_at_the_end_of_the_base_url_is_dropped(self, url: str) -> None:
        assert Endpoint.from_env("m", {"OPENAI_BASE_URL": url}).url == "http://x/v1"


def a_task(root: Path, samples: int) -> Path:
    """Write TAU's folder with this many short clips, each of different noise."""
    (root / "tau" / "audio").mkdir(parents=True)
    row = {"scene_label": "bus", "question": "Where?", "answer_gt": "B"}
    row |= {"choice_a": "Airport", "choice_b": "Bus", "choice_c": "Metro", "choice_d": "Park"}
    for number in range(samples):
        soundfile.write(root / "tau" / "audio" / f"{number}.wav", noise(number), 16000)
    rows = [row | {"path": f"audio/{number}.wav"} for number in range(samples)]
    (root / "tau" / "acoustic_scene_task_meta.json").write_text(json.dumps(rows))
    return root


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_env: SetEnv) -> Callable[..., Any]:
    """Return a function that runs TAU at an address; questions come from `wishes`, and its last item repeats."""

    def go(address: str, samples: int = 5, wishes: Sequence[str] = (), **settings: Any) -> Any:
        no_env("OPENAI_BASE_URL", address)
        no_env("OPENAI_API_KEY", KEY)
        monkeypatch.setattr("audiomarathon.endpoint.client._FIRST_WAIT", 0.001)
        if wishes:
            texts = chain(wishes, repeat(wishes[-1]))

            def asked(*given: Any) -> Prompt:
                return Prompt(next(texts), heard(*given).clips)

            monkeypatch.setattr("audiomarathon.engine.remote.heard", asked)
        data = tmp_path / "data" if (tmp_path / "data").exists() else a_task(tmp_path / "data", samples)
        say = settings.pop("say", lambda _line: None)
        given = {"data": str(data), "results": tmp_path / "results", "model_path": "tiny"} | settings
        (result,) = run(["tau"], "openai", RunSettings.read({}, **given), say=say, progress=False)
        return result

    return go


def stored(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the records of the finished or unfinished run of `go`."""
    (file,) = (tmp_path / "results").rglob("samples.jsonl")
    return records_in(file.parent)


def long_clips(root: Path, samples: int, seconds: int = 4) -> set[str]:
    """Make a task's clips long, each at another constant level, and return the expected replies."""
    replies = set()
    for number in range(samples):
        clip = np.full(16000 * seconds, number / 32768, np.float32)
        soundfile.write(root / "tau" / "audio" / f"{number}.wav", clip, 16000, format="FLAC", subtype="PCM_16")
        replies.add(crc(_wav(clip)))
    return replies


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Yield a list that gets one number: the peak growth of the memory of Python's objects, arrays included."""
    most = [0]
    tracemalloc.start()
    try:
        yield most
        most[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestRuns:
    def test_a_timed_run_sends_only_one_request_at_a_time(self, go, serve, no_env) -> None:
        no_env("OPENAI_PRICE_IN", "2.5")
        no_env("OPENAI_PRICE_OUT", "10")
        address = serve(slow=0.02)
        result = go(address)
        summary = result.summary
        assert told(address)["most_in_flight"] == 1
        assert (summary["n"], summary["unparsed"], summary["errors"]) == (5, 5, 0)
        latency = summary["timing"]["first_token_latency_s"]["p50"]
        assert 0.02 <= latency <= summary["timing"]["total_latency_s"]["p50"]
        assert summary["cost"] == pytest.approx(5 * (100 * 2.5 + 8 * 10) / 1e6)
        assert result.folder.parts[-2:] == ("tiny-endpoint", "base-0")
        identity = json.loads((result.folder / "run.json").read_text())["identity"]
        assert (identity["attention"], identity["dtype"]) == ("as served", "as served")
        columns = {
            column.header: list(map(str, column.cells))
            for column in render.rich_table(tables.results([result])).columns
        }
        assert (columns["first token ms"], columns["cost"]) == ([f"{1000 * latency:.0f}"], ["0.00165"])
        assert "LLM prefill ms" not in columns
        html = page(PageData(read_systems([result.folder])), PageOptions(players="none", spectrograms=False))
        assert f"first token after {latency:.2f} s, whole reply after" in html

    def test_a_sample_whose_clip_was_replaced_during_the_run_is_an_error_record(
        self, go, url: str, tmp_path: Path, monkeypatch
    ) -> None:
        a_task(tmp_path / "data", 2)

        def heard_and_replaced(plan: Plan, sample: Any, rate: int) -> Prompt:
            prompt = heard(plan, sample, rate)
            for clip in (tmp_path / "data").rglob("*.wav"):
                if clip not in sample.clips:
                    clip.write_bytes(clip.read_bytes()[::-1])
            return prompt

        monkeypatch.setattr("audiomarathon.engine.remote.heard", heard_and_replaced)
        monkeypatch.setattr("audiomarathon.audio.decode.decode", lambda *_where: np.zeros(1600, np.float32))
        first, second = records_in(go(url, samples=2).folder)
        assert first["error"] is None
        assert "changed since the run began" in second["error"]

    @pytest.mark.parametrize("timing", [True, False])
    def test_only_timed_runs_record_the_latency_of_each_request(self, go, url: str, timing: bool) -> None:
        for record in records_in(go(url, samples=2, wishes=["echo"], timing=timing, seed=7).folder):
            assert json.loads(record["reply"])["seed"] == 7
            assert ("latency" in record) is timing

    @pytest.mark.parametrize("wish", ["400 {key} {quoted}", "500 {part}", "the key"])
    def test_the_api_key_is_in_no_file_and_no_output_line_whatever_the_server_answers(
        self, go: Callable[..., Any], url: str, wish: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
    ) -> None:
        attempts(monkeypatch, 2)
        folder = go(url, samples=2, wishes=[wish]).folder
        texts = [file.read_text() for file in folder.iterdir() if file.is_file()] + list(capfd.readouterr())
        assert parts_of_key("\n".join(texts)) == []
        assert all("***" in f"{record['reply']}{record['error']}" for record in records_in(folder))
        assert all(record.get("key_masked", False) == (record["error"] is None) for record in records_in(folder))

    def test_the_summary_counts_cut_empty_refused_and_filtered_replies(self, go, url: str) -> None:
        with pytest.warns(UserWarning, match=r"the token limit \(16\) cut replies before their text began"):
            flags = flags_of(go(url, wishes=["thinking cut", "refusal", "filter later", "the key", "filter"]).summary)
        counted = ["1 error", "3 unparsed", "1 cut", "1 empty", "1 refused", "1 filtered", "1 with the key masked"]
        assert flags == counted

    @pytest.mark.parametrize(
        ("wish", "warning", "cut"),
        [
            ("thinking unclosed", "no text after their thinking; turn off thinking", False),
            ("thinking alone", "no text after their thinking; turn off thinking", False),
            ("thinking unclosed and cut", r"the token limit \(16\) cut replies .* raise MAX_NEW_TOKENS", True),
        ],
    )
    def test_replies_that_hold_only_thinking_give_a_warning(self, go, url, wish, warning, cut) -> None:
        with pytest.warns(UserWarning, match=warning):
            flags = flags_of(go(url, samples=2, wishes=[wish]).summary)
        assert "2 empty" in flags
        assert ("2 cut" in flags) is cut

    def test_every_request_to_a_server_with_random_faults_gets_exactly_one_record(
        self, go: Callable[..., Any], url: str, serve: Serve, tmp_path: Path, monkeypatch, times
    ) -> None:
        count = times(60, 1000)
        # With the default of 8, one run of fifteen has a request that meets eight faults in a row.
        attempts(monkeypatch, 20)
        replies = long_clips(a_task(tmp_path / "data", count), count)
        # Exclude the memory that the first samples load and warm up.
        go(url, timing=False, batch_size=8, limit=10, results=tmp_path / "before")
        address = serve(faults=0.3)
        with peak_memory() as most:
            result = go(address, timing=False, batch_size=8)
        assert told(address)["answered"] == count
        assert 2 <= told(address)["most_in_flight"] <= 8
        lines = records_in(result.folder)
        assert Counter(line["id"] for line in lines).most_common(1)[0][1] == 1
        assert len(lines) == result.summary["n"] == count
        assert {line["reply"] for line in lines} == replies
        assert [line["id"] for line in lines] != sorted(line["id"] for line in lines)
        assert most[0] < 160e3 * count  # 110e3 with 8 in flight, 257e3 if all requests were held

    def test_a_revoked_key_ends_the_run_and_loses_no_record(self, go, serve, tmp_path: Path) -> None:
        address = serve(revoke=6)
        with pytest.raises(ModelError, match="refuses OPENAI_API_KEY"):
            go(address, samples=20, timing=False, batch_size=4)
        done = stored(tmp_path)
        assert len(done) >= 6
        assert all(line["error"] is None for line in done)
        before = told(f"{address.removesuffix('/v1')}/set?revoke=inf")["answered"]
        result = go(address, timing=False, batch_size=4)
        assert told(address)["answered"] == before + 20 - len(done)
        assert result.summary["n"] == 20

    def test_requests_in_flight_when_the_run_ends_are_waited_for(self, go, url: str, tmp_path, monkeypatch) -> None:
        asked = threading.Barrier(4)

        def chat(_endpoint: Endpoint, *_arguments: Any, **_options: Any) -> Answer:
            if asked.wait() == 0:
                raise ModelError("the key is refused")
            time.sleep(0.2)
            return Answer("B", "stop", 0.1, 0.2, None, None, None, 1, None)

        monkeypatch.setattr(Endpoint, "chat", chat)
        with pytest.raises(ModelError, match="the key is refused"):
            go(url, samples=4, timing=False, batch_size=4)
        assert [record["reply"] for record in stored(tmp_path)] == ["B"] * 3

    def test_ctrl_c_ends_requests_in_flight(self, go: Callable[..., Any], serve: Serve, tmp_path: Path) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

        def interrupt(address: str) -> None:
            while told(address)["answered"] < 8 or told(address)["in_flight"] < 4:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        address = serve(hang=8)
        thread = threading.Thread(target=interrupt, args=(address,))
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            go(address, samples=20, timing=False, batch_size=4)
        thread.join()
        assert told(address)["in_flight"] == 4  # the server still hangs, the client does not
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("endpoint")]
        assert len(stored(tmp_path)) >= 8

    @pytest.mark.parametrize("at_once", [1, 3])
    def test_ctrl_c_while_a_reply_is_stored_loses_no_record(self, go, serve, tmp_path, monkeypatch, at_once) -> None:
        append, calls = RunFolder.append, count(1)

        def interrupted(folder: RunFolder, record: Any) -> None:
            if next(calls) == 2:
                raise KeyboardInterrupt
            append(folder, record)

        monkeypatch.setattr(RunFolder, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(serve(), samples=6, timing=False, batch_size=at_once)
        assert len(stored(tmp_path)) >= 2

    def test_an_unreachable_server_ends_the_run(self, go: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        attempts(monkeypatch, 2)
        with pytest.raises(ModelError, match="run the same command again"):
            go("http://127.0.0.1:9/v1", samples=40)

    def test_the_reason_for_a_retry_is_printed_during_the_wait(self, go, monkeypatch, capsys) -> None:
        monkeypatch.setattr("audiomarathon.engine.remote._QUIET_S", 0.02)
        attempts(monkeypatch, 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("audiomarathon.endpoint.client.Endpoint._wait", lambda *_: asyncio.sleep(0.1))
            go("http://127.0.0.1:9/v1", samples=1, say=print)
        told = [line for line in capsys.readouterr().out.splitlines() if "retrying" in line]
        (line,) = told
        assert line.startswith("127.0.0.1:9: ConnectError: ")

    def test_a_failed_request_and_a_broken_clip_are_error_records(self, go, serve, tmp_path, monkeypatch) -> None:
        attempts(monkeypatch, 2)
        data = a_task(tmp_path / "data", 3)
        (data / "tau" / "audio" / "1.wav").write_bytes(b"no sound")
        result = go(serve(faults=1.0))
        assert result.summary["errors"] == 3
        errors = {line["id"]: line["error"].partition(":")[0] for line in records_in(result.folder)}
        assert errors == {f"audio/{n}.wav": "AudioError" if n == 1 else "EndpointError" for n in range(3)}

    def test_pruning_methods_are_refused_for_an_endpoint(self, tmp_path: Path, no_env: SetEnv) -> None:
        no_env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        settings = RunSettings.read({}, data=str(a_task(tmp_path, 1)), model_path="tiny", results=tmp_path / "r")
        with pytest.raises(MethodError, match="endpoint; allowed: base"):
            list(run(["tau"], "openai", settings, [get_method("dart", 0.5)]))

    def test_settings_of_local_models_are_refused_for_an_endpoint(self, go) -> None:
        local = {"device": "cpu", "dtype": "float16", "attn_implementation": "eager", "device_map": "auto"}
        for name, value in (local | {"decode_tokens": 8}).items():
            with pytest.raises(SettingsError, match=f"{name.upper()}={value}: "):
                go("http://127.0.0.1:9/v1", **{name: value})

    def test_invalid_prices_are_refused(self, go, no_env: SetEnv) -> None:
        no_env("OPENAI_PRICE_IN", "1")
        for value in ("-1", "nan", "inf", "much", ""):
            no_env("OPENAI_PRICE_OUT", value)
            with pytest.raises(SettingsError, match="million tokens"):
                go("http://127.0.0.1:9/v1")

    def test_the_results_folder_is_named_after_the_endpoint_model(self, go, url: str, tmp_path: Path) -> None:
        for model in ("org/name", "ft:a b:c", "a/..", "a/"):
            with pytest.raises(ModelError, match="refuses"):
                go(url, samples=1, model_path=model)
        names = {folder.name for folder in (tmp_path / "results" / "tau").iterdir()}
        assert names == {"name-endpoint", "ft-a-b-c-endpoint", "..-endpoint", "-endpoint"}


class TestDoctor:
    def examine(self, url: str, key: str = KEY, model: str = "tiny") -> tuple[str, bool]:
        findings = list(examine_endpoint(model, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}))
        text = "\n".join(f"{finding.text} {finding.remedy}" for finding in findings)
        assert not key or key not in text
        return text, any(finding.fatal for finding in findings)

    @pytest.mark.parametrize(
        ("key", "model", "message", "fatal"),
        [
            (KEY, "tiny", "the endpoint lists tiny", False),
            (KEY, "huge", "huge is not listed; the endpoint lists: tiny, other", False),
            (KEY, "", "no model is named; the endpoint lists: tiny, other", False),
            ("wrong-key-987654", "tiny", "refuses OPENAI_API_KEY", True),
            ("", "tiny", "requires a key", True),
            ("sk-\n1", "tiny", "must be printable ASCII", True),
        ],
    )
    def test_doctor_reports_the_models_of_the_endpoint_and_a_refused_api_key(
        self, url, key, model, message, fatal
    ) -> None:
        text, bad = self.examine(url, key, model)
        assert message in text
        assert bad == fatal
        for address in ("http://127.0.0.1:9/v1", "http://x:secret@y/v1"):
            text, bad = self.examine(address)
            assert "secret" not in text
            assert bad

    def test_the_doctor_command_examines_the_configured_endpoint(self, url: str, no_env, capsys) -> None:
        no_env("OPENAI_BASE_URL", url)
        no_env("OPENAI_API_KEY", KEY)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["audiomarathon", "doctor", "--model", "openai", "--model-path", "tiny"])
            with pytest.raises(SystemExit) as done:
                cli.main()
        assert (done.value.code or 0) == 0
        assert "answers, and accepts the key" in capsys.readouterr().out
