"""Fixtures and helpers that many tests share: tiny random models of every family, and prompts for them.

Nothing here imports torch before a test asks for a model. The import takes seconds, even if pytest only starts workers.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import re
import runpy
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from families import FAMILIES, Family
from remembered import spare_transformers
from tqdm import tqdm
from tqdm.auto import tqdm as tqdm_auto
from typer.main import get_command
from typer.testing import CliRunner

from audiomarathon.cli.app import app
from audiomarathon.compression.method import Method
from audiomarathon.embedded import mini_benchmark
from audiomarathon.errors import MethodError
from audiomarathon.models.registry import get_model

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Prompt

with suppress(ImportError):  # `make test-gpu` runs without it
    from hypothesis import settings

    settings.register_profile("suite", deadline=None)  # a busy machine would exceed any deadline
    settings.load_profile("suite")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait for each other on a busy machine slow everything


_BEGUN = time.perf_counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ratio", action="store_true", help="print the tests' time ÷ that of a fixed loop")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the tests' time ÷ a fixed loop's time, a ratio comparable between machines of any speed or load."""
    if config.getoption("--ratio"):
        took, begin = time.perf_counter() - _BEGUN, time.perf_counter()
        sum(number * number % 7 for number in range(5_000_000))
        loop = time.perf_counter() - begin
        terminalreporter.write_line(f"tests took {took:.0f} s, {took / loop:.0f} times a fixed loop of {loop:.2f} s")


def generate_small(root: Path, generate: Callable[..., Path] = mini_benchmark.generate, **options: Any) -> Path:
    """Write a mini benchmark with one clip a task, and all clips of tau. With options, write what they ask for."""
    with pytest.MonkeyPatch.context() as patch:
        if not options:
            clips = mini_benchmark.CLIPS
            patch.setattr(mini_benchmark, "CLIPS", dict.fromkeys(clips, 1) | {"tau": clips["tau"]})
        return generate(root, **options)


@pytest.fixture(autouse=True, scope="session")
def own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests' certificates apart from the user's, and make tables as wide as in a pipe.

    Also save minutes of repeated work, with and without pytest workers. Build the command line once, not in each call.
    Do not wait until files are on the disk. Cache what transformers loads and computes (remembered.py). Look once for
    other busy programs, not five times. Write the mini benchmark with one clip a task, except for tau.
    """
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        patch.setenv("AUDIOMARATHON_CACHE", str(shared / "cache"))
        patch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it to 80
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        patch.setattr("soundfile.SoundFile.flush", lambda file: None)  # closing a file writes it anyway
        patch.setattr("os.fsync", lambda number: None)
        patch.setattr("audiomarathon.engine.environment._LOOKS", 1)
        patch.setattr("audiomarathon.engine.environment._LOOK_EVERY_S", 0)
        spare_transformers(patch)
        if not ALL:
            patch.setattr(mini_benchmark, "generate", generate_small)
        yield


@pytest.fixture(autouse=True, scope="module")
def frozen_heap() -> None:
    """Let the garbage collector search only the objects that a test file makes, not all imported modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # the default, every 700 new objects, takes 2 % of the tests' time


@pytest.fixture(autouse=True)
def fresh_lock() -> None:
    """Give every test a new tqdm lock that nobody holds.

    tqdm shares its lock with forked processes, and a killed process never releases it. Neither does a progress bar
    that fails while it is drawn (into a closed stream, say). The progress bars of transformers may use another lock.
    """
    for bar in (tqdm, tqdm_auto):
        bar.set_lock(threading.RLock())


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2.5-Omni of four layers in the hub's layout."""
    return FAMILIES[HOME].checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny-omni")


@pytest.fixture(scope="session")
def family_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a family's tiny checkpoint, built once a session."""
    return functools.cache(lambda key: FAMILIES[key].checkpoint(tmp_path_factory.mktemp("family") / f"tiny-{key}"))


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    """Each model family."""
    return FAMILIES[request.param]


@pytest.fixture(scope="session")
def loaded(family_checkpoint: Callable[[str], Path]) -> Callable[[str, str], AudioLM]:
    """Return a family's tiny model under an attention implementation; each is loaded once, for all test files."""
    return functools.cache(lambda key, attention: FAMILIES[key].load(family_checkpoint(key), attention))


@pytest.fixture(scope="session")
def family_lm(family: Family, loaded: Callable[[str, str], AudioLM]) -> AudioLM:
    """A tiny model of each family, under sdpa."""
    return loaded(family.key, "sdpa")


ALL = os.environ.get("AUDIOMARATHON_TESTS") == "all"
ATTENTION = [(key, how) for how in ("sdpa", "eager") for key in FAMILIES if ALL or get_model(key).folder]
#: `make test` tries every method on this family, and one method of each kind (KINDS) on the other families.
HOME, KINDS = "qwen2.5-omni-7b", ("base", "fast_v", "merge_adjacent", "snapkv", "composed")


def is_paired(item: pytest.Item) -> bool:
    """Return whether `make test` runs this pair of a family and a method. `make test-all` runs all pairs, for minutes.

    Every method runs on the family HOME under sdpa. The methods of KINDS (those with a layer only at layer 2) also run
    on HOME under eager attention and on the other families under sdpa. For these, a test file may define `ELSEWHERE`,
    which replaces KINDS.
    """
    values = getattr(getattr(item, "callspec", None), "params", {})
    if (values.get("either_lm"), values.get("case")) == ("eager", "long question"):
        return False  # test_method_references.py: not each prompt under each attention
    family, attention = values.get("any_lm", (HOME, values.get("either_lm", values.get("either", "sdpa"))))
    if (family, attention) == (HOME, "sdpa"):
        return True
    if family != HOME and attention == "eager":
        return False
    kinds = KINDS if family == HOME else getattr(item.module, "ELSEWHERE", KINDS)
    methods = [value for value in values.values() if isinstance(value, Method)]
    keys = {method.key for method in methods}
    keys |= {value.key for value in values.values() if isinstance(value, type) and issubclass(value, Method)}
    names = [value for name, value in values.items() if name in ("method", "name", "press") and isinstance(value, str)]
    keys |= {"composed" if "+" in name else name.partition(":")[0] for name in names}
    return keys <= {*kinds} and all(getattr(method, "layer", 2) == 2 for method in methods)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Import all test files without garbage collection, since the imported objects stay alive."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `long`, unless all tests are asked for. Run `real` and `gpu` tests only alone."""
    real, gpu = (os.environ.get("AUDIOMARATHON_TESTS") == kind for kind in ("real", "gpu"))
    kept = [item for item in items if ALL or (not item.get_closest_marker("long") and is_paired(item))]
    kept = [item for item in kept if bool(item.get_closest_marker("real")) is real]
    kept = [item for item in kept if bool(item.get_closest_marker("gpu")) is gpu]
    staying = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in staying])
    items[:] = kept


@pytest.fixture(scope="session", params=ATTENTION, ids="-".join)
def any_lm(request: pytest.FixtureRequest, loaded: Callable[[str, str], AudioLM]) -> AudioLM:
    """A tiny model of each family, under each attention implementation that a CPU has."""
    return loaded(*request.param)


@pytest.fixture(scope="session", params=["sdpa", "eager"])
def either_lm(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> AudioLM:
    """The tiny Qwen2.5-Omni, under each attention implementation that a CPU has."""
    return load_tiny(tiny_checkpoint, request.param)


@pytest.fixture(scope="session")
def lm(tiny_checkpoint: Path) -> AudioLM:
    """The tiny model under sdpa."""
    return load_tiny(tiny_checkpoint)


def load_tiny(checkpoint: Path, attn_implementation: str = "sdpa") -> AudioLM:
    return FAMILIES[HOME].load(checkpoint, attn_implementation)


def skip_unless_carried(lm: AudioLM, method: Method) -> None:
    """Skip a method that a model family refuses. The family's own tests check which methods it refuses."""
    try:
        method.check(lm)
    except MethodError as error:
        pytest.skip(str(error))


def noise(seconds: float, seed: int = 0, rate: int = 16000) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (0.1 * generator.standard_normal(round(seconds * rate))).astype(np.float32)


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Three prompts of unequal lengths; the first holds two clips, so its audio tokens lie in two spans."""
    from audiomarathon.models.prompt import Prompt

    return [
        Prompt("Which is it?\n\nA. cat\nB. dog", (noise(5.3, 1), noise(3.05, 2)), seed=11),
        Prompt("And now?", (noise(4.0, 3),), seed=12),
        Prompt("A longer question about a short clip, with many words in it", (noise(1.2, 4),), seed=13),
    ]


@pytest.fixture
def no_env(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Clear every setting from the environment; returns `setenv`."""
    from audiomarathon.settings import env_names

    for name in env_names():
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


@pytest.fixture
def times() -> Callable[[int, int], int]:
    """Return the first number, or the second in the long form of the drills (`make drills`)."""
    return lambda short, long: long if os.environ.get("AUDIOMARATHON_DRILLS") == "long" else short


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print what a drill did and saw (`make drills` shows it)."""
    return lambda line: print(f"\n  {request.node.name}: {line}", flush=True)  # noqa: T201


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a Python file as users start it, but in this process. Return its exit code, stdout and stderr."""

    def run(file: Path, *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(file), *map(str, arguments)])
        code = 0
        try:
            runpy.run_path(str(file), run_name="__main__")
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let certificates compare replies of 3 tokens instead of 8. Two decode steps are enough for these tests."""
    from audiomarathon.certify.bench import Bench

    for reply in (Bench.generate, Bench.reply, Bench.plain_reply):
        monkeypatch.setattr(reply, "__defaults__", (*(reply.__defaults__ or ())[:-1], 3))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty pictures, for tests of the files beside them. Drawing one picture takes half a second."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _figure, file: Path(file).touch())


def call(*arguments: object) -> tuple[int, str]:
    """Run a command and return its exit code and output. Raise any exception that a user would see as a traceback."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def succeed(*arguments: object) -> str:
    """Run a command that must succeed, and return its output."""
    code, output = call(*arguments)
    assert code == 0, output
    return output


def content_of(html: str) -> dict[str, Any]:
    """Return the data embedded in a report page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert match
    content: dict[str, Any] = json.loads(match[1])
    for sample in content["samples"]:  # as report.js reads them
        sample["replies"] = [reply | reply.pop("said") for reply in rows_of(content, sample["replies"])]
    return content


def rows_of(content: dict[str, Any], columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a page's rows, which it stores as distinct values."""
    rows = [dict[str, Any]() for _ in range(columns["n"])]
    for name, places in columns["places"].items():
        for row, place in enumerate(places if isinstance(places, list) else [places] * len(rows)):
            if place >= 0:
                rows[row][name] = content["values"][place]
    return rows
