"""A table of a JASCO run's figures beside the published figures of the model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from audiomarathon.judges.judgements import Judgement, read_judgements
from audiomarathon.judges.registry import KNOWN
from audiomarathon.report import render
from audiomarathon.runs.read import Run
from audiomarathon.wings.jasco.benchmark import DEPENDENCE, JASCO, JUDGES, LEANINGS


def beside_published(run: Run) -> render.Table:
    """Return a table of a finished JASCO run's scores beside the model's published ones; its title names the judges."""
    summary = run.summary
    assert summary is not None
    published = JASCO.models.get(str(run.facts.get("model", "")), "")
    panel, llama = DEPENDENCE.get(published, ((), ()))
    judges, judgements = sorted(summary["judged"]["judges"]), read_judgements(run.folder) if run.folder else {}
    models = {_model_of(judgements[name]) for name in judges if name in judgements}
    same = models == {KNOWN[name].rpartition("/")[2].lower() for name in JUDGES}
    by_whom = "the paper's judges" if same else f"other judges ({', '.join(judges) or 'none yet'})"
    readings = [reading for verdict in run.verdicts.values() for reading in verdict.values["readings"].values()]
    by_whom += ", asked with prompt v1" if any("prompt" in reading for reading in readings) else ""
    rows = []
    for name, of_panel, of_llama in zip_longest(("best_mean", *LEANINGS), panel, llama):
        ours = render.with_interval("ours", summary[name], summary["intervals"].get(name))
        ours["ours, read as published"] = summary["as_published"].get(name)
        rows.append({"figure": name, **ours, "three judges": of_panel, "Llama alone, prompt v1": of_llama})
    control = f" [{run.control}]" * bool(run.control)
    title = f"{run.checkpoint}, {run.method}{control}: {by_whom}, beside {published or 'no published row'}"
    kinds = {name: render.Kind(name, ".2f") for name in rows[0] if name != "figure"}
    kinds["ours"] = render.Kind("ours [95 %]", ".2f")
    ask = f"next: audiomarathon judge {run.folder} --with {','.join(JUDGES)}; then the same command again"
    notes = [*(summary.get("notes") or ()), *[ask] * (not judges)]
    return render.Table.of(rows, title=title, kinds=kinds, notes=notes)


def _model_of(judgements: Mapping[str, Mapping[str, Judgement]]) -> str:
    """Return the name of the model that gave these judgements, in lower case and without the owner of a hub id."""
    identities = (request.identity for requests in judgements.values() for request in requests.values())
    return str(next(identities, {}).get("model", "")).rpartition("/")[2].lower()
