"""Replies that were generated elsewhere, as a run: it is judged, scored and compared like any other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from audiomarathon.engine.run import Result, score
from audiomarathon.errors import DataError
from audiomarathon.records import Corpus, Record
from audiomarathon.runs.folder import RunFolder
from audiomarathon.runs.record_line import to_line

IMPORTED = "imported"
"""Label of the method of such a run."""


def as_run(
    folder: Path,
    task: str,
    file: Path,
    name: str,
    records: Sequence[Record],
    *,
    control: str | None = None,
    corpus: Sequence[Sequence[str]] = (),
) -> Result:
    """Write records as a run folder, or go on with one that holds some of them, and score it.

    Runs of the same questions are comparable, whatever the replies.

    Parameters
    ----------
    file
        Where the replies come from.
    name
        What the model is called in tables.
    control
        What was heard instead of the clips.
    corpus
        See :meth:`~audiomarathon.benchmarks.task.Task.corpus`.

    Raises
    ------
    DataError
        The folder holds another reply to one of the questions; nothing is written.
    RecordError
        A record cannot be written; none is.
    """
    for one in records:
        to_line(one)
    asked = json.dumps([[one.id, one.reference] for one in sorted(records, key=lambda one: one.id)])
    digest = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()
    heard = {"control": {"kind": control}} if control else {}
    weighed = {"corpus": Corpus(tuple(map(tuple, corpus))).hash} if corpus else {}
    with RunFolder(folder, {"task": task, "origin": IMPORTED, "data": digest, **heard, **weighed}) as run:
        fresh = [one for one in records if one.id not in run.records]
        for one in records:
            known = run.records.get(one.id, one)
            if (known.reply, known.answered) != (one.reply, one.answered):
                raise DataError(f"{folder}: holds another reply to {one.id} than {file}; remove that folder first")
        facts = {"task": task, "method": IMPORTED, "model": name, "checkpoint": name, "checkpoint_name": name}
        origin = {"origin": IMPORTED, "file": file.name, "settings": {"seed": 42}}
        run.write_run({**facts, **origin, **heard, "samples": [one.id for one in records]})
        if corpus:
            run.write_corpus(corpus)
        for one in fresh:
            run.append(one)
    return score(folder)
