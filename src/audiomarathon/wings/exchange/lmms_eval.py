"""Read lmms-eval's files of samples, `<time>_samples_<task>.jsonl`, as its version 0.7 writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from audiomarathon.benchmarks.rows import RowError, for_each, read_text, shown
from audiomarathon.errors import DataError
from audiomarathon.files import json_object
from audiomarathon.wings.exchange.entries import Entry, Log, flat, parsed

_NAME = re.compile(r"(?P<time>.*?)_?samples_(?P<task>.+)\.jsonl")
_NEEDED = ("doc_id", "target", "filtered_resps")
#: Fields of every line; all other fields are scores of the task.
_KNOWN = frozenset((*_NEEDED, "doc", "arguments", "input", "resps", "token_counts", "doc_hash", "input_media"))


def read_log(path: Path) -> tuple[Path, Log]:
    """Read a file of samples by lmms-eval, or the only such file in a folder; return (file, its content as a log).

    Raises
    ------
    DataError
        There is no such file, or several; or a line is not in lmms-eval's format.
    """
    files = sorted(path.rglob("*samples_*.jsonl")) if path.is_dir() else [path]
    if len(files) != 1:
        what = "name one of them" if files else "name such a file, or a log of Inspect (.eval, .json)"
        raise DataError(f"{path}: holds {len(files)} files *_samples_*.jsonl; {what}")
    file, entries = files[0], list[Entry]()
    lines = [line for line in read_text(file).split("\n") if line.strip()]
    for_each(file, "line", lines, lambda line: entries.append(_entry(line)))
    named = _NAME.fullmatch(file.name)
    results = file.with_name(f"{named['time'] if named else ''}_results.json")
    content = json_object(read_text(results).encode()) if results.is_file() else None
    model = str((content or {}).get("model_name") or file.absolute().parent.name)
    return file, Log(named["task"] if named else file.stem, model, entries)


def _entry(line: str) -> Entry:
    content = parsed(line)
    if lacking := [name for name in _NEEDED if name not in content]:
        raise RowError(f"lacks {lacking[0]!r}; needed: {', '.join(_NEEDED)}")
    id_, target, reply = (content[name] for name in _NEEDED)
    if type(id_) is not int or id_ < 0 or not isinstance(target, str):
        raise RowError(f"doc_id {shown(id_)} must be a whole number from 0, and target {shown(target)} a text")
    while isinstance(reply, list) and len(reply) == 1:
        reply = reply[0]
    reply = reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)  # several, or likelihoods
    scores = flat({name: value for name, value in content.items() if name not in _KNOWN})
    kept = {name: value for name, value in content.items() if name not in ("target", "filtered_resps")}
    return Entry(str(id_), id_, str(content.get("input", "")), target, reply, scores, kept)
