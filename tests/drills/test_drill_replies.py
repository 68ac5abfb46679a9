"""Hostile replies (HTML, ANSI escapes, a megabyte) through scoring, tables, CSV, Markdown, LaTeX and the HTML page."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import STAGES, a_record, lines_of, records_in, typed, write_run
from conftest import content_of
from hanging import no_hang
from typer.testing import CliRunner

from audiomarathon.benchmarks import get_task
from audiomarathon.cli.app import app
from audiomarathon.records import Record
from audiomarathon.runs.folder import RunFolder

#: Characters of a long reply: a megabyte in `make drills`.
MUCH = 1_000_000 if os.environ.get("AUDIOMARATHON_DRILLS") == "long" else 60_000
HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)></script><!--",
    "ansi": "\x1b[31mA\x1b[2J\x1b]0;owned\x07\x9b1m\rB",
    "megabyte": "A" * MUCH,
    "megabyte of words": "the answer is " * (MUCH // 14),
    "megabyte of letters": "A. B. C. " * (MUCH // 9),
    "megabyte of markup": "<b>" * (MUCH // 3),
    "formula": '=HYPERLINK("http://x","A")',
    "lines": "A\n\n| x | y |\n|---|---|\nB\u2028C\u2029",
    "template": "{{ 7*7 }} {% raw %} ${x} [bold]A[/x] \\input{/etc/passwd} %s %n {0}",
    "json": '"}],"evil":[{"a":"',
    "surrogate": "\udcff\ud800 A",
    "nul": "\0A\0",
    "backwards": "\u202eA\u202c\u200f",
    "stacked": "Z" + "\u0301" * 5000,
    "nothing": "",
    "blank": " \u200b\ufeff\n",
    "transcript": "ha " * (MUCH // 3),
}
FACTS: dict[str, Any] = {
    "checkpoint": "/x/tiny", "settings": {"seed": 42}, "sessions": [], "bad_rows": [], "left_out": {}, "cost": None,
    "drops": None, "data_samples": 1, "data_expected": 1, "data_folder": "nowhere",
}  # fmt: skip
#: Characters that no terminal may receive.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def record_of(task_key: str, id_: str, reply: str) -> Record:
    reference = {"answer": "A", "options": ["Bus", "Tram", "Park", "Metro"], "labels": ["bus", "tram", "park", "metro"]}
    if task_key == "librispeech":
        reference = {"answer": "GO ON"}
    counts = dict.fromkeys(("audio_tokens", "kept_audio_tokens", "prompt_tokens", "new_tokens", "kv_bytes"), 4)
    more = {"kv_lengths": [4], "time": STAGES, "forced_decode": None, "session": "now"}
    return typed(a_record(id_, reply=reply, reference=reference, **counts, **more))


@pytest.fixture(params=["tau", pytest.param("librispeech", marks=pytest.mark.long)])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a run whose model name, sample ids and replies are hostile."""
    folder = tmp_path / "results" / request.param / "tiny" / "base-0"
    with RunFolder(folder, {"method": "base"}) as run:
        replies = {**HOSTILE, HOSTILE["ansi"]: "A", HOSTILE["html"]: "B", "=1+1": "=1+1"}
        if request.param == "librispeech":  # normalising a megabyte of words takes seconds: keep one of them
            replies = {id_: reply for id_, reply in replies.items() if len(reply) < MUCH // 2 or id_ == "transcript"}
        facts = {**FACTS, "task": request.param, "model": HOSTILE["html"], "method": "base-0"}
        run.write_run({**facts, "data_expected": len(HOSTILE) + 3, "samples": list(replies)})
        for id_, reply in replies.items():
            run.append(record := record_of(request.param, id_, reply))
            with no_hang(20):
                get_task(request.param).scorer.judge(record)
    return folder


def call(*arguments: object) -> str:
    with no_hang(120):
        done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1), done.output
    assert not OBEYED.search(done.output), OBEYED.search(done.output)
    return done.output


def test_hostile_text_in_replies_is_escaped_in_scores_report_page_and_tables(run: Path, tmp_path: Path, tell) -> None:
    count = len((run / "samples.jsonl").read_bytes().splitlines())
    call("score", run)
    assert "base-0" in call("status", run)
    call("report", tmp_path / "results", "-o", tmp_path / "r.html", "--figures", tmp_path / "f", "--audio", "none")
    html = (tmp_path / "r.html").read_text()
    assert "<img" not in html.partition('<script type="application/json"')[0]
    assert html.count("</script>") == 3
    assert len(html) < 2_000_000
    replies = {sample["id"]: sample["replies"][0]["reply"] for sample in content_of(html)["samples"]}
    assert replies["html"] == HOSTILE["html"]
    assert all(len(reply) < 5000 for reply in replies.values())
    table = pd.read_csv(tmp_path / "f" / "records.csv", keep_default_na=False)
    assert len(table) == count
    for column in ("id", "reply", "cluster"):
        assert not any(str(cell).startswith(("=", "+", "-", "@", "\t", "\r")) for cell in table[column])
        assert not any(OBEYED.search(str(cell)) for cell in table[column])
    for name in ("scores.md", "scores.tex"):
        assert not OBEYED.search((tmp_path / "f" / name).read_text())
    survived = records_in(run)
    assert all(record["reply"] == HOSTILE[record["id"]] for record in survived if record["id"] in HOSTILE)
    (file,) = run.glob("verdicts-*.jsonl")
    assert [line["id"] for line in lines_of(file)] == [record["id"] for record in survived]
    characters = sum(len(record["reply"]) for record in survived)
    tell(f"{count} replies, {characters:,} characters: all on record as said, none obeyed")


def test_score_status_report_and_compare_accept_any_setting_name(tmp_path: Path, tell) -> None:
    names = ["[/x]", "[red]x", "| x |", "x & y _ %", "=1+1"]
    results = tmp_path / "results"
    for number, method in enumerate(("base-0", *names)):
        with RunFolder(results / "tau" / "tiny" / f"folder-{number}", {"method": method, "data": "1"}) as run:
            run.write_run({**FACTS, "task": "tau", "model": method, "method": method, "samples": ["a"]})
            run.append(record_of("tau", "a", "A"))
    call("report", results, "-o", tmp_path / "r.html", "--audio", "none", "--figures", tmp_path / "f")
    for command in ("score", "status", "compare"):
        output = call(command, results)
        assert [name for name in names if name not in output] == [], command
    tell("shown as they are by score, status, report and compare")


def test_a_setting_name_with_control_characters_is_refused(tmp_path: Path, tell) -> None:
    write_run(tmp_path, {"task": "tau", "method": "\x1b[31mred"}, [])
    for command in ("score", "report", "compare", "status"):
        done = CliRunner().invoke(app, [command, str(tmp_path)])
        assert done.exit_code
        assert "holds control characters" in done.output
        assert not OBEYED.search(done.output)
    tell(done.output.strip().replace(str(tmp_path), ""))
