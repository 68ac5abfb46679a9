"""CONTRIBUTING.md's examples, taken from the page and run through the engine."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import task_folders
from builders import a_record, one_load, records_in, write_run  # noqa: F401 (a fixture)

from audiomarathon import evaluate
from audiomarathon.compression.method import kept_count
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judging import Bench, Case, judge_run
from audiomarathon.records import Record
from audiomarathon.runs.folder import read_records
from audiomarathon.scoring.scorer import figures_of

pytestmark = pytest.mark.usefixtures("one_load")

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MODULES = {
    match[1]: match[0]
    for match in re.finditer(r"(?<=```python\n)# (\w+\.py)\n.*?(?=^```$)", PAGE, re.DOTALL | re.MULTILINE)
}


class Shouting(Judge):
    """Shouting replies are rude."""

    key = "shouting"

    def identity(self):
        return {"backend": "rule", "rule": "no exclamation mark but the first"}

    def ask(self, requests):
        for request in requests:
            shouts = request.messages[-1]["content"].count("!") > 1
            yield request, Reply(f"Polite: {int(not shouts)}", finish="stop")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the examples as modules into a folder on Python's path."""
    site = tmp_path / "site"
    site.mkdir()
    for name, code in MODULES.items():
        (site / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    yield site
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_the_example_press_prunes_the_same_imported_or_named_by_its_file(
    written, tiny_checkpoint, tmp_path, no_env
) -> None:
    data = task_folders.build_tau(tmp_path / "data")
    settings = {"data": str(data), "model_path": str(tiny_checkpoint), "results": tmp_path / "out", "max_new_tokens": 4}
    press = importlib.import_module("large_values").LargeValues(0.5)
    base, first = evaluate("tau", model="embedded", method=["base", press], limit=2, **settings)
    by_file = f"{written}/large_values.py:LargeValues:0.5"
    (second,) = evaluate("tau", model="embedded", method=by_file, limit=2, **settings | {"results": tmp_path / "again"})
    pressed = [first, second]
    assert [result.method for result in pressed] == ["large_values-0.5"] * 2  # one label, installed or by its file
    for whole, *cut in zip(*(records_in(result.folder) for result in (base, *pressed)), strict=True):
        dropped = whole["audio_tokens"] - kept_count(whole["audio_tokens"], 0.5)
        assert [record["kv_lengths"] for record in cut] == [[length - dropped for length in whole["kv_lengths"]]] * 2


@pytest.mark.usefixtures("written")
def test_the_example_scorer_computes_a_score() -> None:
    scorer = importlib.import_module("counting").Counting()
    records = [
        Record(str(place), f"c{place}", reply=reply, reference={"count": 3})
        for place, reply in enumerate(("3", "I hear 4 calls.", "many"))
    ]
    figures = figures_of(scorer, list(scorer.verdicts(records)), seed=1)
    assert (figures["score"], figures["n"]) == (0.5, 3)


@pytest.mark.usefixtures("written")
def test_the_example_judge_protocol_yields_a_score(tmp_path: Path) -> None:
    scorer, judge = importlib.import_module("politeness").Politeness(), Shouting()
    facts = {"task": "polite", "method": "base-0"}
    folder = write_run(tmp_path, facts, [a_record(str(place), reply="Hey!" * place) for place in range(4)])
    judge_run(Case(folder, list(read_records(folder).values()), scorer.protocol), Bench("shouting", judge))
    figures = figures_of(scorer, list(scorer.verdicts(list(read_records(folder).values()))), seed=1)
    assert figures["score"] == 0.5
    assert figures["judged"]["judges"]["shouting"]["weak"] == ["rude"]
