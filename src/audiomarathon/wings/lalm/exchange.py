"""Read and write LALM Bench's files of replies to Clotho and MMAU-Pro, and write its files of scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audiomarathon.benchmarks.captioning import ALL, few
from audiomarathon.benchmarks.questions.open_ended import CRITERIA, OpenEndedAsPublished
from audiomarathon.benchmarks.rows import (
    RowError,
    clean,
    for_each,
    listed_faults,
    one_text,
    read_parquet,
    read_rows,
    replied,
    shown,
)
from audiomarathon.benchmarks.shards import check_shards
from audiomarathon.benchmarks.task import Sample, name_id
from audiomarathon.errors import DataError, told
from audiomarathon.judges.judgements import reading_of
from audiomarathon.metrics.classification import per_class
from audiomarathon.metrics.statistics import mean_of
from audiomarathon.records import LETTERS, Record, Verdict
from audiomarathon.wings.lalm.captions import Clotho
from audiomarathon.wings.lalm.mmau_pro import CATEGORIES, METADATA, MmauPro, read_questions, schema

if TYPE_CHECKING:
    import pyarrow

REPLY = "model_output"
FAILED = "ERROR"  # the reply that LALM Bench writes for a clip on which the model failed
_SHOWN_FAULTS = 5
_LONGEST_NAME = 255  # limit of a clip's file name
_TYPES = {"closed": "closed", "open": "openended", "following": "aif"}


def read_captions(file: Path, folder: Path | None = None, *, faithful: bool = False) -> list[Record]:
    """Read a `predictions.json` (objects with `audio_id`, `prediction` and `references`) as records of replies.

    Parameters
    ----------
    folder
        Folder of Clotho's data; its captions replace missing references.
    faithful
        Score the reply `ERROR` like any other reply; by default it marks a failed sample.

    Raises
    ------
    DataError
        An object lacks a field, has a value of the wrong type, or repeats an id; the message says which.
    """
    records: dict[str, Record] = {}
    known: dict[str, list[str]] = {}
    if folder:
        tables = Clotho().tables(Clotho().find(folder), ALL)
        known = {name_id(item[0]): list(item[2]) for items in tables.values() for item in items}
    folded = Counter(map(_folded, known))
    meant = {_folded(name): name for name in known if folded[_folded(name)] == 1}

    def add(entry: Any) -> None:
        if not isinstance(entry, dict):
            raise RowError("is not an object")
        if isinstance(entry.get("audio_id"), str):
            id_ = name_id(entry["audio_id"])
            entry = {**entry, "audio_id": id_ if id_ in known else meant.get(_folded(id_), id_)}
        if "references" not in entry and (texts := known.get(str(entry.get("audio_id")))):
            entry = {**entry, "references": texts}
        if lacking := [name for name in ("audio_id", "prediction", "references") if name not in entry]:
            raise RowError(f"lacks {lacking[0]!r}; needed: audio_id, prediction, references (or --data CLOTHO_FOLDER)")
        id_, reply, texts = entry["audio_id"], entry["prediction"], entry["references"]
        if not isinstance(id_, str) or not isinstance(reply, str):
            raise RowError("audio_id and prediction must be texts")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RowError("references must be a list of texts")
        if len(clean(id_, "audio_id")) > _LONGEST_NAME:
            raise RowError(f"audio_id {shown(id_)} has {len(id_)} characters; allowed: up to {_LONGEST_NAME}")
        if id_ in records:
            raise RowError(f"second entry of {shown(id_)}")
        reference = {"references": [one_text(clean(text, "a reference"), "reference") for text in few(texts)]}
        records[id_] = _with_reply(Record(id_, id_, reference=reference, finish="stop"), reply, faithful=faithful)

    check_shards([file])
    for_each(file, "entry", read_rows(file), add)
    return list(records.values())


def read_answers(file: Path, column: str = REPLY, *, faithful: bool = False) -> list[Record]:
    """Read a `predictions.parquet` as records of replies.

    The file must have the columns of MMAU-Pro's `test.parquet`, and a column of replies.

    Parameters
    ----------
    column
        Name of the column of replies.
    faithful
        Score the reply `ERROR` like any other reply; by default it marks a failed sample.

    Raises
    ------
    DataError
        A column is missing, a row is not a valid question, or a reply is not a text.
    """
    check_shards([file])
    questions, bad = read_questions(file, column)
    if bad:
        raise DataError(listed_faults(list(map(str, bad)), _SHOWN_FAULTS))
    task, records = MmauPro(), []

    def add(pair: tuple[Sample, Mapping[str, Any]]) -> None:
        sample, fields = pair
        if not isinstance(reply := fields[column], str):
            raise RowError(f"{column} of {sample.id} is not a text")
        empty = Record(sample.id, sample.cluster, reference=task.reference(sample), groups=task.groups(sample))
        records.append(_with_reply(replace(empty, finish="stop"), reply, faithful=faithful))

    if not questions:
        raise DataError(f"{file}: holds no rows")
    for_each(file, "row", questions, add)
    return records


def corpus_of(records: Sequence[Record], folder: Path | None = None) -> tuple[list[list[str]], str]:
    """Return (captions of each clip, source): the captions from which CIDEr-D takes word weights, and their source.

    The captions are those of the first split of a Clotho folder that has all the records' clips, or of all its splits
    together. Without a folder, they are the references of the records.

    Raises
    ------
    DataError
        The folder has no captions of some of the records' clips, or there is no folder and only one record.
    """
    if folder is None:
        if len(records) < 2:
            raise DataError(
                "one entry is not enough to weigh words (CIDEr-D needs two); name a folder of Clotho with --data"
            )
        return [list(record.reference["references"]) for record in records], f"the {len(records):,} entries"
    task = Clotho()
    tables = task.tables(place := task.find(folder), ALL)
    wanted, lost = {name_id(record.id) for record in records}, set[str]()
    for parts in (*([part] for part in tables), list(tables)):
        if not (lost := wanted - {name_id(item[0]) for part in parts for item in tables[part]}):
            texts = [list(captions) for part in parts for captions in task.captions(place, part)]
            return texts, f"the {len(texts):,} clips of {' and '.join(parts)} in {place}"
    raise DataError(f"{place}: has no captions of {len(lost)} of {len(records)} clips, such as {shown(min(lost))}")


def predictions(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the content of `predictions.json`: for each answered sample, a dict with id, reply and captions."""
    return [
        {"audio_id": record.id, "prediction": record.raw, "references": list(record.reference["references"])}
        for record in records
        if record.answered
    ]


def scores(summary: Mapping[str, Any], timestamp: str) -> dict[str, Any]:
    """Return the content of `scores.json`, as a dict: Clotho's scores by LALM Bench's rules, and counts of samples.

    CIDEr-D is the variant whose word weights come only from the captions of the scored clips.
    """
    figures = {"cider_d": "cider_d_as_published", **{name: name for name in ("sbert_sim", "fer", "fense")}}
    return {
        "dataset": "Clotho-v2",
        "evaluated_samples": summary["n"],
        "total_samples": summary["expected"],
        "scores": {name: summary.get(key) for name, key in figures.items()},
        "timestamp": timestamp,
    }


def answers(records: Sequence[Record], folder: Path | None = None) -> pyarrow.Table:
    """Return the content of `predictions.parquet` as a table: MMAU-Pro's row and the reply of each answered sample.

    Parameters
    ----------
    folder
        Folder of `test.parquet`. The rows of that file are used if they include all answered questions; else rows are
        made from the records, without the clips' paths.
    """
    import pyarrow

    replies = {record.id: record.raw for record in records if record.answered}
    there = folder is not None and (folder / METADATA).is_file()
    table = read_parquet(folder / METADATA, ["id"], schema().names) if folder and there else schema().empty_table()
    ids = [name_id(str(cell).strip()) for cell in table["id"].to_pylist()]
    if not set(replies) <= set(ids):
        rows = [_row(record) for record in records if record.answered]
        try:
            table, ids = pyarrow.Table.from_pylist(rows, schema()), [row["id"] for row in rows]
        except pyarrow.ArrowException as error:
            raise DataError(f"the records do not fit the columns of {METADATA}: {told(error)}") from error
    taken = [place for place, id_ in enumerate(ids) if id_ in replies]
    said = pyarrow.array([replies[ids[place]] for place in taken], pyarrow.string())
    return table.take(pyarrow.array(taken, pyarrow.int64())).append_column(REPLY, said)


def comprehensive(verdicts: Sequence[Verdict], expected: int, file: Path, overall: float | None) -> dict[str, Any]:
    """Return the content of `predictions_comprehensive_results.json`, as a dict.

    The dict has the score and metrics of each of MMAU-Pro's categories, by the rules of MMAU-Pro's official script.

    A category without replies is left out. If no reply of a category is scored, its score and metrics are None.

    Parameters
    ----------
    expected
        Number of samples of the run, answered or not.
    file
        The file of replies that the result names.
    overall
        The overall score by the same rules; None if it cannot be computed.
    """
    categories = {}
    for category in CATEGORIES:
        members = [verdict for verdict in verdicts if verdict.record.reference["category"] == category]
        scored = [verdict for verdict in members if verdict.values["as_published"] is not None]
        if not members:
            continue
        kind = members[0].record.reference["type"]
        score = mean_of([verdict.values["as_published"] for verdict in scored])
        metrics = {"closed": _choice_metrics, "open": _judged_metrics}.get(kind)
        more = {"metrics": metrics(scored) if scored else None} if metrics else {"success_rate": score}
        categories[category] = {"type": _TYPES[kind], "count": len(scored), "performance_score": score, **more}
    return {
        "evaluation_summary": {
            "total_samples": expected,
            "evaluated_samples": sum(result["count"] for result in categories.values()),
            "parquet_file": str(file),
            "model_output_column": REPLY,
            "overall_weighted_performance": overall,
        },
        "category_results": categories,
    }


def debug_info(summary: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the content of `debug_info.json`, as a dict.

    The keys tell by which rules the replies were read (`rules`, `matched_by`), which judges were asked (`judges`), and
    how many replies have no score for which reason (such as `errors` and `not_judged`).
    """
    names = ("expected", "n", "errors", "unparsed", "not_answerable", "not_judged", "cut_by_token_limit")
    return {
        **{name: summary.get(name) for name in names},
        "empty": sum(not verdict.record.text.strip() for verdict in verdicts),
        "rules": summary.get("rules"),
        "matched_by": summary.get("encoder") or None,
        "judges": sorted({judge for verdict in verdicts for judge in verdict.values["readings"]}),
        "defects": dict(Counter(name for verdict in verdicts for name in verdict.record.reference.get("defects", ()))),
    }


def _with_reply(record: Record, reply: str, *, faithful: bool) -> Record:
    answered = replied(record, reply)
    if reply == FAILED and not faithful:
        return replace(record, error=f"the reply in the file is {FAILED}, so the model failed on this clip")
    return answered


def _folded(name: str) -> str:
    """Return a name with single spaces, since some tools strip or merge white space in file names."""
    return " ".join(name.split())


def _row(record: Record) -> dict[str, Any]:
    """Return a record as a row of `test.parquet`; the clips' paths are empty, since a record has none."""
    reference = record.reference
    return {
        "id": record.id,
        "audio_path": [""] * reference["clips"],
        "answer": reference.get("answer_text"),
        "choices": list(reference["options"]) if reference["type"] == "closed" else None,
        "length_type": None if reference["length"] == "none" else reference["length"],
        **{name: reference[name] for name in ("question", "perceptual_skills", "reasoning_skills", "category")},
        "transcription": reference.get("transcription"),
        "task_identifier": reference.get("kind"),
        "kwargs": reference.get("kwargs"),
    }


def _choice_metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return accuracy, precision, recall and F1 of the chosen options, as {name: value}.

    Each metric is a mean over the classes of the right answers, weighted by their number of questions, as in
    scikit-learn.
    """
    chosen = [verdict.record.reference["options"][LETTERS.index(verdict.values["matched"])] for verdict in verdicts]
    rows = per_class([verdict.record.reference["answer_text"] for verdict in verdicts], chosen).values()

    def weighted(name: str) -> float:
        return float(sum((row[name] or 0.0) * row["support"] for row in rows) / len(verdicts))

    names = {"accuracy": "recall", "precision": "precision", "recall": "recall", "f1_score": "f1"}
    return {name: weighted(key) for name, key in names.items()}


def _judged_metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return {name: value}: mean and standard deviation of each score by judges, and shares of good and poor replies.

    A reply's scores are first averaged over the judges. A reply is good from an overall score of 4, and poor up to 2.
    """
    protocol, names, rows = OpenEndedAsPublished(), (*CRITERIA, "overall"), []
    for verdict in verdicts:
        read = [reading_of(protocol, verdict.record, said).values for said in verdict.record.judgements.values()]
        rows.append(np.mean([[values[name] for name in names] for values in read if values], axis=0))
    means, spreads, overall = np.mean(rows, axis=0), np.std(rows, axis=0), np.array(rows)[:, -1]
    spread = {
        key: float(value)
        for name, *both in zip(names, means, spreads, strict=True)
        for key, value in zip((f"avg_{name}", f"std_{name}"), both, strict=True)
    }
    rates = {"good_response_rate": np.mean(overall >= 4), "poor_response_rate": np.mean(overall <= 2)}
    return spread | {name: float(rate) for name, rate in rates.items()}
