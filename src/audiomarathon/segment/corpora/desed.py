"""DESED: soundscapes of ten seconds with domestic sound events, and the start and end of each event."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from audiomarathon.benchmarks.audiomarathon.desed import Desed
from audiomarathon.benchmarks.rows import AUDIO_SUFFIXES, class_of
from audiomarathon.errors import DataError
from audiomarathon.records import LETTERS
from audiomarathon.segment.corpus import DISTRACTORS, Corpus, Group, Row, Source, below, drawn, table

Event = tuple[str, float, float]
COLUMNS = ("filename", "onset", "offset", "event_label")


class DesedCorpus(Corpus):
    """Join soundscapes to clips in which at least three of the ten classes do not occur; these are the wrong options.

    Five minutes of random soundscapes contain nearly every class. So soundscapes are first distributed over ten groups,
    each of which excludes three classes.
    """

    task = "desed"
    title = "DESED"
    layout = """\
  metadata/…/validation.tsv      tab-separated: filename  onset  offset  event_label (seconds)
  audio/…/*.wav                  soundscapes, named in the filename column
Any strongly labelled table works (validation, public eval, soundscapes.tsv); choose it with --metadata."""
    example = "DESED/dataset --metadata DESED/dataset/metadata/validation/validation.tsv -o data/DESED"
    seconds = (270.0, 300.0)
    gap = 0.0
    shuffled = True
    metadata_file = Desed.metadata_file
    metadata: Annotated[Path | None, typer.Option(help="TSV table of events (default: the only one found).")] = None

    def groups(self) -> list[Group]:
        """Put each soundscape into the smallest group whose excluded classes it does not contain; return the groups."""
        classes = list(Desed.classes)
        self.chance("classes").shuffle(classes)
        excluded = [{classes[(i + step) % len(classes)] for step in range(DISTRACTORS)} for i in range(len(classes))]
        dealt: list[list[Source]] = [[] for _ in excluded]
        sources = self._soundscapes()
        self.chance("deal").shuffle(sources)
        for source in sources:
            heard = {label for label, _, _ in source.facts["events"]}
            fitting = [i for i, silent in enumerate(excluded) if not silent & heard]
            if fitting:
                dealt[min(fitting, key=lambda i: (len(dealt[i]), i))].append(source)
            else:
                self.left_out.append((source.name, "has too many kinds of events for a question"))
        named = ((f"desed_{i}", sorted(group, key=lambda s: s.name)) for i, group in enumerate(dealt))
        return [Group(name, group) for name, group in named if group]

    def _soundscapes(self) -> list[Source]:
        file = self.metadata or self.the_one(self.tables(COLUMNS, only=True), "table of events (.tsv)", "--metadata")
        events = _events(file)
        places: dict[str, list[Path]] = {name: [] for name in events}
        for path in (path for root in self.roots for path in below(root, AUDIO_SUFFIXES)):
            if path.name in places:
                places[path.name].append(path)
        sources = []
        for name, copies in sorted(places.items()):
            if copies:
                path = self.the_one(copies, f"file {name}")
                sources.append(Source(path, self.name(path), {"events": events[name]}))
            else:
                self.left_out.append((name, f"is in {file.name}, but the file is missing"))
        return sources

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a row with a question: which event occurs in the clip? The three wrong options do not occur in it."""
        events = [
            (label, source["offset"] / clip["rate"] + onset, source["offset"] / clip["rate"] + offset)
            for source in clip["sources"]
            for label, onset, offset in source["facts"]["events"]
        ]
        heard = sorted({label for label, _, _ in events})
        silent = sorted(set(Desed.classes) - set(heard))
        if not heard or len(silent) < DISTRACTORS:
            return []
        asked = chance.choice(heard)
        options, letter = drawn(asked, silent, chance)
        lasting = {label: sum(end - start for name, start, end in events if name == label) for label in heard}
        _, onset, offset = min((event for event in events if event[0] == asked), key=lambda event: event[1])
        shown = [option.replace("_", " ").capitalize() for option in options]
        return [
            {
                "path": clip["path"],
                "task_type": "sound_event_detection",
                "question": "Which sound event occurs in this recording?",
                "choices": dict(zip(LETTERS, shown, strict=False)),
                "answer_gt": letter,
                "all_events": heard,
                "primary_event": max(heard, key=lambda label: lasting[label]),
                "correct_event": asked,
                "uniq_id": Path(clip["path"]).stem,
                "event_onset": onset,
                "event_seconds": offset - onset,
            }
        ]

    def document(self, rows: list[Row]) -> object:
        """Return the content of the metadata file: the rows, wrapped in an object like that of the published file."""
        return {"task_info": {"task": "sound event detection", "dataset": "DESED"}, "tasks": rows}


def _events(file: Path) -> Mapping[str, list[Event]]:
    """Return {soundscape's file name: its events (label, start, end)}; a line without a label adds no event."""
    events_by_file: dict[str, list[Event]] = {}
    for place, row in table(file, COLUMNS):
        events = events_by_file.setdefault(Path(row["filename"]).name, [])
        if not row["event_label"]:
            continue
        label = class_of(row["event_label"], Desed.classes)
        try:
            onset, offset = float(row["onset"]), float(row["offset"])
        except ValueError:
            onset, offset = math.nan, math.nan
        if label not in Desed.classes or not 0 <= onset < offset < math.inf:
            raise DataError(f"{place}: expected one of the ten classes with onset < offset in seconds, found {row}")
        events.append((label, onset, offset))
    return events_by_file
