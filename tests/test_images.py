"""Dockerfile and compose.yaml, as far as they can be checked without Docker."""

from __future__ import annotations

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
IGNORED = [
    line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_files_copied_in_the_dockerfile_exist_and_are_not_ignored_by_docker() -> None:
    for line in instructions("COPY"):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert not any(fnmatch(source, pattern) for pattern in IGNORED), source


def test_pip_calls_of_the_dockerfile_equal_those_of_the_makefile_and_the_readme() -> None:
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


def test_files_tracked_by_git_are_in_the_image_and_ignored_ones_are_not() -> None:
    try:
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    tops = {name.split("/")[0] for name in files.splitlines()}
    hidden = {top for top in tops if any(fnmatch(top, pattern) for pattern in IGNORED)}
    assert hidden == set()  # all files of the repository are in the image
    for name in (".git", ".venv", "data", "results", "site", "Phi4MM_Results"):
        assert any(fnmatch(name, pattern) for pattern in IGNORED), name


def test_the_dockerfile_copies_files_that_the_editable_install_needs_before_installing() -> None:
    before = DOCKERFILE.partition("pip install")[0]
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src"):
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", before, re.MULTILINE), name
