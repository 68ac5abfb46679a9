"""`.github/workflows/tests.yml` agrees with the Makefile and pyproject.toml, and leaves nothing out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

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
    """Return the commands of a Makefile target, with the tools of .venv."""
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert match, target
    return match[1].replace("\t", "").replace("$(BIN)", ".venv/bin").splitlines()


def test_the_ci_job_named_tests_runs_the_commands_of_make_test() -> None:
    wanted = [re.sub(r" -n \S+", "", line) for line in recipe("test")]
    assert [re.sub(r" -n \S+", "", line) for line in commands("tests")[1:-2]] == wanted


def test_every_python_version_that_the_project_names_is_tested_in_ci() -> None:
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert set(JOBS["tests"]["strategy"]["matrix"]["python"]) == named
    assert min(named, key=lambda version: int(version[2:])) == PROJECT["requires-python"].removeprefix(">=")


def test_citation_changelog_and_package_name_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    heading = f"## {__version__} ({citation['date-released']})"
    assert heading in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()


def test_every_make_target_extra_and_file_named_by_a_ci_job_exists() -> None:
    for name in ("tests", "release", "weekly"):
        jobs = yaml.load((ROOT / f".github/workflows/{name}.yml").read_text(), yaml.BaseLoader)["jobs"].values()
        for command in (step["run"] for job in jobs for step in job["steps"] if "run" in step):
            assert all((ROOT / file).exists() for file in re.findall(r"tests/\S+", command)), command
            if command.startswith("make "):
                target = command.split()[1].replace(".venv/.installed", "$(STAMP)")
                assert f"\n{target}: " in MAKEFILE, target
            assert {*re.findall(r"\[([\w-]+)\]", command)} <= {*PROJECT["optional-dependencies"]}, command
