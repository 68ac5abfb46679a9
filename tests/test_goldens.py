"""All numbers from two results folders of commit 8983bac stay as they were: summaries, comparison, page, paper files.

`python tests/test_goldens.py` rewrites the golden files. State in CHANGELOG.md which numbers changed, and why.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import content_of
from typer.testing import CliRunner

from audiomarathon.cli.app import app
from audiomarathon.report.page_data import PageData, by_duration
from audiomarathon.results.systems import read_systems

FIXTURE = Path(__file__).parent / "data" / "made_by_8983bac"
FOLDERS = ("runs", "demo")


def command(*words: object) -> None:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code in (0, 1), done.output  # 1: the fixture holds samples that failed


def views(name: str, work: Path) -> dict[str, Any]:
    """Return the output of the commands on a copy of a results folder."""
    results = shutil.copytree(FIXTURE / name, work / name)
    for file in results.rglob("run.json"):  # the demo's data is not stored, so no prompts or events
        file.write_text(file.read_text().replace("/tmp/audiomarathon/", f"{FIXTURE}/"))
    command("score", results)
    summaries = {
        file.parent.relative_to(results).as_posix(): json.loads(file.read_text())
        for file in sorted(results.rglob("summary.json"))
        if file.parent != results
    }
    for summary in summaries.values():
        del summary["scorer"], summary["records"]  # hashes of the code that judged
    command("compare", results, "-o", work / "compare.json")
    page, paper = work / "report.html", work / "paper"
    command("report", results, "-o", page, "--audio", "none", "--no-spectrograms", "--figures", paper)
    data = PageData(read_systems([results]))
    texts = [file for file in sorted(paper.iterdir()) if file.suffix in (".csv", ".md", ".tex")]
    return {
        "summaries": summaries,
        "compare": json.loads((work / "compare.json").read_text()),
        "figures": {f"{scope}, {row['setting']}": _plain(row) for (scope, _), row in data.figures.items()},
        "samples": content_of(page.read_text())["samples"],
        "paper": {file.name: file.read_text().splitlines() for file in texts},
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name not in ("mean_of", "own_scores")}  # draws, samples
    bins = by_duration(row["own_scores"])
    return kept | {"durations": [dict(zip(("from", "n", "score"), cells, strict=True)) for cells in bins]}


def differences(golden: Any, now: Any, where: str = "") -> list[str]:
    """Return where two trees differ; numbers may differ in their last digits, from one processor to another."""
    if isinstance(golden, dict) and isinstance(now, dict):
        lost = [f"{where}/{key}: {'lost' if key in golden else 'new'}" for key in sorted(golden.keys() ^ now.keys())]
        both = [differences(golden[key], now[key], f"{where}/{key}") for key in golden if key in now]
        return lost + [line for lines in both for line in lines]
    if isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        each = [differences(*pair, f"{where}/{place}") for place, pair in enumerate(zip(golden, now, strict=True))]
        return [line for lines in each for line in lines]
    if isinstance(golden, float) and isinstance(now, float) and math.isclose(golden, now, rel_tol=1e-9, abs_tol=1e-12):
        return []
    if isinstance(golden, str) and isinstance(now, str) and ("/notes/" in where or where.endswith("/why")):
        golden, now = (re.findall(r"\d[\d.]*", text) for text in (golden, now))  # sentences may be reworded
    return [] if golden == now else [f"{where}: {golden!r} -> {now!r}"]


@pytest.mark.parametrize("name", FOLDERS)
def test_scoring_stored_replies_gives_the_metrics_of_the_golden_files(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("audiomarathon.report.charts.save", lambda _chart, file: file)  # pictures are not looked at
    golden = json.loads((FIXTURE / f"{name}.golden.json").read_text())
    assert differences(golden, json.loads(json.dumps(views(name, tmp_path)))) == []


if __name__ == "__main__":
    for each in FOLDERS:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(views(each, Path(folder)), indent=0, sort_keys=True)
        (FIXTURE / f"{each}.golden.json").write_text(text + "\n")
