"""Third-party tasks: allowed plug-ins, and bad plug-ins that must not break any other command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from builders import a_run, changed
from conftest import call, succeed
from typer.testing import CliRunner

from audiomarathon.benchmarks import all_tasks, get_task, registry
from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.benchmarks.task import Task
from audiomarathon.cli.app import app
from audiomarathon.cli.output import reporting_errors
from audiomarathon.engine.run import score
from audiomarathon.errors import PluginError
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Request
from audiomarathon.judges.registry import GROUP, plugged_in
from audiomarathon.scoring.choice import Choice

BUILT_IN = sum(not task.own_command for benchmark in registry.built_in() for task in benchmark.tasks)


class Plugin(Tau):
    key = "birds"
    aliases = ()


class OfASuite(Tau):
    key = "suite/birds"
    aliases = ()


def plug_in(monkeypatch: pytest.MonkeyPatch, group: str = registry.TASKS, **values: str) -> None:
    entries = [EntryPoint(name, value, group) for name, value in values.items()]
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [entry for entry in entries if entry.group == group]
    )


def plug_in_value(monkeypatch: pytest.MonkeyPatch, value: object, group: str = registry.TASKS) -> None:
    """Register a value as the plug-in `odd`."""
    monkeypatch.setattr(sys.modules[__name__], "BROKEN_NOW", value)
    plug_in(monkeypatch, group, odd=f"{__name__}:BROKEN_NOW")


def test_a_task_plugin_is_listed_and_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, birds=f"{__name__}:Plugin")
    assert [task.key for task in all_tasks()][-2:] == ["ruler/after", "birds"]
    assert isinstance(get_task("Birds"), Task)


def test_the_key_of_a_task_plugin_may_begin_with_the_name_of_an_uninstalled_benchmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(monkeypatch, birds=f"{__name__}:OfASuite")
    assert get_task("suite/Birds").key == "suite/birds"
    assert registry.benchmark_of("suite/birds") == registry.OTHER  # "suite" is not installed


SUITE = Benchmark("suite", "Which bird sings?", (OfASuite(),), {"suite/birds": TaskFacts("B", "wings", 7, (1.0, 2.0))})
STRANGE = Benchmark("strange", "What is it?", (OfASuite(),))


def test_a_benchmark_plugin_is_listed_with_its_tasks_and_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, registry.BENCHMARKS, suite=f"{__name__}:SUITE")
    builtin = ["audiomarathon", "xares", "long", "jasco", "lalm", "ruler"]
    assert [benchmark.key for benchmark in registry.all_benchmarks()] == [*builtin, "suite"]
    assert [task.key for task in all_tasks()][-2:] == ["ruler/after", "suite/birds"]
    assert (registry.benchmark_of("suite/birds"), registry.benchmark_of("tau")) == ("suite", "audiomarathon")
    facts = registry.facts_of("suite/birds")
    assert facts is not None
    assert (facts.acronym, facts.count, registry.groups_of("suite")) == ("B", 7, ("wings",))


def test_a_benchmark_plugin_whose_task_keys_lack_its_prefix_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(monkeypatch, registry.BENCHMARKS, strange=f"{__name__}:STRANGE")
    with pytest.warns(UserWarning, match=r"'strange' is left out: .* must begin with strange/, .* does not"):
        assert len(all_tasks()) == BUILT_IN


def test_a_broken_plugin_is_named_in_a_warning_and_hides_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, birds=f"{__name__}:Plugin", gone="no_such_module_anywhere:Task", wrong="json:JSONDecoder")
    with pytest.warns(UserWarning, match=r"'gone'.*No module|'wrong' .*no Task") as caught:
        assert len(all_tasks()) == BUILT_IN + 1
    assert len(caught) == 2


def test_a_plugin_cannot_replace_a_built_in_task_of_the_same_name(monkeypatch) -> None:
    plug_in_value(monkeypatch, bad(key="thief", aliases=("ASR",)))
    with pytest.warns(UserWarning, match=r"'odd'.*'ASR' .*ignored.*'librispeech'"):
        assert get_task("asr").key == "librispeech"
    plug_in_value(monkeypatch, bad(key="TAU"))
    with pytest.warns(UserWarning, match=r"'odd' .*left out.*'TAU' .*taken"):
        assert len(all_tasks()) == BUILT_IN


class MuteError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no message")


ERRORS = [KeyError("row"), SystemExit(0), MuteError()]


def raising(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: Any, **__: Any) -> Any:
        raise error

    return raise_it


def bad(**facts: Any) -> type[Tau]:
    return type("Bad", (Tau,), {"key": "bad", "aliases": (), **facts})


#: Broken plug-ins, and the start of the error message for each.
BROKEN: dict[str, tuple[object, str]] = {
    "exits": (raising(SystemExit(3)), "SystemExit: 3"),
    "interrupts": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "mute": (raising(MuteError()), "MuteError: its message cannot be shown"),
    "lines": (raising(ValueError("one\n\x1b[31mtwo")), r"ValueError: one \x1b[31mtwo"),
    "key raises": (bad(key=property(raising(RuntimeError("no key")))), "RuntimeError: no key"),
    "key missing": (bad(key=None), "has no usable 'key'"),
    "key a path": (bad(key="../out"), "has the key '../out'"),
    "key a deep path": (bad(key="a/b/c"), "has the key 'a/b/c'"),
    "key from the root": (bad(key="/out"), "has the key '/out'"),
    "key of nothing": (bad(key="a/"), "has the key 'a/'"),
    "key out of a folder": (bad(key="a/.."), "has the key 'a/..'"),
    "aliases a text": (bad(aliases="ASR"), "has no usable 'aliases'"),
    "alias a number": (bad(aliases=(3,)), "has no usable 'aliases'"),
    "title raises": (bad(title=property(raising(SystemExit()))), "SystemExit"),
    "scorer missing": (bad(scorer=None), "has no usable 'scorer'"),
    "scorer a text": (bad(scorer="choice"), "has no usable 'scorer'"),
    "scorer a class": (bad(scorer=Choice), "has no usable 'scorer'"),
    "scorer without a figure": (bad(scorer=type("Bare", (Choice,), {"figure": None})()), "'figure'"),
    "a group a number": (bad(group_fields=(3,)), "has no usable 'group_fields'"),
    "limit a text": (bad(max_new_tokens="many"), "has no usable 'max_new_tokens'"),
    "cuttable a text": (bad(cuttable="no"), "has no usable 'cuttable'"),
    "class raises": (type("Odd", (), {"__class__": property(raising(ValueError("odd")))})(), "ValueError: odd"),
}
BROKEN_NOW: object = None


@pytest.mark.parametrize("case", BROKEN)
def test_any_exception_of_a_plugin_is_a_one_line_warning_with_its_name(case: str, monkeypatch) -> None:
    value, told = BROKEN[case]
    plug_in_value(monkeypatch, value)
    done = CliRunner().invoke(app, ["list", "tasks"])
    assert done.exit_code == 0, done.exception
    assert "tau" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: audiomarathon.tasks plug-in 'odd'")
    assert told in line


def test_plugin_titles_are_shown_without_interpreting_markup(monkeypatch) -> None:
    plug_in_value(monkeypatch, bad(title="[bold]x[/y]\x1b[2J\nz"))
    assert r"[bold]x[/y]\x1b[2J z" in succeed("list", "tasks")


def test_the_title_of_a_plugin_task_is_read_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(["birds", "birds"])
    plug_in_value(monkeypatch, bad(title=property(lambda _self: next(told))))
    assert [all_tasks()[-1].title for _ in range(4)] == ["birds"] * 4


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_in_a_task_method_of_a_plugin_is_an_error_that_names_the_plugin(
    error: BaseException, monkeypatch, tmp_path: Path
) -> None:
    plug_in_value(monkeypatch, bad(load=raising(error), find=lambda _self, root: root))
    with pytest.raises(PluginError, match=rf"'odd' .*load\(\) raised {type(error).__name__}"):
        get_task("bad").load(tmp_path)
    code, output = call("data", "verify", "--data", tmp_path)
    assert code in (0, 1, 2)
    assert "Traceback" not in output
    assert "raised" in output


@pytest.mark.parametrize(
    ("method", "error"),
    [("judge", KeyError("row")), ("sums", SystemExit(1)), ("summary", MuteError()), ("own_score", SystemExit(1))],
)
def test_an_exception_in_a_scorer_method_of_a_plugin_is_an_error_that_names_the_plugin(
    method: str, error, monkeypatch, tmp_path: Path
) -> None:
    scorer = type("Raising", (Choice,), {"key": "raising", method: raising(error)})()
    plug_in_value(monkeypatch, bad(scorer=scorer))
    folder = changed(a_run(tmp_path, "base-0", [True, False], task="bad"), settings={"seed": 1}, sessions=[])
    before = (folder / "samples.jsonl").read_bytes()
    done = CliRunner().invoke(app, ["report", str(folder), "-o", str(tmp_path / "r.html"), "--audio", "none"])
    assert isinstance(done.exception, SystemExit | None), done.exception
    if method != "own_score":  # only the report calls `own_score`
        with pytest.raises(PluginError, match=r"raising|'odd'"):
            score(folder)
    assert (folder / "samples.jsonl").read_bytes() == before


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_in_a_judge_generator_of_a_plugin_is_an_error_that_names_the_plugin(
    error: BaseException, monkeypatch
) -> None:
    """A judge's `ask` is a generator, so its code runs only after the call."""

    def ask(_judge: Judge, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        yield requests[0], Reply("yes", "stop")
        raise error

    plug_in_value(monkeypatch, type("Failing", (Judge,), {"key": "failing", "identity": dict, "ask": ask})(), GROUP)
    (judge,) = plugged_in()
    answers = judge.ask([Request([], 1)])
    assert next(answers)[1].text == "yes"
    with pytest.raises(PluginError, match=rf"'odd' .*ask\(\) raised {type(error).__name__}"):
        next(answers)


def test_plugin_code_that_calls_sys_exit_is_reported_with_file_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = compile("import sys\nsys.exit(0)", "/theirs/code.py", "exec")
    with pytest.raises(SystemExit) as ended:
        reporting_errors(lambda: exec(code, {"__name__": "theirs"}))()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: /theirs/code.py, line 2: SystemExit: 0 ended the command\n"
