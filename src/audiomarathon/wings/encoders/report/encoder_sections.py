"""Make the report page's sections on encoders: scores, a radar chart of all tasks, confusions, confident mistakes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from audiomarathon.report.charts import Chart, Row, by_name, field, figure, layer
from audiomarathon.report.render import Table
from audiomarathon.report.styles import palette
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.probing.probe_input import STANDARD
from audiomarathon.wings.encoders.report.encoder_tables import beside_published, by_task, encoder_scores, notes_of
from audiomarathon.wings.encoders.results.scores import Score
from audiomarathon.wings.encoders.scoring.probe import Classified
from audiomarathon.wings.encoders.xares.published import ENCODERS
from audiomarathon.wings.encoders.xares.task import EncoderTask

_SUREST = 10  # number of mistakes shown for each encoder and task
_FEWEST_AXES = 3
_MOST_LABELS = 60
_SIZE, _CELL = 360, 18  # pixels of a radar, and of a cell


def score_tables(scores: Sequence[Score]) -> list[Table]:
    """Return tables of scores: encoders by task, by probe, and X-ARES' baselines beside X-ARES' published scores.

    The table by task is made only for several encoders.
    """
    named = [name for name in ENCODERS if any(score.encoder == name for score in scores)]
    beside = [beside_published([score for score in scores if score.encoder == name], name, "readme") for name in named]
    several = [by_task(scores)] * (len({score.encoder for score in scores}) > 1)
    return [*several, encoder_scores(scores), *(table for table in beside if len(table.frame))]


def notes(runs: Sequence[Run], scores: Sequence[Score]) -> list[str]:
    """Return lines of text for below the tables: what the columns mean, and the notes that are stored in runs."""
    radar = ["The radar shows the linear probe's scores, from 0 in the middle to 1."] * bool(radars(scores))
    run_notes = dict.fromkeys(f"{run.key}: {note}" for run in runs for note in [run.facts.get("note")] if note)
    return [*radar, *notes_of(scores), *run_notes]


def radars(scores: Sequence[Score]) -> list[Chart]:
    """Return a radar chart of the linear probe's scores, one axis per task, sorted by domain; [] below three tasks."""
    scores = [score for score in scores if STANDARD[0] in score.by_probe]
    axes = list(
        dict.fromkeys((score.domain, score.task) for score in sorted(scores, key=lambda task_score: task_score.domain))
    )
    return [_radar(scores, [task for _, task in axes])] if len(axes) >= _FEWEST_AXES else []


def _radar(scores: Sequence[Score], axes: Sequence[str]) -> Chart:
    angles = {task: math.pi / 2 - 2 * math.pi * place / len(axes) for place, task in enumerate(axes)}

    def at(task: str, radius: float) -> Row:
        return {"x": radius * math.cos(angles[task]), "y": radius * math.sin(angles[task])}

    closed = [*axes, axes[0]]
    rings = [
        at(task, radius) | {"ring": str(radius), "place": place}
        for radius in (0.25, 0.5, 0.75, 1.0)
        for place, task in enumerate(closed)
    ]
    lines = []
    encoders = list(dict.fromkeys(score.encoder for score in scores))
    inks = dict(zip(encoders, palette(len(encoders)), strict=True))
    for encoder, colour in inks.items():
        task_values = {score.task: score.by_probe[STANDARD[0]].value for score in scores if score.encoder == encoder}
        there = [task for task in axes if task in task_values]
        for place, task in enumerate([*there, there[0]]):
            vertex = at(task, max(0.0, task_values[task])) | {
                "encoder": encoder,
                "task": task,
                "score": task_values[task],
            }
            lines.append(vertex | {"place": place, "colour": colour})
    names = [at(task, 1.14) | {"text": task} for task in axes]
    scale = {"domain": [-1.35, 1.35], "nice": False}
    placed = {"x": field("x:Q", axis=None, scale=scale), "y": field("y:Q", axis=None, scale=scale)}
    own_ink = {"color": by_name("encoder:N", inks), **placed}
    tip = [field("encoder:N"), field("task:N"), field("score:Q", format=".3f")]
    layers = [
        layer("rings", "line", {"color": "#cccccc", "strokeWidth": 0.8}, detail="ring:N", order="place:Q", **placed),
        layer("lines", "line", {"strokeWidth": 1.8}, order="place:Q", **own_ink),
        layer("lines", "point", {"filled": True, "size": 36}, tooltip=tip, **own_ink),
        layer("names", "text", {"fontSize": 11}, text="text:N", **placed),
    ]
    return Chart(figure(layers, _SIZE, _SIZE), {"rings": rings, "lines": lines, "names": names})


def confusions(runs: Sequence[Run]) -> dict[str, list[Chart]]:
    """Draw the linear probe's confusion matrix of each encoder and task, as {"<task>, <encoder>": [chart]}."""
    charts: dict[str, list[Chart]] = {}
    for run in _linear(runs):
        name = _namer(run)
        answers = (
            (verdict.record.reference["answer"], _label(verdict.record.text)) for verdict in run.verdicts.values()
        )
        pairs = Counter((name(answer), name(taken)) for answer, taken in answers)
        totals = Counter(answer for answer, _ in pairs.elements())
        if len(totals) > _MOST_LABELS:
            continue
        rows = [
            {"label": label, "taken": taken, "clips": count, "share": count / totals[label]}
            for (label, taken), count in sorted(pairs.items())
        ]
        across, down = len({cell["taken"] for cell in rows}), len(totals)
        shade = {"scheme": "blues", "domain": [0, 1]}
        cells = layer(
            "cells", "rect", {}, x=field("taken:N", title="taken for"), y=field("label:N", title="label"),
            color=field("share:Q", title="share of the label's clips", scale=shade),
            tooltip=[field("label:N"), field("taken:N", title="taken for"), field("clips:Q"),
                     field("share:Q", format=".0%")],
        )  # fmt: skip
        chart = Chart(figure(cells, max(_CELL * across, 120), _CELL * down), {"cells": rows})
        charts[f"{run.key.rpartition('/')[2]}, {run.checkpoint}"] = [chart]
    return charts


def surest_mistakes(runs: Sequence[Run]) -> Table:
    """Return a table of the test clips on which the linear probe was wrong with the highest probability.

    The table has a few clips of each encoder and task.
    """
    rows = []
    for run in _linear(runs):
        wrong = [verdict for verdict in run.verdicts.values() if not verdict.values["right"][0]]
        for mistake in sorted(wrong, key=lambda verdict: (-_sureness(verdict.record.text), verdict.record.id))[
            :_SUREST
        ]:
            where = {"encoder": run.checkpoint, "task": run.key.rpartition("/")[2], "clip": mistake.record.id}
            name = _namer(run)
            said = {"label": name(mistake.record.reference["answer"]), "taken_for": name(_label(mistake.record.text))}
            rows.append(where | said | {"probability": _sureness(mistake.record.text)})
    note = "by the linear probe; listen to the clips in the sample browser below, if this machine has their tars"
    return Table.of(rows, title="Surest mistakes", notes=(note,))


def _linear(runs: Sequence[Run]) -> Iterator[Run]:
    return (run for run in runs if run.method == STANDARD[0] and run.task and isinstance(run.task.scorer, Classified))


def _namer(run: Run) -> Callable[[str], str]:
    """Return a function from a label to its readable name; a label without a name stays as it is."""
    names = run.task.names if isinstance(run.task, EncoderTask) else {}
    return lambda label: names.get(label, label)


def _label(reply: str) -> str:
    return reply.split("\n", maxsplit=1)[0].split("\t", maxsplit=1)[0]


def _sureness(reply: str) -> float:
    return float(reply.split("\n", maxsplit=1)[0].split("\t")[1])
