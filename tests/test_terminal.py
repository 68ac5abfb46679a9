"""Terminal output: tables that fit, unchanged help texts, counts with their nouns, and commands without torch."""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from typer.main import get_command
from typer.testing import CliRunner

from audiomarathon.cli.app import COMMANDS, app
from audiomarathon.cli.output import reporting_errors
from audiomarathon.errors import ModelError
from audiomarathon.models.loading import loading
from audiomarathon.report import tables
from audiomarathon.report.listings import LISTINGS
from audiomarathon.report.render import for_width
from audiomarathon.results.sweep_summary import read_outcome
from audiomarathon.terminal import LINE_EVERY_S, console, fitted, progress_of, showing_records, standard_streams


def a_table() -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("task", "setting", "score", "note", "MB"):
        table.add_column(heading, justify="right" if heading in ("score", "MB") else "left", no_wrap=True)
    table.add_row("librispeech", "frame-0.5-layer2", "0.833 [0.500, 1.000]", "some words that may wrap", "12.34")
    return table


def shown(table: Table, width: int) -> str:
    out = Console(file=io.StringIO(), width=width)
    out.print(table)
    text = out.file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    return text


class TestFitted:
    def test_a_narrow_table_wraps_text_then_drops_columns_then_wraps_numbers(self) -> None:
        setting, score, note = "frame-0.5-layer2", "0.833 [0.500, 1.000]", "not shown, terminal too narrow: MB"
        for width, whole in (
            (120, ["some words that may wrap", score, "12.34"]),
            (90, [score, "12.34", setting]),
            (84, [score, setting, "librispeech", note]),
            (60, [setting, "librispeech", note]),
        ):
            text = shown(fitted(a_table(), width, ["absent", "MB"]), width)
            assert [part for part in whole if part not in text] == []
            assert ("12.34" in text) == ("12.34" in whole)
            assert "…" not in text
        assert "…" not in shown(fitted(a_table(), 30), 30)

    @pytest.mark.parametrize("name", LISTINGS)
    def test_the_list_commands_never_cut_names_at_any_terminal_width(self, name: str) -> None:
        longest = {"tasks": "librispeech", "models": "audio-flamingo-3", "methods": "expected_attention"}
        for width in (60, 80, 160):
            text = shown(for_width(LISTINGS[name](), width), width)
            assert (longest | {"judges": "mistral-large-2411"})[name] in text

    @pytest.mark.parametrize(("columns", "width"), [("", 200), ("72", 72), ("wide", 200)])
    def test_output_to_a_pipe_is_200_columns_wide_unless_the_columns_variable_is_set(
        self, monkeypatch, columns, width
    ) -> None:
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        monkeypatch.setenv("COLUMNS", columns)
        assert console().width == width


def test_sweep_tables_show_their_main_columns_on_a_terminal_of_100_columns(tmp_path: Path) -> None:
    """The tables are of a real sweep and run, whose cells are wider than the terminal."""
    shutil.copytree(Path(__file__).parent / "data" / "made_by_8983bac" / "runs", tmp_path / "runs")
    ((_, settings),) = read_outcome(tmp_path / "runs", seed=42).checkpoints.items()
    scores, saved = tables.sweep(settings)
    run = tables.results([setting.result for setting in settings])
    drawn = [for_width(table, 100) for table in (scores, run, saved)]
    headings = [[str(column.header) for column in table.columns] for table in drawn]
    assert all("not shown" in shown(table, 100) for table in drawn)
    assert {"score [95 % interval]", "score − base [95 %]", "audio tokens", "KV MB"} <= {*headings[0]}
    assert {"score [95 % interval]", "LLM prefill ms", "audio tokens", "KV MB"} <= {*headings[1]}
    assert headings[2] == [saved.heading(name) for name in saved.columns if name != "scoring_s"]


def test_help_lists_each_command_under_one_heading() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    names = [name for listed in COMMANDS.values() for name in listed]
    assert sorted(names) == sorted(get_command(app).commands)  # type: ignore[attr-defined]
    assert [line[:-1] for line in text.splitlines() if line[:1].isalpha()][1:] == ["Options", *COMMANDS]


@pytest.mark.parametrize(
    ("unit", "step", "told"),
    [("clip", 10, ["tau: 20 of 30 clips (67%)"]), ("B", 10**9, ["tau: 2.00 of 3.00 GB (67%)"])],
)
def test_progress_in_a_pipe_is_an_occasional_short_line(monkeypatch, capsys, unit, step, told) -> None:
    clock = iter([0.0, LINE_EVERY_S / 2, LINE_EVERY_S, LINE_EVERY_S + 1])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress_of(3 * step, "tau", unit) as count:
        for _ in range(3):
            count(step)
    assert capsys.readouterr().err.splitlines() == told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
class TestStreamsThatTakeNothing:
    """Output to a full disk, to a pipe without a reader, and to a closed terminal."""

    @pytest.fixture
    def full(self) -> Iterator[io.TextIOWrapper]:
        with open("/dev/full", "w") as stream:  # noqa: PTH123
            yield stream

    def code(self, command: Callable[[], int | None]) -> int:
        with pytest.raises(SystemExit) as done:
            reporting_errors(command)()
        return int(str(done.value.code))

    def test_a_full_disk_ends_a_display_command_with_a_one_line_error(self, full: io.TextIOWrapper, capsys) -> None:
        with redirect_stdout(full):
            assert self.code(lambda: console().print("A")) == 2
        assert capsys.readouterr().err == "error: standard output cannot be written: No space left on device\n"

    def test_a_command_ends_without_a_message_if_the_reader_of_its_pipe_has_left(self, capsys) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as left, redirect_stdout(left):
            assert self.code(lambda: console().print("A")) == 141
        assert capsys.readouterr().err == ""

    def test_no_command_ends_with_a_traceback_if_its_output_fails(self) -> None:
        commands = {"--help >/dev/full": 2, "nosuch 2>/dev/full": 2, "list methods >&- 2>&-": 0}
        shells = [["sh", "-c", f"{sys.executable} -u -m audiomarathon {command}"] for command in commands]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun = [subprocess.Popen(shell, **pipes) for shell in shells]  # side by side
        assert not any("Traceback" in process.communicate()[1] for process in begun)
        assert [process.returncode for process in begun] == [*commands.values()]

    def test_a_result_table_lost_to_a_full_disk_is_only_a_warning_if_records_are_stored(self, full, capsys) -> None:
        def command() -> int:
            with showing_records():
                console().print("A")
            console().print("B")  # lost without a message
            return 1

        with redirect_stdout(full):
            assert self.code(command) == 1
        assert "warning: standard output cannot be written" in capsys.readouterr().err

    def test_work_continues_after_its_terminal_is_closed(self) -> None:
        ours, theirs = pty.openpty()
        with (
            os.fdopen(theirs, "w") as terminal,
            redirect_stderr(terminal),
            standard_streams(),
            progress_of(9, "work", "clip") as update,
        ):
            assert sys.stderr.isatty()
            os.close(ours)
            for _ in range(9):
                update(1)
                sys.stderr.write("a line")
                sys.stderr.flush()


def test_a_model_loading_error_quotes_the_message_of_the_operating_system(tmp_path: Path) -> None:
    said = r"config.json: No such file or directory"
    with pytest.raises(ModelError, match=said), loading(tmp_path, "Qwen"):
        (tmp_path / "config.json").read_text()
    with pytest.raises(ModelError, match=r"cannot be loaded .*no such shard"), loading(tmp_path, "Qwen"):
        raise OSError("no such shard")
