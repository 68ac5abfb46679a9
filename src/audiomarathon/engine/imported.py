"""Import replies that were generated elsewhere as a run, to judge, score and compare them like any other."""

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
"""Method label of an imported run."""


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
    """Write records as a run folder, or complete a folder that holds some of them, and score it.

    Two imported runs of the same questions are comparable.

    Parameters
    ----------
    file
        The file with the replies.
    name
        The model's name in tables.
    control
        Kind of audio control that replaced the clips.
    corpus
        See :meth:`~audiomarathon.benchmarks.task.Task.corpus`.

    Raises
    ------
    DataError
        The folder holds a different reply to one of the questions; nothing is written.
    RecordError
        A record cannot be written; nothing is written.
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
                raise DataError(f"{folder}: its reply to {one.id} differs from {file}; remove that folder first")
        facts = {"task": task, "method": IMPORTED, "model": name, "checkpoint": name, "checkpoint_name": name}
        origin = {"origin": IMPORTED, "file": file.name, "settings": {"seed": 42}}
        run.write_run({**facts, **origin, **heard, "samples": [one.id for one in records]})
        if corpus:
            run.write_corpus(corpus)
        for one in fresh:
            run.append(one)
    return score(folder)
