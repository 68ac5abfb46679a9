"""Tables of the available tasks, models, methods and judges for the command `list`, made without pandas or SciPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from audiomarathon.benchmarks import all_tasks
from audiomarathon.benchmarks.registry import facts_of
from audiomarathon.compression.registry import all_methods
from audiomarathon.models.registry import all_models
from audiomarathon.report.render import NONE, Kind, Table


def tasks() -> Table:
    """Make the table of the tasks, in the paper's order: name, group, number of samples, clip lengths, score."""
    rows = []
    for task in all_tasks():
        facts = facts_of(task.key)
        seconds = facts.seconds if facts else None
        row: dict[str, Any] = {"key": task.key, "paper": facts.acronym if facts else NONE, "what": task.title}
        row |= {"group": facts.group if facts else NONE, "samples": facts.count if facts else None}
        row["minutes"] = "{:.2g}–{:.2g}".format(*(length / 60 for length in seconds)) if seconds else NONE
        rows.append(_flat(row) | {"score": task.scorer.figure.title})
    return Table.of(rows, title="Tasks", least=("group", "paper", "minutes"), kinds={"score": Kind("score", left=True)})


def models() -> Table:
    """Make the table of the models, with the sizes of their checkpoints."""
    rows = [
        {
            "key": model.key,
            "also": ", ".join(model.aliases),
            "checkpoint": model.checkpoint,
            "download": f"{model.download_gb:g} GB" if model.download_gb else "none",
            "audio_tokens_a_second": f"{model.tokens_per_second:g}" if model.tokens_per_second else NONE,
            "what": model.title,
        }
        for model in all_models()
    ]
    least = ("also", "download", "audio_tokens_a_second", "checkpoint")
    kinds = {"audio_tokens_a_second": Kind("audio tokens / s")}
    return Table.of([_flat(row) for row in rows], title="Models", least=least, kinds=kinds)


def methods() -> Table:
    """Make the table of the methods: name, paper, and what each saves."""
    rows = [
        {
            "key": method.key,
            "paper": f"arXiv {method.paper}" if method.paper else NONE,
            "saves": method.saves,
            "needs": method.needs or NONE,
            "what": method.title,
        }
        for method in all_methods()
    ]
    return Table.of([_flat(row) for row in rows], title="Methods", least=("saves", "paper"))


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which each text is one line, since texts of plug-ins may have several lines."""
    return {name: " ".join(value.split()) if isinstance(value, str) else value for name, value in row.items()}


def judges() -> Table:
    """Make the table of the judges: short names for hub ids, forms such as `endpoint:MODEL`, and plug-ins."""
    from audiomarathon.judges.registry import FORMS, KNOWN, plugged_in

    rows = [{"judge": name, "what": source} for name, source in {**KNOWN, **FORMS}.items()]
    rows += [{"judge": judge.key, "what": type(judge).__doc__ or NONE} for judge in plugged_in()]
    return Table.of([_flat(row) for row in rows], title="Judges", kinds={"judge": Kind("--with", left=True)})


LISTINGS: Mapping[str, Callable[[], Table]] = {"tasks": tasks, "models": models, "methods": methods, "judges": judges}
