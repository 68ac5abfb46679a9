"""A user's own clip under any method: the reply, the printed details, and the errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
from conftest import noise

from audiomarathon.audio.decode import decode
from audiomarathon.compression.method import kept_count
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.answer import answer, answers
from audiomarathon.errors import AudioError, AudioMarathonError, MethodError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.settings import RunSettings

PIPELINE = Path(__file__).parent.parent / "kvpress" / "pipeline.py"
Script = Callable[..., tuple[int, str, str]]
SHORT = RunSettings(max_new_tokens=6)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "talk.wav"
    soundfile.write(path, noise(4.0, rate=44100), 44100)
    return path


@pytest.mark.parametrize("method", ["base", "snapkv:0.5", "dart:0.3", "fast_v:0.5+knorm:0.3"])
def test_an_answer_of_the_pipeline_equals_the_reply_that_the_method_generates_directly(
    lm: AudioLM, talk: Path, method: str
) -> None:
    inputs = lm.prepare([Prompt("What is it?", (decode(talk, 16000),), SHORT.seed)])
    plain = get_method(method).generate(lm, inputs, max_new_tokens=6)
    ours = answer(talk, "What is it?", model=lm, method=method, settings=SHORT)
    assert ours.text == plain.replies[0].text
    for fact in ("kept_audio_tokens", "kv_lengths", "kv_bytes"):
        assert getattr(ours.generation, fact) == getattr(plain, fact)
    assert ours.audio_seconds == 4.0
    assert ours.audio_tokens == 100


def test_a_pipeline_answer_about_several_files_uses_the_audio_of_all_of_them(lm: AudioLM, talk: Path) -> None:
    reply = answer([talk, talk], "Same?", model=lm, method="frame:0.5", settings=SHORT)
    assert reply.audio_seconds == 8.0
    assert reply.audio_tokens == 200
    assert reply.generation.kept_audio_tokens == (kept_count(200, 0.5),)


def test_pipeline_answers_under_several_methods_share_one_run_of_the_audio_tower(lm: AudioLM, talk: Path) -> None:
    calls, methods = [], ["base", "frame:0.5", "knorm:0.5"]
    with lm.audio_tower.conv1.register_forward_hook(lambda *_: calls.append(1)):
        results = list(answers(talk, "?", methods, model=lm, settings=SHORT, warm_up=False))
    assert len(calls) == 1
    assert len({reply.generation.stages.encoder for reply in results}) == 1
    assert all(reply.generation.stages.encoder > 0 for reply in results)


def test_the_pipeline_reports_no_decode_time_for_a_reply_of_one_token(lm: AudioLM, talk: Path) -> None:
    one_token = answer(talk, "?", model=lm, settings=RunSettings(max_new_tokens=1))
    forced = answer(talk, "?", model=lm, settings=RunSettings(max_new_tokens=1, decode_tokens=4))
    assert one_token.decode_per_token is None
    assert forced.decode_per_token > 0


@pytest.mark.parametrize(
    ("paths", "method", "error"),
    [
        *((path, "base", AudioError) for path in ("nowhere.wav", __file__)),
        ([], "base", SettingsError),
        *((None, method, SettingsError) for method in ("snapkw:0.5", "base:0.5")),
    ],
)
def test_the_pipeline_refuses_unusable_audio_and_an_unknown_method(
    lm: AudioLM, talk: Path, paths: object, method: str, error: type[AudioMarathonError]
) -> None:
    with pytest.raises(error):
        answer(talk if paths is None else paths, "?", model=lm, method=method, settings=SHORT)


def test_the_pipeline_takes_settings_missing_in_the_call_from_environment_variables(
    talk: Path, tiny_checkpoint: Path, no_env: Any
) -> None:
    no_env("MODEL_PATH", str(tiny_checkpoint))
    no_env("MAX_NEW_TOKENS", "2")
    no_env("PRUNE_RATIO", "0.5")
    reply = answer(talk, "?", method="fast_v:0.3")
    assert len(reply.generation.kv_lengths) == 4  # not the embedded model, which has five layers
    assert reply.generation.replies[0].new_tokens <= 2


def test_the_pipeline_refuses_pruning_at_a_layer_that_the_model_lacks(lm: AudioLM, talk: Path) -> None:
    with pytest.raises(MethodError, match="layer 9"):
        answer(talk, "?", model=lm, method="fast_v:0.5", settings=RunSettings(layer=9))


def test_the_pipeline_script_prints_the_answers_of_presses_next_to_that_of_base(
    talk: Path, tiny_checkpoint: Path, no_env: Any, script: Script
) -> None:
    for name, value in {"MODEL_PATH": str(tiny_checkpoint), "DEVICE": "cuda:9", "PRUNE_RATIO": "0.1"}.items():
        no_env(name, value)
    code, out, err = script(
        PIPELINE, talk, "--prompt", "What?", "--press", "snapkv", "--press", "frame:0.9", "--ratio", "0.5",
        "--device", "cpu", "--max-new-tokens", 3,
    )  # fmt: skip
    assert code == 0, err
    cells = ("4.0 s of audio", "base", "100 of 100", "snapkv-0.5", "50 of 100", "frame-0.9", "10 of 100", "KV MB")
    assert [cell for cell in cells if cell not in out] == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--press", "snapkw"], "did you mean 'snapkv'"),
        (["--press", "snapkv", "--ratio", "1.5"], "--ratio=1.5: not allowed"),
        (["--model", "qwen"], "unknown model 'qwen'"),
        (["--model-path", "org/not-there"], "not-there"),
    ],
)
def test_wrong_arguments_of_the_pipeline_script_give_a_one_line_error(
    talk: Path, flags: list[str], message: str, script: Script, no_env: Any
) -> None:
    no_env("HF_HUB_OFFLINE", "1")
    code, _out, err = script(PIPELINE, talk, "--prompt", "What?", *flags)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in err
