"""Dockerfile and compose.yaml, as far as they can be checked without Docker."""

from __future__ import annotations

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
IGNORED = [
    line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
]
SERVICE = COMPOSE["services"]["lalm_bench"]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_the_images_are_those_that_are_promised() -> None:
    stages = [line.split(" AS ") for line in instructions("FROM")]
    assert stages == [["python:3.12-slim", "base"], ["base", "cpu"], ["base", "cuda"]]
    assert SERVICE["build"]["target"] == "cuda"


def test_what_is_copied_is_there_and_not_ignored() -> None:
    for line in instructions("COPY"):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert not any(fnmatch(source, pattern) for pattern in IGNORED), source


def test_the_editable_install_has_what_it_reads_before_it_runs() -> None:
    before = DOCKERFILE.partition("pip install")[0]
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src"):
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", before, re.MULTILINE), name


def test_pip_is_called_as_the_makefile_and_the_readme_do() -> None:
    calls = [re.sub(r"^PIP_\S+ ", "", line) for line in instructions("RUN") if "pip install" in line]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$$", "$")
    made = re.findall(r"-m (pip install) --disable-pip-version-check -q (.*)", makefile.partition("$(STAMP): ")[2])
    readme = re.findall(r"^pip install .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert calls[:2] == [" ".join(words) for words in made]
    assert calls[2] in readme
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"\[([\w,]+)\]", calls[3])[0].split(",")) <= set(extras)
    index = re.findall(r"export (PIP_EXTRA_INDEX_URL=\S+)", (ROOT / "requirements" / "cpu.txt").read_text())[0]
    assert f"RUN {index} pip install" in DOCKERFILE


def test_the_service_has_its_gpus_and_keeps_checkpoints_and_results() -> None:
    (gpus,) = SERVICE["deploy"]["resources"]["reservations"]["devices"]
    assert (gpus["count"], gpus["driver"], gpus["capabilities"]) == ("${GPUS:-4}", "nvidia", ["gpu"])
    mounts = dict(reversed(mount.rsplit(":", 1)) for mount in SERVICE["volumes"])
    assert mounts[SERVICE["environment"]["HF_HOME"]] == "${HF_HOME:-huggingface}"
    assert "huggingface" in COMPOSE["volumes"]
    assert mounts[SERVICE["environment"]["AUDIOMARATHON_DATA"]] == "${DATA:-./data}"
    assert mounts[f"{SERVICE['working_dir']}/outputs"] == "./LALM_Bench/outputs"
    assert (ROOT / SERVICE["working_dir"].removeprefix("/audiomarathon/") / "cli.py").is_file()


@pytest.mark.parametrize("page", ["compose.yaml", "docs/containers.md", "LALM_Bench/README.md"])
def test_every_page_shows_the_commands_of_the_original(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for command in ("up -d", "exec lalm_bench python cli.py run clotho --model gemma3n", "down"):
        assert f"docker compose {command}" in text


def test_nothing_that_git_ignores_or_keeps_to_itself_goes_into_an_image() -> None:
    try:
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    tops = {name.split("/")[0] for name in files.splitlines()}
    hidden = {top for top in tops if any(fnmatch(top, pattern) for pattern in IGNORED)}
    assert hidden == set()  # what is in the repository is in the image
    for name in (".git", ".venv", "data", "results", "site", "Phi4MM_Results"):
        assert any(fnmatch(name, pattern) for pattern in IGNORED), name
