"""Extensions (wings): the core refers to none, and third-party ones can add commands, tables and sections."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import a_run, finished
from typer.testing import CliRunner

from audiomarathon import wing
from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.benchmarks.benchmark import Benchmark
from audiomarathon.report.page_data import PageData
from audiomarathon.report.paper import write_paper
from audiomarathon.report.render import Table
from audiomarathon.report.sections import Section, sections
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.read import Run
from audiomarathon.wing import Commands, Wing

SOURCE = Path(wing.__file__).parent
CORE = [file for file in SOURCE.rglob("*.py") if not {"wings", "encoders", "new_templates"} & {*file.parts}]


class Bird(Tau):
    key = "birds/song"
    aliases = ()


class Birds(Wing):
    """A third party's wing."""

    key = "birds"

    def benchmarks(self) -> Sequence[Benchmark]:
        return (Benchmark("birds", "Which bird sings?", (Bird(),)),)

    def commands(self) -> Mapping[str, Commands]:
        return {"Birds": {"whistle": whistle}}

    def tables(self, runs: Sequence[Run]) -> Sequence[Table]:
        return [Table(pd.DataFrame({"run": [run.key for run in runs]}), title="Songs")]

    def sections(self, data: PageData) -> Sequence[Section]:
        return [Section("birds", "What the birds sing", self.tables(data.runs))]


class Deaf(Birds):
    """A wing that fails."""

    key = "deaf"

    def commands(self) -> Mapping[str, Commands]:
        raise RuntimeError("no ears")


class Thief(Birds):
    """A wing whose names are taken."""

    key = "thief"

    def commands(self) -> Mapping[str, Commands]:
        return {"Measure a model": {"run": whistle, "tweet": whistle}}

    def importers(self) -> Commands:
        return {"lalm": whistle}


ODD: dict[str, Any] = {
    "none": lambda *_given: None,
    "a text": lambda *_given: "junk",
    "a list of texts": lambda *_given: ["junk"],
    "texts by name": lambda *_given: {"x": "junk"},
    "a generator that raises": lambda *_given: (1 / 0 for _ in "a"),
}


def whistle() -> None:
    """Whistle a tune."""
    print("tweet")  # noqa: T201


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a wing of this file, and reload the app, which is built on import."""

    def plug(name: str) -> None:
        entry = EntryPoint("birds", f"{__name__}:{name}", wing.GROUP)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == wing.GROUP else [])
        import_module("audiomarathon.cli.app")
        monkeypatch.delitem(sys.modules, "audiomarathon.cli.app")

    return plug


def of_app(*arguments: str) -> Any:
    return CliRunner().invoke(import_module("audiomarathon.cli.app").app, arguments)


class TestThirdParty:
    def test_commands_and_tasks_of_an_extension_are_found_like_built_in_ones(self, plug_in) -> None:
        plug_in("Birds")
        text = of_app("--help").output
        assert "whistle" in text[text.index("Birds:") :]
        assert "tweet" in of_app("whistle").output
        assert get_task("birds/song").title == Tau.title

    def test_the_report_contains_the_section_of_an_extension(self, plug_in, tmp_path: Path) -> None:
        pytest.importorskip("vl_convert")
        finished(a_run(tmp_path / "runs", "base-0", [True] * 3), score=1.0)
        plug_in("Birds")
        data = PageData(read_systems([tmp_path / "runs"]))
        assert "What the birds sing" in [section.heading for section in sections(data)]
        write_paper(data, tmp_path / "out")
        assert "tau" in (tmp_path / "out" / "birds-1.md").read_text()

    def test_an_extension_that_fails_is_left_out_with_a_warning(self, plug_in) -> None:
        plug_in("Deaf")
        with pytest.warns(UserWarning, match="deaf.*no ears"):
            text = of_app("--help").output
        assert "whistle" not in text
        assert "compare" in text

    def test_an_extension_command_whose_name_is_taken_is_left_out_with_a_warning(self, plug_in) -> None:
        plug_in("Thief")
        with pytest.warns(UserWarning, match="the name is taken"):
            text = of_app("--help").output
        assert "tweet" in text
        assert "tweet" not in of_app("run", "--help").output
        assert "LALM" in of_app("import", "lalm", "--help").output

    @pytest.mark.parametrize("answer", ODD)
    @pytest.mark.parametrize(
        "hook", ["benchmarks", "task", "commands", "importers", "exporters", "templates", "sections", "tables"]
    )
    def test_an_extension_whose_hook_returns_a_wrong_type_is_left_out_with_a_warning(
        self, hook: str, answer: str, monkeypatch, recwarn
    ) -> None:
        if (hook, answer) == ("task", "none"):
            return  # no such task
        monkeypatch.setattr(
            wing, "plugins", lambda *_given: [type("Odd", (Wing,), {"key": "odd", hook: ODD[answer]})()]
        )
        given = {"task": ("x",), "sections": (PageData([]),), "tables": ([],)}.get(hook, ())
        assert wing.built_in()
        monkeypatch.setattr(wing, "built_in", lambda: ())
        assert wing.asked(lambda plugged: getattr(plugged, hook)(*given)) == []
        assert f"'odd': {hook}()" in str(recwarn.pop(UserWarning).message)


def test_core_code_refers_to_no_class_or_module_of_an_extension() -> None:
    """A core that tested for a task's class would depend on its wing."""
    kinds, modules = set[str](), set[str]()
    for file in CORE:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                kinds |= {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            elif isinstance(node, ast.Constant) and "audiomarathon.wings." in str(node.value):
                modules.add(file.relative_to(SOURCE).as_posix())
    ends = ("Task", "Scorer", "Judged", "Choice", "Problem", "Encoded")
    assert {kind for kind in kinds if kind.endswith(ends)} <= {"Task", "Scorer"}
    assert modules <= {"__init__.py"}
