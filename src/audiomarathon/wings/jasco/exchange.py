"""Read any model's replies to JASCO from CSV files, and write judgements to them, in the format of JASCO's own code."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from audiomarathon.audio.decode import probe
from audiomarathon.benchmarks.rows import Row, RowError, as_csv, listed_faults, natural, read_csv, shown
from audiomarathon.benchmarks.shards import check_shards
from audiomarathon.benchmarks.task import Sample
from audiomarathon.errors import DataError
from audiomarathon.records import MAX_REPLY, Record, Verdict
from audiomarathon.text import counted
from audiomarathon.wings.jasco.figures import PROMPTS, gate
from audiomarathon.wings.jasco.task import COLUMNS, INSTRUCTIONS

REPLY = "allm_output"
JUDGEMENT = "llama3_extract"  # the column's name in JASCO's own code, whichever model judges
_EXAMPLE = (
    "id", "audio", "n_frames", "audio_sound", "spoken_text", "prompt", "with_speech", "audio_only_target",
    "speech_only_target", "target_keywords", "tgt_text", REPLY,
)  # fmt: skip
NEEDED = ["id", "prompt", *COLUMNS, REPLY]
_SHOWN_FAULTS = 20

Line = tuple[int, dict[str, str]]  # a row of a CSV file: the number of its last line, and {column: text}


def example(samples: Iterable[Sample]) -> str:
    """Return the text of a CSV file to fill in with replies: one row per clip and instruction, with an empty reply.

    The file has the columns of JASCO's `example.csv`.
    """
    rows = []
    for sample in samples:
        if not sample.clips:
            raise DataError(f"{sample.id}: has no clip to reply to")
        clip = sample.clips[0]
        info = probe(clip)
        facts = {"id": sample.cluster, "audio": str(clip), "n_frames": str(round(info.seconds * info.sampling_rate))}
        row = facts | {name: str(sample.meta[name]) for name in COLUMNS}
        rows.append(row | {"prompt": sample.question, "with_speech": "True", REPLY: ""})
    return as_csv(rows, _EXAMPLE)


def read_replies(file: Path) -> list[tuple[Line, Record]]:
    """Read a CSV file of replies to JASCO; return (row, record of the reply) for each row, in the file's order.

    Prompts may be any text.

    The first row of an id becomes the record `<id>-p1`, the second `<id>-p2`, and so on.

    Raises
    ------
    DataError
        The file lacks a column, a row cannot be used, or an id has more than eight rows.
    """
    seen = Counter[str]()
    rows = []
    check_shards([file])
    for line, row in read_csv(file, NEEDED):
        if fault := _fault_of(row):
            raise DataError(f"{file}, line {line}: {fault}")
        seen[id_ := _id(row)] += 1
        if seen[id_] > PROMPTS:
            raise DataError(f"{file}, line {line}: more than {PROMPTS} rows of id {shown(id_)}")
        rows.append(((line, row), _record(row, seen[id_])))
    return rows


def read_whole(file: Path, *, allow_missing: bool = False) -> list[Record]:
    """Read a CSV file that has a reply to each of JASCO's eight prompts for each clip.

    Return records of the replies, sorted by clip and prompt.

    A row belongs to the prompt with the same text; differences in white space are ignored.

    Parameters
    ----------
    allow_missing
        Leave out clips that have an error in a row, instead of raising an error. These clips do not count as 0.

    Raises
    ------
    DataError
        The message lists errors by line: an unknown, repeated or missing prompt, or a reply that is empty or still the
        placeholder `output_1`.
    """
    numbers = {_plain(text): number for number, text in enumerate(INSTRUCTIONS, 1)}
    clips: dict[str, dict[int, Record]] = defaultdict(dict)
    faults: list[tuple[str, str, str]] = []  # id, place and reason
    refused = set[tuple[str, int]]()
    check_shards([file])
    for line, row in read_csv(file, NEEDED):
        if fault := _fault_of(row):
            faults.append((row["id"], f"line {line}: ", fault))
            refused.add((row["id"].strip(), numbers.get(_plain(row["prompt"]), 0)))
            continue
        id_, reply = _id(row), row[REPLY].strip()
        number = numbers.get(_plain(row["prompt"]), 0)
        flaws = {
            f"unknown prompt {row['prompt'][:40]!r}": not number,
            f"two rows of id {shown(id_)} and prompt {number}": number in clips[id_],
            f"{REPLY} is not filled in": not reply or reply in {f"output_{k}" for k in range(1, PROMPTS + 1)},
        }
        if fault := next((flaw for flaw, applies in flaws.items() if applies), ""):
            faults.append((id_, f"line {line}: ", fault))
        clips[id_].setdefault(number, _record(row, number))
    for id_, rows in clips.items():
        there = {*rows, *(number for refused_id, number in refused if refused_id == id_)}
        if lacking := [str(number) for number in range(1, PROMPTS + 1) if number not in there]:
            faults.append((id_, "", f"id {shown(id_)} has no row of prompt {', '.join(lacking)}"))
    if faults and not allow_missing:
        alike = Counter(reason for _, _, reason in faults)
        firsts = {reason: place for _, place, reason in reversed(faults)}
        texts = [
            f"{firsts[reason]}{reason}" + f" (and {counted(count - 1, 'row')} more)" * (count > 1)
            for reason, count in alike.items()
        ]
        listed = listed_faults(texts, _SHOWN_FAULTS)
        raise DataError(f"{file}: {listed}; fix these rows, or leave out their clips with --allow-missing")
    kept = set(clips) - {id_ for id_, _, _ in faults}
    if not kept:
        raise DataError(f"{file}: no clip has a reply to each of the {PROMPTS} prompts")
    return [clips[id_][number] for id_ in sorted(kept, key=natural) for number in range(1, PROMPTS + 1)]


def judged_columns(verdict: Verdict, judge: str, parser: str) -> dict[str, str]:
    """Return the columns that a judge's answer adds to a reply's row: `rating`, `orientation`, `gated` and `rule`.

    `orientation` is what the reply depends on (sound, speech, both, neither), `gated` the rating if it is both, else 0.
    `rule` says how the answer was read, or why it is missing.

    With the parser "original", their values are read from the judge's answer by the rules of JASCO's code (bugs
    included); with any other parser, by this suite's strict rules.
    """
    field = "as_published" if parser == "original" else "readings"
    read = verdict.values[field].get(judge)
    if read is None:
        return {"rating": "", "orientation": "", "gated": "", "rule": verdict.values["missing"].get(judge, "absent")}
    gated = gate(read["rating"], read["orientation"])
    whys = {"unanswered": read.get("unanswered"), "second question": read.get("asked_again")}
    rule = next((why for why, holds in whys.items() if holds), "inherited" if read["rating"] is None else parser)
    shown = {"rating": read["rating"], "orientation": read["orientation"], "gated": gated}
    return {name: "" if value is None else str(value) for name, value in shown.items()} | {"rule": rule}


def _fault_of(row: Mapping[str, str]) -> str:
    """Return why a row of the CSV file cannot be used (a malformed id, a text that is too long); "" if it can."""
    try:
        _id(row)
    except RowError as error:
        return str(error)
    long = next((name for name in NEEDED if len(row[name]) > MAX_REPLY), "")
    return f"{long} has {len(row[long]):,} characters; allowed: up to {MAX_REPLY:,}" if long else ""


def _record(row: Mapping[str, str], number: int) -> Record:
    reference = {"answer": row["tgt_text"], "prompt": row["prompt"], **{name: row[name] for name in COLUMNS}}
    groups, id_ = {"prompt": str(number)}, _id(row)
    return Record(f"{id_}-p{number}", id_, reply=row[REPLY], reference=reference, groups=groups, finish="stop")


def _id(row: Mapping[str, str]) -> str:
    """Return the id of the clip in a row of the CSV file, spelled as in the task's data."""
    return Row(Path(), row).id("id")


def _plain(text: str) -> str:
    return " ".join(text.split())
