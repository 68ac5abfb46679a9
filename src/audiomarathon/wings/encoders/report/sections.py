"""Make the report page's sections on encoders and on the audio towers of audio LLMs."""

from __future__ import annotations

from collections.abc import Sequence

from audiomarathon.report.sections import Section
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.report import encoder_sections, tower_sections
from audiomarathon.wings.encoders.results.scores import task_scores
from audiomarathon.wings.encoders.results.towers import fourfolds, standings
from audiomarathon.wings.encoders.xares.task import EncoderTask


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the page's sections on encoders, on LLMs' audio towers, and on towers beside the models' replies."""
    probes = [run for run in runs if isinstance(run.task, EncoderTask)]
    encoders = tower_sections.of_encoders(probes)
    return [*(_encoders(encoders) if encoders else []), *(_towers(runs) if probes else [])]


def _encoders(runs: Sequence[Run]) -> list[Section]:
    """Return the page's sections on encoders: their scores, and what a linear probe confuses."""
    scores, mistakes = task_scores(runs), encoder_sections.surest_mistakes(runs)
    drawn, notes = encoder_sections.radars(scores), {"": encoder_sections.notes(runs, scores)}
    known = encoder_sections.score_tables(scores)
    page_sections = [Section("encoders", "What encoders know", known, {"": drawn} if drawn else {}, notes)]
    if len(mistakes.frame):
        page_sections.append(Section("confusion", "What is confused", [mistakes], encoder_sections.confusions(runs)))
    return page_sections


def _towers(runs: Sequence[Run]) -> list[Section]:
    """Return the page's sections on towers (audio encoders of audio LLMs): alone, then beside their models' replies."""
    layers, drawn = tower_sections.layer_table(runs), tower_sections.layer_curves(runs)
    drawn |= tower_sections.pruned_curves(runs)
    beside, standing = fourfolds(runs), standings(runs)
    curves = tower_sections.fourfold_curves(beside)
    by_name = {name: [chart] for name, chart in drawn.items()}
    page_sections = [
        Section("towers", "Layer by layer, and after pruning", [layers] if len(layers.frame) else [], by_name),
        Section("unused", "Lost or unused", [tower_sections.fourfold_table(beside)] if beside else [], curves),
    ]
    if standing:
        table, chart = tower_sections.standing_table(standing), tower_sections.standing_chart(standing)
        page_sections.append(Section("standing", "Tower and model", [table], {"": [chart]}))
    return [section for section in page_sections if section.tables or section.charts]
