"""Make tables and charts of audio towers: scores by layer and after pruning, and probes beside the models' replies.

A tower is the audio encoder of an audio LLM. A point is a layer of tower or LLM whose output a linear probe reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from audiomarathon.report.charts import Chart, Line, line_chart, point
from audiomarathon.report.curves import panels_of
from audiomarathon.report.pictures import of_panel
from audiomarathon.report.render import Kind, Table, estimated
from audiomarathon.report.styles import method_and_ratio, palette
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.probing.probe_input import PROTOCOLS
from audiomarathon.wings.encoders.results.towers import CELLS, Fourfold, Standing, point_of

_LOOK = "random"  # the method whose line is solid and whose marks are discs
_SHARES = (*CELLS, "lost", "probe", "reply")


def is_layer(run: Run) -> bool:
    """Tell whether a run was made by `encoder layers`: a linear probe of one layer of an audio tower or LLM."""
    return bool(point_of(run)) and run.method == "linear"


def _named(run: Run) -> str:
    """Return a heading for a probe's run: its task and its model."""
    return f"{run.key.rpartition('/')[2]}, {run.checkpoint.partition('@')[0]}"


def _place(point: str) -> tuple[bool, int, int]:
    """Return a sort key for a probed point of an audio LLM, such as `tower.3` (layer 3 of its tower) or `llm.last`.

    Points come in the order in which the audio passes them, then `best` and the mixes of layers (`tower-mix`).
    """
    sides = ("tower", "projector", "llm", "text")
    side, _, number = point.partition(".")
    order = sides.index(side) if side in sides else len(sides)
    return order == len(sides), order, int(number) if number else 999


def _by_layer(runs: Sequence[Run]) -> list[Run]:
    """Return the runs made by `encoder layers`, sorted in the order in which the audio passes the probed layers."""
    return sorted(filter(is_layer, runs), key=lambda run: _place(point_of(run)))


def layer_table(runs: Sequence[Run]) -> Table:
    """Make a table of the linear probe's scores: one row per model and layer, one column per task, with intervals."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for run in _by_layer(runs):
        model, task = run.checkpoint.partition("@")[0], run.key.rpartition("/")[2]
        row = rows.setdefault((model, point_of(run)), {"model": model, "point": point_of(run)})
        row |= estimated(task, run.headline)
    notes = (
        "best: in each split the point with the best validation score; mix: mean of layers by weights learned on train",
        "text: the last token of the prompt",
    )
    tasks = list(dict.fromkeys(name for row in rows.values() for name in row if not name.endswith(("_low", "_high"))))
    whole = sorted(rows.values(), key=lambda row: str(row["model"]))
    return Table.of(whole, tasks, title="Layer by layer", group="model", notes=notes, foreign=True)


def layer_curves(runs: Sequence[Run]) -> dict[str, Chart]:
    """Return {task and model: chart}: the probe's score at the layers of the audio tower, then at those of the LLM."""
    groups: dict[str, list[Run]] = {}
    for run in _by_layer(runs):
        groups.setdefault(_named(run), []).append(run)
    return {name: _curve(name, group) for name, group in groups.items() if len(group) > 2}


def _curve(name: str, runs: Sequence[Run]) -> Chart:
    layers = [run for run in runs if not _place(point_of(run))[0] and point_of(run) != "text"]
    others = [run for run in runs if run not in layers]
    sides: dict[str, list[dict[str, Any]]] = {}
    for place, run in enumerate(layers):
        side = point_of(run).partition(".")[0]
        layer_point = point(place, run.headline, what=point_of(run))
        sides.setdefault("llm" if side == "projector" else side, []).append(layer_point)
    colours = palette(len(sides) + len(others))
    lines = [Line(side, _LOOK, points, colour=ink) for (side, points), ink in zip(sides.items(), colours, strict=False)]
    rules = [(point_of(run), run.headline.value, ink) for run, ink in zip(others, colours[len(sides) :], strict=True)]
    if layers and (guessed := (layers[0].summary or {}).get("majority")) is not None:
        rules.append(("most frequent", guessed, "#666"))
    figure = layers[0].task.scorer.figure.title if layers and layers[0].task else "score"
    return line_chart(lines, "layer", figure, rules=rules, ticks=[point_of(run) for run in layers]).with_title(name)


def pruned_curves(runs: Sequence[Run]) -> dict[str, Chart]:
    """Return {task and probed point (layer, such as `llm.last`): chart}: score against the ratio, one line per method.

    The ratio is the share of audio tokens that a method removes.
    """
    pruned = [run for run in runs if point_of(run) and not is_layer(run)]
    drawn = {panel.name: of_panel(replace(panel, notes=())) for panel in panels_of(pruned)}  # nothing is timed
    return {name: chart for name, chart in drawn.items() if chart is not None}


def fourfold_table(fourfolds: Sequence[Fourfold]) -> Table:
    """Make a table of the shares of clips that the probe, the reply, both or neither get right, one row per setting.

    `lost` is the share that the probe gets right without compression (base), but wrong with this setting.
    """
    rows = []
    for fourfold in fourfolds:
        row = {
            "task": fourfold.reply.key,
            "point": fourfold.probe.checkpoint,
            "setting": fourfold.probe.method,
            "n": fourfold.n,
        }
        for name in _SHARES:
            row |= estimated(name, fourfold.shares.get(name))
        rows.append(row)
    notes = (
        "shares of clips; unused: the probe is right, the reply wrong; reply only: the reply is right, the probe wrong",
        "lost: the probe is right with base and wrong with this setting; probe, reply: all clips that each gets right",
    )
    kinds = {name: Kind(form=".3f") for name in _SHARES} | {"point": Kind(left=True)}
    shown = ["task", "point", "setting", "n", *_SHARES]
    return Table.of(rows, shown, title="Lost or unused", group="point", kinds=kinds, notes=notes)


def fourfold_curves(fourfolds: Sequence[Fourfold]) -> dict[str, list[Chart]]:
    """Return {task and probed point: one chart per method}: accuracy of probe and of replies against the ratio.

    The ratio is the share of audio tokens that a method removes.
    """
    drawn: dict[str, list[Chart]] = {}
    places: dict[str, list[tuple[str, float, Fourfold]]] = {}
    for fourfold in fourfolds:
        curve = places.setdefault(f"{fourfold.reply.key}, {fourfold.probe.checkpoint}", [])
        curve.append((*method_and_ratio(fourfold.reply.identity), fourfold))
    for name, placed in places.items():
        for method in dict.fromkeys(method for method, _, _ in placed if method != "base"):
            points = sorted(
                ((ratio, comparison) for key, ratio, comparison in placed if key in ("base", method)),
                key=lambda p: p[0],
            )
            lines = [
                Line(side, _LOOK, [point(ratio, comparison.shares[side]) for ratio, comparison in points], colour=ink)
                for side, ink in zip(("probe", "reply"), palette(2), strict=True)
            ]
            chart = line_chart(lines, "fraction of audio removed", "accuracy", range_=(0.0, 1.05), size=(300, 200))
            drawn.setdefault(name, []).append(chart.with_title(method))
    return drawn


def standing_table(standings: Sequence[Standing]) -> Table:
    """Make a table of models' mean scores without pruning: of a probe of the tower (audio encoder), and of replies."""
    rows = [
        {"model": standing.checkpoint, "point": standing.point}
        | estimated("encoder", standing.encoder)
        | estimated("reply", standing.model)
        for standing in standings
    ]
    tasks = (
        f"encoder: {', '.join(standing.tasks)}; reply: {', '.join(standing.model_tasks)}" for standing in standings
    )
    kinds = {"encoder": Kind("tower's probe", ".3f"), "reply": Kind("model's score", ".3f")}
    shown, notes = ["model", "point", "encoder", "reply"], tuple(dict.fromkeys(tasks))
    return Table.of(rows, shown, title="Tower and model", kinds=kinds, notes=notes)


def standing_chart(standings: Sequence[Standing]) -> Chart:
    """Return a chart, one point per model: the mean score of its replies against that of a probe of its audio tower."""
    lines = [
        Line(standing.checkpoint, _LOOK, [point(standing.encoder.value, standing.model)], colour=ink)
        for standing, ink in zip(standings, palette(len(standings)), strict=True)
    ]
    chart = line_chart(lines, "tower's probe, mean score", "model's mean score", bands=False)
    return chart.with_title("Tower and model")


def of_encoders(runs: Sequence[Run]) -> list[Run]:
    """Return the probe runs that belong in the tables of encoders.

    Runs of single layers and of pruned towers are left out, since they have tables of their own.
    """
    layered = {run.checkpoint.partition("@")[0] for run in runs if point_of(run) == "best"}

    def unpruned(run: Run) -> bool:
        return run.method in PROTOCOLS["both"] and run.checkpoint.partition("@")[0] not in layered

    return [run for run in runs if not point_of(run) or unpruned(run)]
