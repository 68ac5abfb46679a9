"""`scripts/serve_vllm.sh` with a stand-in for vLLM on the PATH."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from audiomarathon.models.registry import BUILT_IN, get_model

SCRIPT = Path(__file__).parent.parent / "scripts" / "serve_vllm.sh"
PAGE = (SCRIPT.parent.parent / "docs" / "models" / "openai.md").read_text(encoding="utf-8")
REFUSED = (
    "embedded",
    "aero-1",
    "qwen2-audio",
    *(f"whisper-{size}" for size in ("large-v3", "large-v3-turbo", "small", "base")),
)


def call(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "vllm").write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    (folder / "vllm").chmod(0o755)
    clean = {"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"} | env
    return subprocess.run([SCRIPT, *arguments], env=clean, capture_output=True, text=True, timeout=60, check=False)


def test_the_script_starts_vllm_with_the_flags_of_the_docs_and_prints_the_next_command(tmp_path: Path) -> None:
    done = call(tmp_path, "qwen2.5-omni", "--api-key", "a b", PORT="8001")
    assert done.returncode == 0, done.stderr
    checkpoint, *flags = done.stdout.splitlines()[1:]
    on_page = shlex.split(re.findall(r"^vllm (serve .*)$", PAGE, re.MULTILINE)[0])
    assert checkpoint == on_page[1]
    assert flags == ["--served-model-name", checkpoint, "--port", "8001", *on_page[2:], "--api-key", "a b"]
    (asks,) = re.findall(r"^OPENAI_BASE_URL.*$", PAGE, re.MULTILINE)
    assert asks.replace("8000", "8001") in done.stderr


@pytest.mark.parametrize("name", [name for model in BUILT_IN for name in (model.key,) if not model.remote])
def test_the_script_serves_every_local_model_or_refuses_it_with_a_reason(name: str, tmp_path: Path) -> None:
    (tmp_path / "speech-lora").mkdir()
    env = {"MODEL_PATH": str(tmp_path)} if name == "phi4mm" else {}
    done = call(tmp_path, name, **env)
    if name in REFUSED:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {name}")
        return
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    checkpoint = get_model(name).checkpoint.partition("@")[0]
    assert words[words.index("--served-model-name") + 1] == checkpoint
    assert words[1] == env.get("MODEL_PATH", checkpoint)
    assert ("warning: vLLM feeds" in done.stderr) == ("30 s only" in row_of(name))
    for flag in re.findall(r"--[a-z-]+", row_of(name)):
        assert flag in words or flag == "--tensor-parallel-size", flag


def row_of(name: str) -> str:
    """Return a model's row in the docs' vLLM table."""
    table = PAGE.partition("## vLLM")[2]
    for row in re.findall(r"^\| (`[^|]*) \|(.*)$", table, re.MULTILINE):
        keys = re.findall(r"`([^`]+)`", row[0])
        if name.removesuffix("-30s") in [keys[0] + key if key.startswith("-") else key for key in keys] or (
            name == "qwen2.5-omni-3b" and keys[0] == "qwen2.5-omni-7b"
        ):
            return row[1]
    raise AssertionError(name)


def test_the_script_accepts_any_hub_model_id(tmp_path: Path) -> None:
    done = call(tmp_path, "my-org/my-model")
    assert done.stdout.splitlines()[:2] == ["serve", "my-org/my-model"]


def test_help_shows_an_example_command(tmp_path: Path) -> None:
    done = call(tmp_path, "--help")
    assert (done.returncode, "PORT=8001 scripts/serve_vllm.sh" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        (["nonsense"], {}, "error: unknown model 'nonsense'; allowed"),
        (["phi4mm"], {}, "error: phi4mm: MODEL_PATH must name the checkpoint's folder"),
        (["voxtral"], {"PORT": "http"}, "error: PORT=http: must be a number"),
        ([], {}, "Serve a model with vLLM"),
        (["voxtral"], {"PATH": "/usr/bin:/bin"}, "error: no vllm here: pip install"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(
    arguments: list[str], env: dict[str, str], message: str, tmp_path: Path
) -> None:
    done = call(tmp_path, *arguments, **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
