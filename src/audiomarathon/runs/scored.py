"""Get the verdicts of a run (the scores of its samples): reuse valid stored verdicts, and score all other records.

`verdicts-<scorer>.jsonl` is only a cache, which people may also read: deleting it changes no score. A stored verdict is
valid only if the installed version of the scorer made it from the record's present reply and reference, so no score
mixes two versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from audiomarathon.errors import ANY_ERROR, AudioMarathonError, DataError, PluginError, RecordError, told
from audiomarathon.files import MAX_RECORD_BYTES, json_object, read_plain, sealed, sound_text, write_bytes
from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.scorer import Scorer

_OWN = ("id", "stamp", "crc")  # fields of a stored verdict that do not come from the scorer
_LINE = re.compile(rb'\{"id": ("(?:[^"\\]|\\.)*"), "stamp": "(\w+)"(?:, (.*))?\}')


def verdicts_file(folder: Path, scorer: Scorer) -> Path:
    """Return the path of the file with a scorer's verdicts in a run folder."""
    return folder / f"verdicts-{scorer.key}.jsonl"


def judged(
    scorer: Scorer,
    records: Iterable[Record],
    folder: Path | None = None,
    failed: Callable[[Record, BaseException], None] = lambda _record, _error: None,
) -> dict[str, Verdict]:
    """Return the verdict of each answered record, as {sample's id: verdict}, in the records' order.

    Parameters
    ----------
    folder
        The run's folder, whose stored verdicts are used if valid; None scores every record.
    failed
        Function that is called with each record that cannot be scored, and the error; this record gets no verdict.
    """
    answered = [record for record in records if record.answered]
    stored = _stored(folder, scorer) if folder else {}
    by_id: dict[str, Verdict] = {}
    todo = []
    for record in answered:
        if not scorer.fits(record):
            failed(record, DataError(f"its reference lacks at least one of {', '.join(scorer.needs)}"))
            continue
        stamp, values = stored.get(record.id, ("", {}))
        verdict = Verdict(record, values)
        if stamp and stamp == scorer.stamp(record) and scorer.sound(verdict):
            by_id[record.id] = verdict
        else:
            todo.append(record)
    for group in [[record] for record in todo] if scorer.instant else [todo] if todo else []:
        try:
            by_id |= {verdict.record.id: verdict for verdict in scorer.verdicts(group)}
        except ANY_ERROR as error:  # a third-party scorer may raise anything
            for record in group:
                failed(record, error)
    return {record.id: by_id[record.id] for record in answered if record.id in by_id}


def write_verdicts(folder: Path, scorer: Scorer, verdicts: Iterable[Verdict]) -> None:
    """Write a run's file of verdicts, replacing the old file atomically.

    Raises
    ------
    PluginError
        A verdict holds a value that JSON cannot store.
    RecordError
        The file cannot be written.
    """
    lines = []
    for verdict in verdicts:
        values = {name: value for name, value in verdict.values.items() if name not in _OWN}
        try:
            lines.append(sealed({"id": verdict.record.id, "stamp": scorer.stamp(verdict.record), **values}))
        except (TypeError, ValueError) as error:
            what = f"scorer {scorer.key}: its verdict on {verdict.record.id!r} cannot be stored as JSON"
            raise PluginError(f"{what} ({error})") from error
    content = b"".join(lines)
    file = verdicts_file(folder, scorer)
    with suppress(OSError):
        if read_plain(file, MAX_RECORD_BYTES) == content:
            return
    write_bytes(file, content)


def cannot_be_judged(scorer: Scorer, record: Record, error: BaseException) -> AudioMarathonError:
    """Make the error to raise when a scorer fails on a record: it names the scorer, the sample and the fault."""
    return PluginError(f"scorer {scorer.key} fails on the record of {record.id!r}: {told(error)}")


def _stored(folder: Path, scorer: Scorer) -> Mapping[str, tuple[str, Mapping[str, object]]]:
    """Read a run's stored verdicts, as {sample's id: (stamp, values)}.

    The stamp is a hash that shows which version of the scorer made the verdict, and from which reply and reference.
    Damaged lines are skipped; their samples are scored again.
    """
    try:
        lines = read_plain(verdicts_file(folder, scorer), MAX_RECORD_BYTES).splitlines()
    except (OSError, RecordError):
        return {}
    stored = {}
    for line in lines:
        parts = _LINE.fullmatch(sound_text(line, always=True) or b"")
        if parts and (values := _values(parts[3] or b"")) is not None:
            with suppress(ValueError):
                stored[json.loads(parts[1])] = parts[2].decode(), values
    return stored


@lru_cache(1 << 12)
def _values(text: bytes) -> Mapping[str, object] | None:
    """Parse the JSON text of a verdict, and return its {name: value}; None if the text is damaged.

    Results are cached: equal texts, such as those of all right answers with one letter, are parsed once.
    """
    return json_object(b"{%b}" % text, strict=True)
