"""Decoding with a static step (`DECODE=graph`, not captured on a CPU) gives the results of transformers' loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import task_folders
import tiny_gemma3n
import torch
from builders import records_in
from conftest import ALL, HOME, KINDS, noise, skip_unless_carried
from families import FAMILIES
from torch.utils._python_dispatch import TorchDispatchMode

from audiomarathon.compression.composed import Composed
from audiomarathon.compression.external import Foreign
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.presses.snapkv import SnapKV
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.engine.engine import open_local
from audiomarathon.engine.run import run
from audiomarathon.errors import LogitsError
from audiomarathon.models import static_decode
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.busy import BusyClock
from audiomarathon.models.generation import Generation
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.timing import Clock
from audiomarathon.settings import EAGER, GRAPH, RunSettings

AT_LAYER = [get_method(method.key, 0.6, 2) for method in all_methods() if not isinstance(method, Base)]
JOINED = [get_method("frame:0.5+snapkv:0.4"), get_method("random:0.5+ada_snapkv:0.5", at="input")]
AT_INPUT = [replace(method, at="input") for method in AT_LAYER if method.key in ("frame", "merge_adjacent")]
METHODS = [Base(), *AT_LAYER, *JOINED, *AT_INPUT]
STATIC = [key for key in FAMILIES if key != "qwen3-omni"]
TOLERANCE = {"Gemma 3n": 5e-5}  # sparse layers enlarge float32 rounding; float64 results agree


def settings_of(method: Method) -> list[Method]:
    """Return a method at every place where it can act, at a low, a middle and a high ratio."""
    ratios = [replace(method, ratio=ratio) for ratio in (0.3, 0.6, 0.95)] if method.ratio else [method]
    if not isinstance(method, TokenPruner):
        return ratios
    placed = [replace(setting, layer=layer) for setting in ratios for layer in (0, 1, 2)]
    return [setting for setting in placed if setting.layer or not setting.scored] + (
        [] if method.scored else [replace(setting, at="input") for setting in ratios]
    )


def crossed() -> Iterator[Any]:
    """Yield each family with each method: `make test-all` runs all settings, batch sizes and end tokens.

    `make test` runs a method for each kind of cache: equal lengths, gaps, merged, ragged. The home family runs all
    methods above. Each pair takes the next setting, batch size and end, so that all occur in some pairs.
    """
    kinds = ("base", "fast_v", "merge_frame", "snapkv", "ada_snapkv", "composed")
    for family, key in enumerate(STATIC):
        for number, method in enumerate([Base(), *AT_LAYER, *JOINED]):
            windows = key == "gemma3n"  # Gemma 3n refuses other methods
            if windows and not isinstance(method, Base | TokenPruner):
                continue
            settings = [
                variant for variant in settings_of(method) if not windows or getattr(variant, "at", "layer") == "layer"
            ]
            usual = [variant for variant in settings if not windows or getattr(variant, "layer", 2) == 2]
            if not usual:  # a method for the tower only
                continue
            often, turn = key != HOME and method.key in kinds, family + number
            chosen = usual[turn % len(usual)], (1, 1, 3)[turn % 3], (None, 3, None, 1)[turn % 4]
            ways = [*product(settings, (1, 3), (None,)), *((method, 3, end) for end in (1, 3, 129))]
            for setting, batch, end in dict.fromkeys([chosen, *ways]):
                marks = () if often and (setting, batch, end) == chosen else pytest.mark.long
                ending = f"ends at {end}" if end else "goes on"
                yield pytest.param(
                    key, setting, batch, end, id=f"{key}, {setting.label}, {batch}, {ending}", marks=marks
                )


def reply(lm: AudioLM, prompts: Sequence[Prompt], method: Method, how: str = GRAPH, **options: Any) -> Generation:
    given = {"max_new_tokens": 5, "ignore_end": True, "keep_logits": True, **options}
    with patched_attribute(lm, "decode", how):
        return method.generate(lm, lm.prepare(prompts), **given)


def same(
    lm: AudioLM, prompts: Sequence[Prompt], method: Method, *, end: int | None = None, **options: Any
) -> tuple[Generation, Generation]:
    """Generate with the static step and eagerly, up to token `end` if given; check that both agree up to rounding."""
    done = []
    with encoder_shared(lm):
        for how in (GRAPH, EAGER):
            with ends_at(lm, end) if end else nullcontext():
                done.append(reply(lm, prompts, method, how, **{"ignore_end": not end, **options}))
    graph, eager = done
    assert (graph.stages.decode_setup is None, eager.stages.decode_setup) == (False, None)
    assert graph.replies == eager.replies
    assert not end or {(graph_reply.new_tokens, graph_reply.finish) for graph_reply in graph.replies} == {(end, "stop")}
    for row, generated in enumerate(graph.replies):  # after its end, a row of a batch has no meaning
        rows = (each.logits[: generated.new_tokens, row] for each in done)  # type: ignore[index]
        torch.testing.assert_close(*rows, atol=TOLERANCE.get(lm.title, 1e-5), rtol=0)
    return graph, eager


@pytest.fixture(scope="session")
def clip() -> list[Prompt]:
    return [Prompt("And now?", (noise(2.0, 3),), seed=12)]


@pytest.fixture(scope="session")
def clips(clip: list[Prompt]) -> list[Prompt]:
    two = Prompt("Who?", (noise(1.3, 1), noise(1.0, 2)), seed=11)
    return [*clip, two, Prompt("A longer question", (noise(1.2, 4),))]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
def test_every_method_gives_the_same_replies_in_static_and_eager_decode(
    either_lm: AudioLM, clips: list[Prompt], method: Method
) -> None:
    skip_unless_carried(either_lm, method)
    for batch in (clips[:1], clips) if ALL else (clips,):
        same(either_lm, batch, method, max_new_tokens=4)


@pytest.mark.parametrize(("key", "method", "batch", "end"), [*crossed()])
def test_every_method_on_every_family_gives_equal_replies_in_static_and_eager_decode(
    loaded: Callable[[str, str], AudioLM], clips: list[Prompt], key: str, method: Method, batch: int, end: int | None
) -> None:
    lm = loaded(key, "sdpa")
    skip_unless_carried(lm, method)
    same(lm, clips[:batch], method, end=end, max_new_tokens=131 if end == 129 else 4)


@pytest.mark.parametrize("key", STATIC)
def test_a_decode_step_never_synchronises_with_the_device(
    loaded: Callable[[str, str], AudioLM], clip: list[Prompt], key: str
) -> None:
    """No step copies a number from the device or to it, which a CUDA graph could not do."""
    seen = set[str]()
    step = static_decode._Step.__call__

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(op.overloadpacket.__name__)
            return op(*args, **(kwargs or {}))

    def watched(decode_step: Any) -> None:
        with Watching():
            step(decode_step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_decode._Step, "__call__", watched)
        reply(loaded(key, "sdpa"), clip, Base())
    assert "index_copy_" in seen
    assert not seen & {"_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "is_nonzero", "unique"}


@pytest.fixture(scope="module")
def windowed(family_checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], AudioLM]:
    """Load Gemma with a window of so many tokens, once for each; in float64, so that rounding hides nothing."""

    @functools.cache
    def load(window: int) -> AudioLM:
        folder = tiny_gemma3n.with_window(family_checkpoint("gemma3n"), tmp_path_factory.mktemp("windows"), window)
        lm = FAMILIES["gemma3n"].load(folder)
        lm.model.double()
        return lm

    return load


@pytest.mark.parametrize(
    ("window", "method"),
    [
        (20, Base()),
        (20, get_method("fast_v", 0.9, 2)),
        (tiny_gemma3n.SLIDING_WINDOW, get_method("fast_v", 0.9, 2)),
        pytest.param(tiny_gemma3n.SLIDING_WINDOW, Base(), marks=pytest.mark.long),
        pytest.param(20, Frame(0.6, layer=0), marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "label", value),
)
def test_sliding_windows_over_prompt_and_reply_give_the_logits_of_eager_decode(
    windowed: Callable[[int], AudioLM], clips: list[Prompt], window: int, method: Method, monkeypatch: Any
) -> None:
    """A window is counted in positions, also where a pruner left gaps."""
    monkeypatch.setattr(static_decode, "products", lambda query, key, scale=1.0: query @ key.mT * scale)
    monkeypatch.setattr(static_decode, "BLOCK", 16)
    graph, eager = same(windowed(window), clips[:2], method, max_new_tokens=24)
    torch.testing.assert_close(graph.logits, eager.logits, atol=1e-6, rtol=0)


def test_a_reply_longer_than_a_cache_block_equals_eager_decode(lm: AudioLM, clip: list[Prompt]) -> None:
    same(lm, clip, SnapKV(0.5), max_new_tokens=static_decode.BLOCK + 5)


@pytest.mark.parametrize(
    ("key", "method"),
    [
        pytest.param(
            key, method, id=f"{key}-{method.key}", marks=[] if key == HOME and method.key in KINDS else pytest.mark.long
        )
        for key, method in product(STATIC, AT_LAYER)
    ],
)
def test_logits_at_ratio_0_equal_those_of_base_bit_for_bit(
    loaded: Callable[[str, str], AudioLM], prompts: list[Prompt], key: str, method: Method
) -> None:
    lm = loaded(key, "sdpa")
    skip_unless_carried(lm, method)
    zero, base = (reply(lm, prompts, setting).logits for setting in (replace(method, ratio=0.0), Base()))
    assert torch.equal(zero, base)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [1, 3, 129])
def test_a_reply_and_its_decode_time_end_at_the_end_token(
    lm: AudioLM, clip: list[Prompt], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The step that runs before the end token is read counts neither as a token nor as time."""
    steps = counted(lm, monkeypatch)
    with ends_at(lm, at):
        done = reply(lm, clip, Base(), max_new_tokens=200, ignore_end=False)
    (generated,) = done.replies
    assert (generated.new_tokens, generated.finish, len(done.logits)) == (at, "stop", at)  # type: ignore[arg-type]
    assert done.stages.decode == at - 1
    assert at - 1 <= len(steps) <= at


def counted(lm: AudioLM, patch: pytest.MonkeyPatch) -> list[int]:
    """Let the model's clock count steps instead of seconds; return a list with an item for each step."""
    steps = list[int]()

    class Counting(Clock):
        def mark(self) -> float:
            return float(len(steps))

    step = static_decode._Step.__call__
    patch.setattr(static_decode._Step, "__call__", lambda decode_step: (steps.append(0), step(decode_step))[1])
    patch.setattr(lm, "clock", Counting())
    return steps


@contextmanager
def ends_at(lm: AudioLM, at: int) -> Iterator[None]:
    """Make token number `at`, from 1, of all replies the end token, which no reply has before."""
    end, calls = lm.model.config.get_text_config().vocab_size - 1, list[int]()

    def forced(_module: Any, _args: Any, logits: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        logits = logits.clone()
        logits[..., end] = 1e4 if len(calls) == at else -1e4
        return logits

    with pytest.MonkeyPatch.context() as patch, lm.lm_head.register_forward_hook(forced):
        patch.setattr(lm, "end_tokens", (end,))
        yield


def test_batched_replies_that_end_at_different_steps_equal_eager_decode(
    lm: AudioLM, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = reply(lm, prompts, Base(), EAGER, max_new_tokens=12).replies
    ends = {generated.token_ids[2 + 3 * row] for row, generated in enumerate(replies)}
    monkeypatch.setattr(lm, "end_tokens", tuple(ends))
    same(lm, prompts, Base(), max_new_tokens=12, ignore_end=False)


def test_nan_in_a_decode_step_raises_an_error_with_the_token(
    lm: AudioLM, clip: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = static_decode._Step.attend

    def broken(step: Any, module: Any, *args: Any, **options: Any) -> Any:
        states, weights = attend(step, module, *args, **options)
        return (states * torch.nan if int(step.at) == 2 else states), weights

    monkeypatch.setattr(static_decode._Step, "attend", broken)
    with pytest.raises(LogitsError, match="token 4 "):
        reply(lm, clip, Base())


class TestOnRecord:
    def test_decode_setup_time_is_recorded_for_timed_samples(
        self, tiny_checkpoint: Path, tmp_path: Path, no_env: Any
    ) -> None:
        runs = {how: run_of(tiny_checkpoint, tmp_path / how, decode=how, decode_tokens=5) for how in (GRAPH, EAGER)}
        for (row,), (other,) in zip(*(each["records"] for each in runs.values()), strict=True):
            assert row["time"]["decode_setup"] > 0 < row["forced_decode"]["decode_setup"]
            assert "decode_setup" not in {*other["time"], *other["forced_decode"]}
            assert row["reply"] == other["reply"]
        assert [any("stays eager" in line for line in each["said"]) for each in runs.values()] == [False, False]
        graph, eager = (each["timing"] for each in runs.values())
        assert graph["decode_setup_s"]["mean"] > 0
        assert "decode_setup_s" not in eager

    def test_decode_setup_time_is_recorded_for_a_batch(
        self, tiny_checkpoint: Path, tmp_path: Path, no_env: Any
    ) -> None:
        run_facts = run_of(tiny_checkpoint, tmp_path, decode=GRAPH, timing=False, batch_size=2, limit=2)
        assert all(row["batch"]["decode_setup"] > 0 for rows in run_facts["records"] for row in rows)


def run_of(checkpoint: Path, place: Path, **flags: Any) -> dict[str, Any]:
    """Run TAU with base and a press; return each setting's records, base's summary of times, and the messages."""
    task_folders.build_tau(place / "data" / "TAU")
    given = {"data": str(place / "data"), "model_path": str(checkpoint), "results": place / "out", **flags}
    settings, said = RunSettings.read({}, **{"limit": 1, "max_new_tokens": 5, "device": "cpu", **given}), list[str]()
    done = [*run(["tau"], HOME, settings, [Base(), SnapKV(0.5)], progress=False, say=said.append)]
    records = [records_in(result.folder) for result in done]
    return {"records": records, "said": said, "timing": done[0].summary["timing"]}


class TestEager:
    """Cases that decode eagerly and report it."""

    def test_a_model_family_without_static_decode_decodes_eagerly_and_says_why(
        self, family_checkpoint: Any, clip: list[Prompt], no_env: Any
    ) -> None:
        settings = RunSettings.read({}, model_path=str(family_checkpoint("qwen3-omni")), decode=GRAPH)
        said: list[str] = []
        lm = open_local("qwen3-omni", settings, [Base()], say=said.append).lm
        assert lm.why_eager
        assert f"decode stays eager: {lm.why_eager}" in said
        assert reply(lm, clip, Base()).stages.decode_setup is None

    def test_replies_limited_to_three_tokens_are_decoded_eagerly(self, lm: AudioLM, clip: list[Prompt]) -> None:
        setups = [reply(lm, clip, Base(), max_new_tokens=limit).stages.decode_setup for limit in (3, 4)]
        assert setups[0] is None
        assert setups[1] is not None

    def test_methods_that_override_engine_code_are_decoded_eagerly(self, lm: AudioLM, clip: list[Prompt]) -> None:
        class Hooked(Frame):
            def applied_to(self, *given: Any) -> Any:
                return super().applied_to(*given)

        class Choosing(Frame):
            def select(self, evidence: Any) -> Any:
                return torch.arange(evidence.n_keep)

        joined = Composed(first=Hooked(0.5), second=SnapKV(0.5))
        assert not any(method.decodes_statically for method in (Foreign(name="mine"), Hooked(0.5), joined))
        assert Choosing(0.5).decodes_statically
        assert reply(lm, clip, Foreign(name="mine")).stages.decode_setup is None

    def test_a_decoder_with_a_hook_stays_eager_with_a_warning(self, lm: AudioLM, clip: list[Prompt]) -> None:
        seen = list[int]()
        with lm.decoder_layers[1].register_forward_hook(lambda *_: seen.append(0)), pytest.warns(match="layers.1"):
            reply(lm, clip, Base())
        assert len(seen) == 5


def test_static_decode_leaves_the_model_unchanged_for_eager_decode(lm: AudioLM, clip: list[Prompt]) -> None:
    before = reply(lm, clip, Base(), EAGER)
    reply(lm, clip, get_method("frame:0.5+ada_snapkv:0.5"))
    assert not static_decode._ATTEND
    assert "forward" not in vars(lm.decoder.rotary_emb)
    assert torch.equal(before.logits, reply(lm, clip, Base(), EAGER).logits)  # type: ignore[arg-type]


class TestCapture:
    """A graph that differs from its step is detected, and decode goes on without it; here on a simulated GPU."""

    @pytest.fixture
    def captured(self, lm: AudioLM, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
        """Return a function that replaces the replay of a graph by a function of the step."""

        def feign(replay: Callable[[Any], None]) -> None:
            def capture(_lm: AudioLM, step: Any) -> tuple[Any, torch.Tensor]:
                step()
                return SimpleNamespace(replay=lambda: replay(step)), step.logits.clone()

            monkeypatch.setattr(static_decode, "_capturable", lambda _step: True)
            monkeypatch.setattr(static_decode, "_capture", capture)

        return feign

    def test_a_captured_graph_that_equals_the_eager_step_is_replayed(
        self, lm: AudioLM, clip: list[Prompt], captured: Any
    ) -> None:
        replays = list[int]()
        captured(lambda step: (replays.append(0), step()))
        same(lm, clip, SnapKV(0.5), max_new_tokens=static_decode.BLOCK + 5)
        assert len(replays) == static_decode.BLOCK + 4 + 2  # one more for each capture, for the comparison

    def test_setup_time_of_a_graph_is_not_part_of_the_decode_time(
        self, lm: AudioLM, clip: list[Prompt], captured: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        captured(lambda step: step())
        counted(lm, monkeypatch)
        stages = reply(lm, clip, Base()).stages
        assert (stages.decode, stages.decode_setup) == (4, 2)  # the step itself, and the replay for the comparison

    @pytest.mark.parametrize("fault", ["other logits", "not a number", "no capture"])
    def test_a_graph_that_fails_or_differs_is_replaced_by_eager_decode(
        self, lm: AudioLM, clip: list[Prompt], captured: Any, fault: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wrong(step: Any) -> None:
            if fault == "no capture":
                raise RuntimeError("operation not permitted when stream is capturing")
            step()
            step.logits[:, 5] += 1 if fault == "other logits" else torch.nan

        captured(wrong)
        monkeypatch.setattr(lm, "decode", GRAPH)
        with pytest.warns(match="does not work as a graph"):
            done = Base().generate(lm, lm.prepare(clip), max_new_tokens=5, ignore_end=True, keep_logits=True)
        assert lm.decode == EAGER
        assert done.stages.decode_setup is None  # so the record says that it ran eagerly
        eager = reply(lm, clip, Base(), EAGER)
        assert done.replies == eager.replies
        torch.testing.assert_close(done.logits, eager.logits, atol=1e-5, rtol=0)

    def test_no_graph_is_captured_while_a_profiler_reads_kernels(
        self, lm: AudioLM, clip: list[Prompt], captured: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        captured(lambda _step: pytest.fail("a graph was replayed"))
        monkeypatch.setattr(Clock, "captures", BusyClock.captures)
        same(lm, clip, Base())

    def test_out_of_memory_during_graph_capture_is_raised(self, lm: AudioLM, clip: list[Prompt], captured: Any) -> None:
        def full(_step: Any) -> None:
            raise torch.OutOfMemoryError("full")

        captured(full)
        with pytest.raises(torch.OutOfMemoryError):
            reply(lm, clip, Base())
