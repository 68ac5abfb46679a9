"""Tables, sentences and charts on whether pruning removes speech or sound first, for `jasco survival` and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from audiomarathon.metrics.statistics import Estimate
from audiomarathon.report import charts
from audiomarathon.report import styles as series
from audiomarathon.report.charts import Chart, Line
from audiomarathon.report.render import Kind, Table, estimated
from audiomarathon.wings.jasco.survival import MODALITIES, measurable, sentence
from audiomarathon.wings.jasco.survival_of_runs import AS_IS, BOTH_ORDERS, Survival

_PERCENT = ".0f"
_ENDS = ("", "_low", "_high")
_LONG = ("model", "setting", "method", "ratio", "speech_stands", "kept_tokens",
         *(f"{name}{end}" for name in ("preference", "difference") for end in _ENDS), "p", "p_holm")  # fmt: skip
_STANDS = {BOTH_ORDERS: "mean of speech first and speech last"}
_COLOURS = {"speech": "#0072B2", "sound": "#D55E00", "answer": "#777777"}
_PREFERENCE = "E: share of speech tokens kept ÷ share of all tokens kept; above 1, the method prefers speech."
_NO_PREFERENCE = (
    "E (share of speech tokens kept ÷ share of all tokens kept) needs speech.csv (audiomarathon jasco speech; --speech)"
)
_LATE = (
    "Speech comes late in most clips, so a method that keeps late audio seems to keep speech: also run the controls "
    "speech-first and speech-last, whose mean avoids this."
)


def rows(survivals: Sequence[Survival]) -> list[dict[str, Any]]:
    """Return a dict of results for each setting and position of the speech; shares are in 0–1, missing values None."""
    return [_row(survival) for survival in survivals]


def long_rows(survivals: Sequence[Survival]) -> list[dict[str, Any]]:
    """Return rows for a CSV file: one per setting, position of the speech and modality (speech, sound, answer)."""
    kept = []
    for survival in survivals:
        row = _row(survival)
        columns = {name: row[name] for name in _LONG}
        for name in MODALITIES:
            figures = {"skill_of_base": name, "kept": f"{name}_kept"}
            ends = {f"{to}{end}": row[f"{of}{end}"] for to, of in figures.items() for end in _ENDS}
            kept.append(columns | {"modality": name, "measurable": measurable(survival.figures, name)} | ends)
    return kept


def tables(survivals: Sequence[Survival]) -> list[Table]:
    """Return two tables: how much of speech and sound the unpruned model reports, and what settings keep of it."""
    several = len({survival.system.checkpoint for survival in survivals}) > 1
    model = ["model"] if several else []
    bases = [_row(survival) for survival in survivals if survival.system.is_base]
    kept = [_row(survival) for survival in survivals if not survival.system.is_base]
    names = {name: Kind(f"{name} [95 %]", ".2f") for name in MODALITIES}
    percent = {f"{name}_kept": Kind(f"{name} kept, %", _PERCENT, 100) for name in MODALITIES}
    percent["difference"] = Kind("speech − sound, points", "+.0f", 100)
    percent |= {"preference": Kind("E", ".2f"), "kept_tokens": Kind("tokens kept", ".0f")}
    percent["padding_tokens"] = Kind("padding tokens", ".0f")
    percent["speech_stands"] = Kind("speech position", left=True)
    notes = [_PREFERENCE if any(survival.preference for survival in survivals) else _NO_PREFERENCE]
    notes += [] if any(survival.order == BOTH_ORDERS for survival in survivals) else [_LATE]
    shown = (*model, "setting", "speech_stands", "kept_tokens", "padding_tokens", *percent, "p_holm")
    least = ("padding_tokens", "answer_kept", "preference", "kept_tokens", "speech_stands")
    title = "What the unpruned model reports, above chance"
    reported = Table.of(bases, (*model, "speech_stands", *MODALITIES), title=title, kinds=names | percent)
    of_that = Table.of(
        kept, tuple(dict.fromkeys(shown)), title="What settings keep of what base reports", kinds=percent, least=least,
        notes=notes if kept else (), group="setting",
    )  # fmt: skip
    return [reported, of_that.without_empty("difference")]


def sentences(survivals: Sequence[Survival]) -> list[str]:
    """Return a sentence per method: the shares of speech and sound that it keeps at its middle ratio.

    If clips were rotated so that the speech comes first and last, the sentence also states the effect of its position.
    """
    said = []
    for name, _method, curve in _methods(survivals):
        middle = curve[(len(curve) - 1) // 2]
        text = sentence(middle.system.name(with_checkpoint=bool(name)).partition(" [")[0], middle.figures)
        if middle.order == BOTH_ORDERS and middle.measurable:
            effect = _points(middle.figures["position_effect"])
            text += f"; speech first instead of last changes speech − sound by {effect} points"
        said.append(text)
    return said


def panels(survivals: Sequence[Survival]) -> list[Chart]:
    """Return one chart per method: the shares of speech and sound that it keeps, against its ratio, with intervals."""
    drawn = []
    for name, method, curve in _methods([survival for survival in survivals if survival.measurable]):
        lines = [Line(kind, kind, _points_of(curve, kind), colour=_COLOURS[kind]) for kind in ("speech", "sound")]
        ends = charts.reached(lines)
        chart = charts.line_chart(
            lines, "fraction of audio removed", "kept of what base reports", span=(0.0, 1.02 * _ratio(curve[-1])),
            range_=(min(0.0, *ends), max(1.05, *ends)), size=(300, 200),
        )  # fmt: skip
        where = "" if curve[0].order == AS_IS else f" ({_STANDS.get(curve[0].order, f'speech {curve[0].order}')})"
        drawn.append(chart.with_title(f"{name} {method}".strip() + where))
    return drawn


def _methods(survivals: Sequence[Survival]) -> list[tuple[str, str, list[Survival]]]:
    """Return (checkpoint, method, its rows sorted by ratio) of each method; the checkpoint is "" if there is only one.

    The rows are the headline rows: one per setting, the one to report (see :attr:`Survival.headline`).
    """
    methods: dict[tuple[str, str], list[Survival]] = {}
    for survival in survivals:
        if survival.headline and not survival.system.is_base:
            methods.setdefault((survival.system.checkpoint, _line(survival)), []).append(survival)
    several = len({checkpoint for checkpoint, _ in methods}) > 1
    return [
        (checkpoint * several, method, sorted(group, key=_ratio)) for (checkpoint, method), group in methods.items()
    ]


def _points_of(survivals: Sequence[Survival], name: str) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = [{"x": 0.0, "y": 1.0, "low": 1.0, "high": 1.0, "what": "base", "method": "base"}]
    return points + [
        charts.point(
            _ratio(survival), survival.figures[f"{name}_kept"], what=f"{survival.system.method}: {name}", method=name
        )
        for survival in survivals
    ]


def _row(survival: Survival) -> dict[str, Any]:
    """Return the table row of a setting and position of the speech, as {column: value}; None if not measurable."""
    row: dict[str, Any] = {
        "model": survival.system.checkpoint,
        "setting": " ".join([survival.system.method, *survival.system.marks]),
        "method": _line(survival),
        "ratio": _ratio(survival),
        "speech_stands": survival.order,
        "kept_tokens": survival.kept_tokens,
        "padding_tokens": survival.padding_tokens or None,
    }
    for name, figure in survival.figures.items():
        row |= estimated(name, figure)
    for name in MODALITIES:
        if not measurable(survival.figures, name):
            row |= {f"{name}_kept{end}": None for end in _ENDS}
            row |= {f"{name}_said": "not measurable"} if survival.system.is_base else {}
    if not survival.measurable:
        row |= {f"difference{end}": None for end in _ENDS}
    p = survival.p if survival.measurable else None
    return row | estimated("preference", survival.preference) | {"p": p, "p_holm": survival.p_adjusted}


def _points(figure: Estimate) -> str:
    ends = f" [{100 * figure.low:+.0f}, {100 * figure.high:+.0f}]" if figure.interval else ""
    return f"{100 * figure.value:+.0f}{ends}"


def _ratio(survival: Survival) -> float:
    return series.method_and_ratio(survival.system.identity)[1]


def _line(survival: Survival) -> str:
    return series.method_and_ratio(survival.system.identity)[0]


def to_json(survivals: Sequence[Survival]) -> Mapping[str, Any]:
    """Return {"rows": the dicts of :func:`rows`, "sentences": one text per method} for a JSON file."""
    return {"rows": rows(survivals), "sentences": sentences(survivals)}
