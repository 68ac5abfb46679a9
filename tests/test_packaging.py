"""What is installed, what is shipped, and what must not be in the repository."""

from __future__ import annotations

import email
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from typer.testing import CliRunner

import audiomarathon
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.cli.app import app
from audiomarathon.compression.registry import all_methods
from audiomarathon.models.registry import all_models, get_model
from audiomarathon.settings import env_names

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FAMILIES = sorted(file for file in (ROOT / "requirements").glob("*.txt") if file.name != "cpu.txt")
CPU = ROOT / "requirements" / "cpu.txt"


OF_FAMILIES = [file.stem for file in FAMILIES if file.stem in PROJECT["optional-dependencies"]]
README, MAKEFILE, CITATION = ((ROOT / name).read_text("utf-8") for name in ("README.md", "Makefile", "CITATION.cff"))


def own_extra(file: Path) -> list[str]:
    """The extra of pyproject.toml that a family's file installs, if it has one."""
    return [file.stem] if file.stem in OF_FAMILIES else []


def lines(file: Path) -> list[str]:
    """The lines of a requirements file, comments left out."""
    stripped = (line.partition(" #")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def pins(file: Path) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lines(file) if not line.startswith("-")]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def declared(*extras: str) -> dict[str, Requirement]:
    """Return the requirements in pyproject.toml, with some extras and without the project itself."""
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in PROJECT["optional-dependencies"][extra])]
    requirements = {canonicalize_name(Requirement(text).name): Requirement(text) for text in texts}
    return {name: requirement for name, requirement in requirements.items() if name != "audiomarathon"}


def admitted(requirement: Requirement) -> list[Version]:
    """Return some versions that a pin allows: its bounds, and for `==1.2.*` the first and a late version."""
    versions = []
    for clause in requirement.specifier:
        if clause.operator in ("==", ">="):
            versions += [Version(clause.version.replace("*", end)) for end in ("0", "999")]
    return sorted(set(versions))


@pytest.mark.parametrize("file", [CPU, *FAMILIES], ids=lambda file: file.stem)
def test_each_requirements_file_pins_every_dependency_within_the_ranges_of_pyproject(file: Path) -> None:
    allowed = declared("report", "dev", "lalm", *OF_FAMILIES)
    assert set(allowed if file == CPU else declared(*own_extra(file))) <= set(pins(file))
    for name, pin in pins(file).items():
        assert admitted(pin), f"{name} is not pinned"
        assert all(version in allowed[name].specifier for version in admitted(pin) if name in allowed), pin


def test_requirements_files_pin_the_same_version_of_each_common_package() -> None:
    for file in FAMILIES:
        for name, pin in pins(file).items():
            if name != "torch" and name in pins(CPU):
                assert pin.specifier == pins(CPU)[name].specifier, f"{file.name}: {name}"
        assert Version("2.13.0") in pins(file)["torch"].specifier


def test_the_requirements_file_of_each_model_family_installs_the_project_too() -> None:
    for file in FAMILIES:
        assert lines(file)[-1] == f"-e .[{','.join(['report', *own_extra(file)])}]"
        assert "Run at the repository's root" in file.read_text(encoding="utf-8")


def test_torch_is_pinned_first_and_installed_alone() -> None:
    """The Makefile installs this line in a pip call of its own."""
    assert lines(CPU)[0] == "torch==2.13.0"
    assert "'^torch=='" in MAKEFILE


def test_the_version_option_prints_the_installed_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"audiomarathon {importlib.metadata.version('audiomarathon')}\n")


HEAVY = {
    *("torch", "transformers", "numpy", "pandas", "scipy", "matplotlib", "librosa", "huggingface_hub", "yaml", "rich")
}
LIGHT = {  # command: modules that it may not import, and its output
    "--help": (HEAVY, "Usage:"),
    "run --help": (HEAVY, "Usage:"),
    "models --help": (HEAVY, "Usage:"),
    "list": ({"torch", "transformers", "pandas", "scipy", "httpx2"}, "gtzan"),
    "status": ({"torch", "transformers"}, "no such folder"),
    "run tau --ratio 2": ({"torch", "transformers"}, "--ratio=2: not allowed"),
}
#: Runs each command in a fork of a Python that has imported no more than the app.
FORKS = """
import os, sys
from audiomarathon.cli.app import main
for command in sys.argv[1:]:
    if os.fork() == 0:
        sys.argv[1:], sys.stderr = command.split(), sys.stdout
        try:
            main()
        finally:
            print("loaded:", *sys.modules, "\\f", flush=True)
            os._exit(0)
    os.wait()
"""


def test_commands_that_need_no_model_import_no_heavy_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS, *LIGHT], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    for (heavy, words), output in zip(LIGHT.values(), done.stdout.split("\f")[:-1], strict=True):
        said, _, loaded = output.rpartition("loaded:")
        assert words in said
        assert heavy & {*loaded.split()} == set()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from: a build leaves files beside the sources."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return copy


@pytest.fixture(scope="module")
def wheel(project: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built(project, "build_wheel"))


def built(copy: Path, what: str, **env: str) -> Path:
    """Have setuptools build the wheel, or its metadata only, from a copy of the project."""
    code = f"from setuptools import build_meta; print(build_meta.{what}('.'))"
    env = {name: value for name, value in os.environ.items() if name != "REPOSITORY_URL"} | env
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=copy, env=env, capture_output=True, text=True)
    return copy / done.stdout.split()[-1]


def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_contains_every_tracked_package_file_and_no_other_top_level_folder(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "src" / "audiomarathon"
    files = {file.relative_to(ROOT / "src").as_posix() for file in tracked() if package in file.parents}
    assert {"audiomarathon/py.typed", "audiomarathon/embedded/checkpoint/model.safetensors"} <= files
    assert files <= set(wheel.namelist())
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"audiomarathon", f"audiomarathon-{audiomarathon.__version__}.dist-info"}


def test_the_wheel_metadata_state_license_python_extras_and_classifiers(wheel: zipfile.ZipFile) -> None:
    told = metadata(wheel)
    assert (told["License-Expression"], told["Requires-Python"]) == ("MIT", ">=3.11")
    assert told["Description-Content-Type"] == "text/markdown"
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)}
    assert versions <= set(told.get_all("Classifier"))


def test_readme_links_are_absolute_in_the_package_metadata(wheel: zipfile.ZipFile, project: Path) -> None:
    relative = re.compile(r"\]\((?!https?://|#)([^)]*)\)")
    assert "# AudioMarathon" in (plain := str(metadata(wheel).get_payload()))
    assert relative.findall(plain) == []
    folder = built(project, "prepare_metadata_for_build_wheel", REPOSITORY_URL="https://example.org/suite")
    linked = str(email.message_from_bytes((folder / "METADATA").read_bytes()).get_payload())
    assert relative.findall(linked) == []
    for target in relative.findall(README):
        kind = "raw" if target.endswith(".png") else "blob"
        assert f"](https://example.org/suite/{kind}/HEAD/{target})" in linked


@pytest.mark.long
def test_the_installed_wheel_runs_the_demo_without_the_repository(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """A .pth file makes the installed packages visible in a new environment, except for editable installs."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["OMP_NUM_THREADS"] = "1"

    def ran(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    place, here = tmp_path / "venv", tmp_path / "venv" / "bin"
    ran(sys.executable, "-m", "venv", "--without-pip", place)
    site = Path(ran(here / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = (sys.executable, "-m", "pip", "--python", here / "python")
    ran(*pip, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel.filename))
    assert Path(ran(here / "python", "-c", "import audiomarathon; print(audiomarathon.__file__)")).is_relative_to(site)
    assert "librispeech" in ran(here / "audiomarathon", "demo", "--limit", "1")
    (records,) = (tmp_path / "demo_results").iterdir()
    assert len([*records.rglob("summary.json")]) == 30
    assert (records / "demo.png").is_file()


@cache
def tracked() -> list[Path]:
    try:
        done = subprocess.run(["git", "ls-files", "-z"], check=True, cwd=ROOT, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_tracked_file_contains_a_local_path_of_a_users_machine() -> None:
    places = (ROOT, Path.home(), Path(sys.prefix), Path(sys.base_prefix))
    here = {f"{place}/" for place in places if place.parts[1:2] not in ((), ("usr",))}
    pattern = re.compile("|".join([*map(re.escape, here), r"/(?:home|Users)/[a-z]\w*/"]).encode())
    matches = {
        str(file.relative_to(ROOT)): match[0].decode()
        for file in tracked()
        if (match := pattern.search(file.read_bytes()))
    }
    assert matches == {}


def test_no_tracked_file_exceeds_10_mb() -> None:
    assert [file for file in tracked() if file.stat().st_size > 10e6] == []


def test_the_reference_page_is_up_to_date_with_the_code() -> None:
    """To update the generated parts of docs/reference.md, run `python scripts/make_reference.py`."""
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    make = runpy.run_path(str(ROOT / "scripts" / "make_reference.py"))
    assert re.findall(r"<!-- made: (\w+) -->", page) == list(make["PARTS"])
    assert make["filled"](page) == page
    for name in env_names():
        assert f"| `{name}` | `--" in page
    for heading in ("Glossary", "Where results go", "Commands"):
        assert f"\n## {heading}\n" in page


def rows_of(heading: str) -> dict[str, str]:
    """Return the table rows under a heading, as a mapping from each name in the first column to its row."""
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name: row for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_the_catalogue_lists_the_methods_and_models_that_exist() -> None:
    models = set(rows_of("Models"))
    built_in = {name for name, row in rows_of("Methods").items() if "| built" in row}
    assert built_in == {method.key for method in all_methods()}
    names = {name for model in all_models() for name in (model.key, *model.aliases)}
    assert {name for name in models if not name.startswith("-")} <= names
    assert {model.family for model in all_models()} == {get_model(name).family for name in models & names}


def test_the_catalogue_gives_the_sample_counts_of_the_paper() -> None:
    rows = rows_of("Tasks")
    assert set(rows) == {task.key for task in AUDIOMARATHON.tasks}
    for task in AUDIOMARATHON.tasks:
        facts = AUDIOMARATHON.facts[task.key]
        assert f"| {facts.acronym} |" in rows[task.key]
        assert f"| {facts.group} | {facts.count:,} |" in rows[task.key]


def test_the_readme_has_at_most_140_lines_and_names_tasks_and_methods() -> None:
    assert len(README.splitlines()) <= 140
    cells = re.findall(r"^\| (`.*?) \|", README, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert {task.key for task in AUDIOMARATHON.tasks} <= named
    assert {method.key for method in all_methods()} <= named
    names = {name for model in all_models() for name in (model.key, *model.aliases)}
    families = {get_model(name).family.partition(":")[0] for name in named & names}
    assert families == {model.family.partition(":")[0] for model in all_models()}


def test_the_readme_names_existing_make_targets_for_tests_and_demo() -> None:
    targets = re.findall(r"`make ([a-z]+)", README)
    assert {"test", "demo"} <= {*targets}
    assert [target for target in targets if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


def test_relative_links_in_the_pages_point_to_existing_files() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_license_and_citation_name_the_software_authors_apart_from_the_papers_authors() -> None:
    """The paper's authors did not write the software. The citation credits only the paper to them."""
    texts = CITATION, *((ROOT / name).read_text(encoding="utf-8") for name in ("LICENSE", "pyproject.toml"))
    assert all(text.count("AudioMarathon contributors") == 1 for text in texts)
    citation = yaml.safe_load(CITATION)
    assert citation["authors"] == [{"name": "AudioMarathon contributors"}]
    paper = citation["preferred-citation"]
    assert len([author for author in paper["authors"] if "family-names" in author]) == len(paper["authors"]) == 16
    top = README.partition("\n## ")[0]
    assert "An independent reimplementation, not by the paper's authors" in top
    assert "Not yet run: any published audio LLM." in top


def test_the_citation_file_covers_every_benchmark() -> None:
    citation = yaml.safe_load(CITATION)
    cited = {reference["url"] for reference in (citation["preferred-citation"], *citation["references"])}
    assert {f"https://arxiv.org/abs/{paper}" for paper in ("2510.07293", "2409.14526", "2505.16369")} <= cited
    assert "https://github.com/jemin7709/audio-llm-benchmark" in cited
    assert all(cited_work[field] for cited_work in citation["references"] for field in ("authors", "title", "type"))


def test_the_layout_page_names_every_folder_package_and_script() -> None:
    page = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    names = {file.relative_to(ROOT).parts[0] for file in tracked()}
    names = {f"{name}/" if (ROOT / name).is_dir() else name for name in names}
    rooms = {file.parent.name for file in (ROOT / "src" / "audiomarathon").glob("*/__init__.py")}
    scripts = {f"{file.name}/" if file.is_dir() else file.name for file in (ROOT / "scripts").glob("[a-z]*")}
    named = set(re.findall(r"`([^`]+)`", page))
    assert names | rooms | scripts <= named | {"src/"}
