"""Third parties' tasks: what a plug-in may be, and that a bad one costs nobody else a command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audiomarathon.cli.app import app
from audiomarathon.errors import PluginError
from audiomarathon.tasks import all_tasks, get_task, registry
from audiomarathon.tasks.task import Task
from audiomarathon.tasks.tau import Tau


class Plugin(Tau):
    key = "birds"
    acronym = "BIRDS"
    aliases = ()


class Thief(Tau):
    key = "thief"
    aliases = ("ASR",)


def plug_in(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in values.items()]
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: entries if group == registry.ENTRY_POINT_GROUP else []
    )


def test_a_plugin_is_a_task_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, birds=f"{__name__}:Plugin")
    assert [task.key for task in all_tasks()][-2:] == ["vox_age", "birds"]
    assert isinstance(get_task("Birds"), Task)


def test_a_broken_plugin_is_named_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, birds=f"{__name__}:Plugin", gone="no_such_module_anywhere:Task", wrong="json:JSONDecoder")
    with pytest.warns(UserWarning, match=r"'gone'.*No module|'wrong' .*no Task") as caught:
        assert len(all_tasks()) == 11
    assert len(caught) == 2


def test_a_plugin_cannot_take_a_benchmark_tasks_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, thief=f"{__name__}:Thief")
    with pytest.warns(UserWarning, match=r"'thief'.*'ASR' .*ignored.*'librispeech'"):
        assert get_task("asr").key == "librispeech"
    plug_in(monkeypatch, second=f"{__name__}:SecondTau")
    with pytest.warns(UserWarning, match=r"'second' .*left out.*'TAU' .*taken"):
        assert len(all_tasks()) == 10


class SecondTau(Tau):
    key = "TAU"


class MuteError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no message")


def raising(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: Any, **__: Any) -> Any:
        raise error

    return raise_it


def bad(**facts: Any) -> type[Tau]:
    return type("Bad", (Tau,), {"key": "bad", "aliases": (), **facts})


#: What a plug-in may be; the first part of the line that tells of it.
BROKEN: dict[str, tuple[object, str]] = {
    "exits": (raising(SystemExit(3)), "SystemExit: 3"),
    "interrupts": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "mute": (raising(MuteError()), "MuteError: its message cannot be shown"),
    "lines": (raising(ValueError("one\n\x1b[31mtwo")), r"ValueError: one \x1b[31mtwo"),
    "key raises": (bad(key=property(raising(RuntimeError("no key")))), "RuntimeError: no key"),
    "key missing": (bad(key=None), "has no usable 'key'"),
    "key a path": (bad(key="../out"), "has the key '../out'"),
    "aliases a text": (bad(aliases="ASR"), "has no usable 'aliases'"),
    "alias a number": (bad(aliases=(3,)), "has no usable 'aliases'"),
    "title raises": (bad(title=property(raising(SystemExit()))), "SystemExit"),
    "one length": (bad(seconds=(3.0,)), "has no usable 'seconds'"),
    "count a text": (bad(count="many"), "has no usable 'count'"),
    "class raises": (type("Odd", (), {"__class__": property(raising(ValueError("odd")))})(), "ValueError: odd"),
}
BROKEN_NOW: object = None


@pytest.mark.parametrize("case", BROKEN)
def test_whatever_a_plugin_raises_is_one_line_with_its_name(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value, told = BROKEN[case]
    monkeypatch.setattr(sys.modules[__name__], "BROKEN_NOW", value)
    plug_in(monkeypatch, broken=f"{__name__}:BROKEN_NOW")
    done = CliRunner().invoke(app, ["list", "tasks"])
    assert done.exit_code == 0, done.exception
    assert "tau" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: audiomarathon.tasks plug-in 'broken'")
    assert told in line


def test_titles_of_plugins_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BROKEN_NOW", bad(title="[bold]x[/y]\x1b[2J\nz"))
    plug_in(monkeypatch, odd=f"{__name__}:BROKEN_NOW")
    done = CliRunner().invoke(app, ["list", "tasks"])
    assert done.exit_code == 0, done.exception
    assert r"[bold]x[/y]\x1b[2J z" in done.stdout


def test_a_fact_of_a_plugin_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(["birds", "birds"])
    monkeypatch.setattr(sys.modules[__name__], "BROKEN_NOW", bad(title=property(lambda _self: next(told))))
    plug_in(monkeypatch, odd=f"{__name__}:BROKEN_NOW")
    assert [all_tasks()[-1].title for _ in range(4)] == ["birds"] * 4


@pytest.mark.parametrize("error", [KeyError("row"), SystemExit(1), MuteError()], ids=repr)
def test_a_method_of_a_plugin_that_raises_names_the_plugin(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BROKEN_NOW", bad(load=raising(error), find=lambda _self, root: root))
    plug_in(monkeypatch, odd=f"{__name__}:BROKEN_NOW")
    with pytest.raises(PluginError, match=rf"'odd' .*load\(\) raised {type(error).__name__}"):
        get_task("bad").load(tmp_path)
    done = CliRunner().invoke(app, ["data", "verify", "--data", str(tmp_path)])
    assert done.exit_code in (0, 1, 2), done.exception
    assert "Traceback" not in done.output
    assert "raised" in done.output
