"""A model behind an OpenAI-compatible endpoint, against a real server process that misbehaves in every way they do."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile
from endpoint_server import KEY

from audiomarathon.errors import MethodError, ModelError, SettingsError
from audiomarathon.evaluation.run import run
from audiomarathon.models.openai_endpoint import Endpoint, EndpointError, _wav
from audiomarathon.models.prompt import Prompt
from audiomarathon.pruning.registry import get_method
from audiomarathon.settings import RunSettings


@contextmanager
def serving(**options: float) -> Iterator[str]:
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    script = Path(__file__).parent / "endpoint_server.py"
    server = subprocess.Popen([sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    finally:
        server.kill()
        server.wait()


def told(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url) as reply:
        content: dict[str, int] = json.load(reply)
    return content


def client(url: str, key: str = KEY, model: str = "tiny", **options: Any) -> Endpoint:
    return Endpoint(model, url, key, **{"sleep": lambda _seconds: None, **options})


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-0.1, 0.1, 1600).astype(np.float32)


def ask(endpoint: Endpoint, seed: int = 0, text: str = "What is it?") -> Any:
    return endpoint.ask(Prompt(text, (noise(seed),)), max_new_tokens=16, seed=1)


def crc(wav: str) -> str:
    return f"{zlib.crc32(base64.b64decode(wav)):08x}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


class TestAsking:
    def test_the_audio_arrives_and_the_reply_comes_back(self, url: str) -> None:
        answer = ask(client(url), 3)
        assert answer.text == crc(_wav(noise(3)))
        assert (answer.finish, answer.attempts) == ("stop", 1)
        assert (answer.prompt_tokens, answer.audio_tokens, answer.new_tokens) == (100, 25, 8)
        assert 0 < answer.first_token <= answer.total

    def test_first_token_comes_before_the_last(self) -> None:
        with serving(slow=0.2) as slow:
            answer = ask(client(slow))
        assert 0.2 <= answer.first_token < answer.total - 0.15

    @pytest.mark.parametrize(("key", "model"), [("wrong-key-987654", "tiny"), (KEY, "another")])
    def test_what_every_request_would_meet_ends_the_run(self, url: str, key: str, model: str) -> None:
        with pytest.raises(ModelError, match=f"refuses {model}") as caught:
            ask(client(url, key, model))
        assert key not in str(caught.value)

    def test_a_request_that_is_refused_is_not_repeated(self, url: str) -> None:
        with pytest.raises(EndpointError, match="too long"):
            ask(client(url), text="too long")

    def test_nobody_there(self) -> None:
        waits: list[float] = []
        with pytest.raises(EndpointError, match="3 attempts"):
            ask(client("http://127.0.0.1:9/v1", attempts=3, sleep=waits.append))
        assert len(waits) == 2
        assert 0.25 <= waits[0] <= 0.5 < waits[1] * 2 <= 2.0

    def test_a_storm_is_sat_out(self) -> None:
        with serving(faults=0.7) as stormy:
            answers = [ask(client(stormy, attempts=60), seed) for seed in range(40)]
        assert [answer.text for answer in answers] == [crc(_wav(noise(seed))) for seed in range(40)]
        assert sum(answer.attempts for answer in answers) > 60

    def test_all_threads_wait_when_the_server_asks_to(self) -> None:
        waits: list[float] = []
        endpoint = client("http://127.0.0.1:9/v1", sleep=waits.append)
        endpoint._pause(1, "429", "3")
        endpoint._wait_for_the_others()
        assert 3.0 <= waits[0] <= 3.75
        assert waits[1] == pytest.approx(waits[0], abs=0.5)


class TestSettings:
    @pytest.mark.parametrize(
        ("env", "model", "message"),
        [
            ({"OPENAI_BASE_URL": "ftp://x"}, "m", "allowed is an address"),
            ({"OPENAI_BASE_URL": "http://me:secret@x/v1"}, "m", "holds a password"),
            ({"OPENAI_BASE_URL": "http://x/v1"}, "", "say which model"),
            ({}, "m", "OPENAI_API_KEY is not set"),
        ],
    )
    def test_what_is_missing_is_said(self, env: dict[str, str], model: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message) as caught:
            Endpoint.from_env(model, env)
        assert "secret" not in str(caught.value)

    def test_an_endpoint_of_ones_own_needs_no_key(self) -> None:
        assert Endpoint.from_env("m", {"OPENAI_BASE_URL": "http://x/v1"}).host == "x"

    def test_the_key_is_nowhere_in_its_repr(self) -> None:
        assert KEY not in repr(client("http://x/v1"))


def a_task(root: Path, samples: int) -> Path:
    """TAU's folder with so many short clips, each another noise."""
    folder = root / "tau"
    (folder / "audio").mkdir(parents=True)
    options = {
        f"choice_{letter}": text for letter, text in zip("abcd", ("Airport", "Bus", "Metro", "Park"), strict=True)
    }
    rows = []
    for number in range(samples):
        soundfile.write(folder / "audio" / f"{number}.wav", noise(number), 16000)
        rows.append(
            {"path": f"audio/{number}.wav", "scene_label": "bus", "question": "Where?", "answer_gt": "B"} | options
        )
    (folder / "acoustic_scene_task_meta.json").write_text(json.dumps(rows))
    return root


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_env: Callable[[str, str], None]) -> Callable[..., Any]:
    def go(address: str, samples: int = 5, **settings: Any) -> Any:
        no_env("OPENAI_BASE_URL", address)
        no_env("OPENAI_API_KEY", KEY)
        monkeypatch.setattr("audiomarathon.models.openai_endpoint._FIRST_WAIT", 0.001)
        data = tmp_path / "data" if (tmp_path / "data").exists() else a_task(tmp_path / "data", samples)
        given = {"data": str(data), "results": tmp_path / "results", "model_path": "tiny"} | settings
        (result,) = run(["tau"], "openai", RunSettings.read({}, **given), progress=False)
        return result

    return go


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


class TestRuns:
    def test_a_timed_run_asks_one_by_one(self, go: Callable[..., Any], no_env: Callable[[str, str], None]) -> None:
        no_env("OPENAI_PRICE_IN", "2.5")
        no_env("OPENAI_PRICE_OUT", "10")
        with serving(slow=0.02) as address:
            result = go(address)
            assert told(address)["most_in_flight"] == 1
        assert (result.summary["n"], result.summary["unparsed"], result.summary["errors"]) == (5, 5, 0)
        latency = result.summary["timing"]["first_token_latency_s"]["p50"]
        assert 0.02 <= latency <= result.summary["timing"]["total_latency_s"]["p50"]
        assert result.summary["cost"] == pytest.approx(5 * (100 * 2.5 + 8 * 10) / 1e6)
        assert result.folder.parts[-2:] == ("tiny", "base-0")

    def test_the_key_is_in_no_file(self, go: Callable[..., Any], url: str) -> None:
        folder = go(url).folder
        assert all(KEY not in file.read_text() for file in folder.iterdir() if file.is_file())

    @pytest.mark.slow
    def test_a_thousand_requests_under_faults_are_answered_once_each(self, go: Callable[..., Any]) -> None:
        before = psutil.Process().memory_info().rss
        with serving(faults=0.3) as address:
            result = go(address, samples=1000, timing=False, batch_size=16)
            assert told(address)["requests"] == 1000
            assert 2 <= told(address)["most_in_flight"] <= 16
        lines = records(result.folder)
        assert Counter(line["id"] for line in lines).most_common(1)[0][1] == 1
        assert len(lines) == result.summary["n"] == 1000
        assert {line["reply"] for line in lines} == {crc(_wav(noise(number))) for number in range(1000)}
        assert psutil.Process().memory_info().rss - before < 150e6

    def test_goes_on_where_it_stopped(self, go: Callable[..., Any], url: str, tmp_path: Path) -> None:
        result = go(url)
        file = result.folder / "samples.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
        before = told(url)["requests"]
        assert go(url).summary["n"] == 5
        assert told(url)["requests"] - before == 3

    def test_a_failed_request_is_an_error_record(self, go: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("audiomarathon.models.openai_endpoint.Endpoint.attempts", 2)
        with serving(faults=1.0) as address:
            result = go(address, samples=3)
        assert result.summary["errors"] == 3
        assert all("EndpointError" in line["error"] for line in records(result.folder))

    def test_a_broken_clip_is_an_error_record(self, go: Callable[..., Any], url: str, tmp_path: Path) -> None:
        data = a_task(tmp_path / "data", 3)
        (data / "tau" / "audio" / "1.wav").write_bytes(b"no sound")
        summary = go(url).summary
        assert (summary["n"], summary["errors"]) == (2, 1)

    def test_pruning_is_refused(self, tmp_path: Path, no_env: Callable[[str, str], None]) -> None:
        no_env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        settings = RunSettings.read({}, data=str(a_task(tmp_path, 1)), model_path="tiny", results=tmp_path / "r")
        with pytest.raises(MethodError, match="nothing of a model behind an endpoint can be pruned"):
            list(run(["tau"], "openai", settings, [get_method("dart", 0.5)]))
