"""Read Inspect's logs (`.eval` and `.json`): by its own reader where the package is, else by their JSON alone."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks.rows import Row, RowError, for_each, shown
from audiomarathon.errors import DataError, blaming
from audiomarathon.files import MAX_OBJECT_BYTES, read_plain
from audiomarathon.text import plain
from audiomarathon.untrusted import unzipped
from audiomarathon.wings.exchange.entries import Entry, Log, flat, parsed

_ZSTD = 93  # compression of Inspect's .eval files; zipfile knows it from Python 3.14 on, or through Inspect
_HEADER, _SAMPLES = "header.json", "samples/"
#: Fields that a record holds elsewhere, and the transcript, which stays in the log.
_LEFT_OUT = frozenset(
    ("choices", "target", "output", "messages", "events", "events_data", "attachments", "timelines", "error_retries")
)
_NEED = "it is packed by zstd: pip install 'audiomarathon[inspect]', or: inspect log convert --to json"


def read_content(file: Path) -> dict[str, Any]:
    """Return the content of a log as an object, with its samples in a list.

    Raises
    ------
    DataError
        The file cannot be read, is too large, or is no log.
    """
    has_package = find_spec("inspect_ai") is not None
    try:
        content = read_plain(file)
        if has_package:
            with blaming(f"{file}: inspect-ai cannot be imported:", DataError):
                import inspect_ai.log  # teaches zipfile zstd
        if content.startswith(b"PK"):
            content = _joined(content)
        found = parsed(content)  # checked before the package reads it, which has no limits
    except (OSError, ValueError) as error:
        why = _NEED if f"compression {_ZSTD}" in str(error) else plain(str(getattr(error, "strerror", "") or error))
        raise DataError(f"{file}: cannot be read as a log of Inspect: {why}") from error
    if has_package:
        with blaming(f"{file}: inspect-ai cannot read it:", DataError):
            log = inspect_ai.log.read_eval_log(io.BytesIO(content), resolve_attachments="core", format="json")
            found = parsed(log.model_dump_json(exclude_none=True))
    if not isinstance(found.get("eval"), dict) or not isinstance(found.get("samples"), list):
        raise DataError(f"{file}: cannot be read as a log of Inspect: it lacks 'eval' or 'samples'")
    return found


def read_log(file: Path, content: Mapping[str, Any]) -> Log:
    """Return the log in the content that :func:`read_content` returned.

    Raises
    ------
    DataError
        A sample is not as Inspect writes it.
    """
    spec, entries, listed = content["eval"], list[Entry](), content["eval"].get("dataset")
    order = listed.get("sample_ids") if isinstance(listed, dict) else None
    places: dict[str, int] = {}
    for id_ in order if isinstance(order, list) else ():
        places.setdefault(str(id_), len(places))
    for_each(file, "sample", content["samples"], lambda one: entries.append(_entry(one, places)))
    task, model = (each if isinstance(each := spec.get(name), str) else "unknown" for name in ("task", "model"))
    return Log("inspect", "sample", task, model, entries)


def _joined(content: bytes) -> bytes:
    """Return a zipped log as the text of a JSON log."""
    members = unzipped(content, lambda name: name == _HEADER or name.startswith(_SAMPLES), _ZSTD)
    if large := [name for name, text in members.items() if len(text) > MAX_OBJECT_BYTES]:
        raise RowError(f"{shown(large[0])} has more than {MAX_OBJECT_BYTES:,} bytes")
    if _HEADER not in members:
        raise RowError(f"it has no {_HEADER}, as in an unfinished evaluation")
    header = parsed(members.pop(_HEADER))
    return json.dumps({**header, "samples": [parsed(text) for text in members.values()]}).encode()


def _entry(sample: Any, places: dict[str, int]) -> Entry:
    if not isinstance(sample, dict):
        raise RowError(f"expected an object, found {shown(sample)}")
    id_, epoch = Row(Path(), sample).id("id"), sample.get("epoch", 1)
    output, error, scores = (_of_kind(sample, name, dict) for name in ("output", "error", "scores"))
    if type(epoch) is not int or epoch < 1:
        raise RowError(f"epoch {shown(epoch)} of {shown(id_)} is not a whole number from 1")
    first = next(iter(_of_kind(output, "choices", list)), None)
    stop = str(first.get("stop_reason")) if isinstance(first, dict) else ""
    said = {name: value for name, value in output.items() if name not in ("choices", "completion")}
    kept = {name: value for name, value in sample.items() if name not in _LEFT_OUT}
    return Entry(
        id_, places.setdefault(id_, len(places)), _text(sample.get("input")), ", ".join(_texts(sample, "target")),
        reply=_text(output.get("completion")) or _text(first),
        scores=flat({name: one.get("value") if isinstance(one, dict) else one for name, one in scores.items()}),
        extra=kept | {"output": said}, options=_texts(sample, "choices"), epoch=epoch,
        finish="length" if stop in ("max_tokens", "model_length") else "stop",
        error=str(error.get("message"))[:2000] if error else None,
    )  # fmt: skip


def _of_kind(fields: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Return a field's value of this type; an empty one if the field is missing or null."""
    value = kind() if fields.get(name) is None else fields[name]
    if not isinstance(value, kind):
        raise RowError(f"field {name!r} holds {shown(value)}, expected {kind.__name__}")
    return value


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    """Return a field that holds a text or a list of texts."""
    value = fields.get(name)
    found = [value] if isinstance(value, str) else list(_of_kind(fields, name, list))
    if not all(isinstance(one, str) for one in found):
        raise RowError(f"field {name!r} holds {shown(value)}, expected texts")
    return found


def _text(content: Any) -> str:
    """Return the text of a message, or of a list of messages or parts; other parts, such as audio, have none."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    if isinstance(content, dict):
        return _text(next((content[name] for name in ("message", "content", "text") if name in content), ""))
    return content if isinstance(content, str) else ""
