"""`.github/workflows/tests.yml`: it asks for what the Makefile and pyproject.toml have, and leaves nothing out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from audiomarathon.version import __version__

ROOT = Path(__file__).parent.parent
WORKFLOW: dict[str, Any] = yaml.load((ROOT / ".github" / "workflows" / "tests.yml").read_text(), yaml.BaseLoader)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
JOBS = WORKFLOW["jobs"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile, with .venv's tools."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found, target
    return found[1].replace("\t", "").replace("$(BIN)", ".venv/bin").splitlines()


def test_the_tests_are_those_of_make_test() -> None:
    wanted = [re.sub(r" -n \S+", "", line) for line in recipe("test")]
    assert [re.sub(r" -n \S+", "", line) for line in commands("tests")[1:-2]] == wanted


OTHERS = {
    f"{name} {job}": [step["run"] for step in content["steps"] if "run" in step]
    for name in ("release", "weekly")
    for job, content in yaml.load((ROOT / f".github/workflows/{name}.yml").read_text(), yaml.BaseLoader)["jobs"].items()
}


@pytest.mark.parametrize("job", [*JOBS, *OTHERS])
def test_every_target_and_extra_that_a_job_names_exists(job: str) -> None:
    for command in OTHERS[job] if job in OTHERS else commands(job):
        for file in re.findall(r"tests/\S+", command):
            assert (ROOT / file).exists(), file
        if command.startswith("make "):
            name = command.split()[1].replace(".venv/.installed", "$(STAMP)")
            assert f"\n{name}: " in MAKEFILE, name
        for extra in re.findall(r"\[([\w-]+)\]", command):
            assert extra in PROJECT["optional-dependencies"], extra
        if command.partition(" ")[0] == "audiomarathon":
            assert "audiomarathon" in PROJECT["scripts"]


def test_every_python_that_the_project_names_is_tested() -> None:
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert set(JOBS["tests"]["strategy"]["matrix"]["python"]) == named
    assert min(named, key=lambda version: int(version[2:])) == PROJECT["requires-python"].removeprefix(">=")


def test_actions_are_pinned_by_their_major_version_and_may_only_read() -> None:
    actions = [step["uses"] for job in JOBS.values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in actions), actions
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all(int(job["timeout-minutes"]) <= 90 for job in JOBS.values())


def test_a_release_is_named_alike_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    heading = f"## {__version__} ({citation['date-released']})"
    assert heading in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()


def test_what_make_test_lints_is_linted_before_a_commit() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = {hook["entry"].removesuffix(" --fix") for hook in hooks}
    assert entries == {re.sub(r" (--check )?\.$", "", line) for line in recipe("test") if "pytest" not in line}
