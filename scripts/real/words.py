"""Show which words of a transcript a setting loses: `python scripts/real/words.py RESULTS ROWS.jsonl`.

RESULTS holds runs of a task that `speech.py` wrote, ROWS is that task's file of rows. Tables are in Markdown: the word
error rate of each setting with its interval over clips, against base on the same clips, with each kind of error; then,
for settings that still recognise most words, how often a word of a kind is lost (deleted or replaced). A word's time is
estimated: words share their prompt's time in proportion to their letters.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jiwer
import numpy as np

from audiomarathon.audio.decode import decode
from audiomarathon.compression.method import Base
from audiomarathon.errors import AudioMarathonError, DataError
from audiomarathon.files import json_object
from audiomarathon.metrics.normalise import units_of
from audiomarathon.metrics.statistics import Estimate, Floats, Resampler, Sums, ratio
from audiomarathon.metrics.wer import TranscriptErrors, transcript_errors
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.read import Run

RATE = 16_000
WINDOW_END_S = 3.0
MOST_LOST = 0.6  # with more errors per word than this, a transcript is no longer about the clip


@dataclass(frozen=True)
class Word:
    """A word of a clip's text: its start and end in seconds, and whether it is the first or last word of its prompt."""

    text: str
    begin: float
    end: float
    at_edge: bool
    power: float = 0.0


#: {question: (name of one side, name of the other, function that tells whether a word is on the first side)}.
KINDS: Mapping[str, tuple[str, str, Callable[[Word, Clip], bool]]] = {
    "length": ("up to 3 letters", "7 letters and more", lambda word, _clip: len(word.text) <= 3),
    "place in its prompt": ("first or last word", "inside", lambda word, _clip: word.at_edge),
    "place in the window": (
        f"last {WINDOW_END_S:g} s", "before", lambda word, clip: word.end > clip.seconds - WINDOW_END_S
    ),
    "loudness": ("quieter half", "louder half", lambda word, clip: word.power < clip.middle),
}  # fmt: skip


@dataclass(frozen=True)
class Clip:
    """A clip: its words, its length in seconds, and the median power of its words."""

    words: tuple[Word, ...]
    seconds: float
    middle: float

    @classmethod
    def of(cls, row: Mapping[str, object], folder: Path, language: str) -> Clip:
        """Read a clip from a row of the task: its words with estimated times, and the mean power of each."""
        sound = decode(folder / str(row["audio"]), RATE)
        words = []
        for part in row["prompts"]:  # type: ignore[attr-defined]
            texts = units_of(part["text"], language).split()
            ends = np.cumsum([len(text) + 1 for text in texts])
            edges = part["start"] + (part["end"] - part["start"]) * np.concatenate([[0], ends / ends[-1]])
            for number, text in enumerate(texts):
                begin, end = map(float, edges[number : number + 2])
                power = np.square(sound[int(begin * RATE) : int(end * RATE)], dtype=np.float64).mean()
                words.append(Word(text, begin, end, number in (0, len(texts) - 1), float(power)))
        return cls(tuple(words), len(sound) / RATE, float(np.median([word.power for word in words])))


def lost(clip: Clip, reply: str, language: str) -> list[bool]:
    """Tell, for each word of the clip, whether it is deleted or replaced in the reply."""
    said = " ".join(word.text for word in clip.words)
    gone = [False] * len(clip.words)
    for chunk in jiwer.process_words(said, units_of(reply, language)).alignments[0]:
        if chunk.type in ("delete", "substitute"):
            gone[chunk.ref_start_idx : chunk.ref_end_idx] = [True] * (chunk.ref_end_idx - chunk.ref_start_idx)
    return gone


def rate_of(above: Sequence[float], below: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Return the sum of `above` ÷ the sum of `below`, with an interval from resampling clusters."""

    def statistic(sums: Floats) -> Floats:
        return ratio(sums[:, 0], sums[:, 1])[:, None]

    columns = np.column_stack([above, below]).astype(np.float64)
    return Resampler(0).of_sums(Sums(("rate",), columns, statistic, tuple(clusters)))["rate"]


def shown(estimate: Estimate, sign: str = "") -> str:
    """Return the text of an estimate with its interval, with three digits after the point."""
    return f"{estimate.value:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def curve(
    by_setting: Mapping[str, Mapping[str, TranscriptErrors]], base: str, clusters: Mapping[str, str]
) -> list[str]:
    """Return the lines of the first table: word error rates, one row per setting."""
    lines = [
        "| setting | WER | against `base`, paired | substituted · deleted · inserted per 100 words | loops |",
        "|---|---|---|---|---|",
    ]
    for label, errors in by_setting.items():
        samples, ids = [*errors.values()], [clusters[id_] for id_ in errors]
        words = [sample.words for sample in samples]
        more = [sample.errors - by_setting[base][id_].errors for id_, sample in errors.items()]
        kinds = (
            np.sum([(sample.substitutions, sample.deletions, sample.insertions) for sample in samples], axis=0)
            / sum(words)
            * 100
        )
        cells = [
            f"`{label}`",
            shown(rate_of([sample.errors for sample in samples], words, ids)),
            "–" if label == base else shown(rate_of(more, words, ids), "+"),
            " · ".join(f"{kind:.1f}" for kind in kinds),
            f"{sum(sample.insertion_loop for sample in samples)} of {len(samples)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def survivors(
    replies: Mapping[str, Mapping[str, str]], clips: Mapping[str, Clip], clusters: Mapping[str, str], language: str
) -> list[str]:
    """Return the lines of the second table: for each setting and question, how often a word of each side is lost."""
    lines = ["| setting | question | one side, lost | other side, lost | difference |", "|---|---|---|---|---|"]
    for label, texts in replies.items():
        gone = {id_: lost(clips[id_], text, language) for id_, text in texts.items()}
        for question, (side_name, other, first) in KINDS.items():
            sides: list[list[tuple[int, int]]] = [[], []]
            for id_, losses in gone.items():
                clip = clips[id_]
                pairs = [(word, is_lost) for word, is_lost in zip(clip.words, losses, strict=True)
                         if question != "length" or not 3 < len(word.text) < 7]  # fmt: skip
                for side, there in zip(sides, (True, False), strict=True):
                    flags = [is_lost for word, is_lost in pairs if first(word, clip) is there]
                    side.append((sum(flags), len(flags)))
            ids = [clusters[id_] for id_ in gone]
            rates = [sum(count for count, _ in side) / max(sum(all_ for _, all_ in side), 1) for side in sides]
            columns = np.hstack([np.array(side, np.float64) for side in sides])
            names = ("difference",)
            apart = Resampler(0).of_sums(Sums(names, columns, _apart, tuple(ids)))["difference"]
            cells = [f"`{label}`", question, f"{side_name}: {rates[0]:.3f}", f"{other}: {rates[1]:.3f}"]
            lines.append(f"| {' | '.join([*cells, shown(apart, '+')])} |")
    return lines


def _apart(sums: Floats) -> Floats:
    return (ratio(sums[:, 0], sums[:, 1]) - ratio(sums[:, 2], sums[:, 3]))[:, None]


def worst(
    by_setting: Mapping[str, Mapping[str, TranscriptErrors]], replies: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return, for each setting with a reply that repeats itself, the start of the reply with the most insertions."""
    lines = []
    for label, errors in by_setting.items():
        loops = {id_: sample for id_, sample in errors.items() if sample.insertion_loop}
        if loops:
            id_ = max(loops, key=lambda id_: loops[id_].insertions)
            lines.append(
                f"- `{label}`, `{id_}`: {loops[id_].insertions} words inserted: “{replies[label][id_][:240]} …”"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help="folder with the runs of one task and one checkpoint")
    parser.add_argument("rows", type=Path, help="the task's file of rows, as speech.py wrote it")
    parser.add_argument("--task", help="key of the task in RESULTS [default: the name of ROWS]")
    given = parser.parse_args(arguments)
    key = f"own-transcript/{given.task or given.rows.stem}"
    try:
        systems = read_systems([given.results])
        runs = {system.method: system.runs[key] for system in systems if key in system.runs}
        if Base().label not in runs:
            raise DataError(f"{given.results}: no run of {key} under {Base().label}")
        print("\n".join(tables(runs, given.rows)))
    except (AudioMarathonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a task's file, as `speech.py` wrote them."""
    objects = [json_object(line.encode()) for line in file.read_text(encoding="utf-8").splitlines()]
    return [row for row in objects if row is not None and "id" in row]


def tables(runs: Mapping[str, Run], rows: Path) -> list[str]:
    """Return the lines of all tables, for the samples that every run has answered."""
    base = runs[Base().label]
    ids = [id_ for id_ in base.records if all(id_ in run.records for run in runs.values())]
    known = {str(row["id"]): row for row in read_rows(rows)}
    if lacking := [id_ for id_ in ids if "prompts" not in known.get(id_, ())]:
        raise DataError(f"{rows}: no row of {lacking[0]} that says its prompts; allowed: rows that speech.py wrote")
    if not ids:
        raise DataError(f"{rows}: no clip was answered under every setting, so nothing can be compared yet")
    language = str(base.records[ids[0]].reference["language"])
    clusters = {id_: base.records[id_].cluster for id_ in ids}
    replies = {label: {id_: run.records[id_].reply or "" for id_ in ids} for label, run in runs.items()}
    read = partial(units_of, language=language)
    errors = {
        label: {
            id_: transcript_errors(base.records[id_].reference["answer"], text, read) for id_, text in texts.items()
        }
        for label, texts in replies.items()
    }
    clips = {id_: Clip.of(known[id_], rows.parent, language) for id_ in ids}
    total = {label: sum(sample.errors for sample in samples.values()) for label, samples in errors.items()}
    words = sum(len(clip.words) for clip in clips.values())
    hearing = {label: texts for label, texts in replies.items()
               if total[label] > total[Base().label] * 1.5 and total[label] < MOST_LOST * words}  # fmt: skip
    return [
        f"{len(ids)} clips, {words} words\n",
        *curve(errors, Base().label, clusters),
        "",
        *survivors(hearing, clips, clusters, language),
        "",
        *worst(errors, replies),
    ]


if __name__ == "__main__":
    sys.exit(main())
