"""Read logs of Inspect (`.eval`, `.json`), and write runs as such logs; their metadata hold every record unchanged."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.audio.member import Clip
from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.rows import Row, RowError, for_each, shown
from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.errors import DataError, blaming, told
from audiomarathon.files import file_name, read_plain
from audiomarathon.judges.judgements import NAME, Judgement, read_judgements
from audiomarathon.object_reference import is_reference
from audiomarathon.records import Record
from audiomarathon.runs.folder import check_run
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import from_line
from audiomarathon.runs.scored import judged
from audiomarathon.text import plain
from audiomarathon.untrusted import unzipped
from audiomarathon.version import __version__
from audiomarathon.wings.exchange.entries import Entry, Log, flat, parsed

if TYPE_CHECKING:
    from audiomarathon.engine.run import Result

OURS = "audiomarathon"
"""Key under which our own data are stored in the metadata of a log and of its samples."""

_ZSTD = 93  # compression of Inspect's .eval files; zipfile supports it from Python 3.14 on, or through Inspect
_HEADER = "header.json"
#: Fields of a sample not copied into a record's `extra`: some have their own field, the transcript stays in the log.
_LEFT_OUT = frozenset(
    ("choices", "target", "output", "messages", "events", "events_data", "attachments", "timelines", "error_retries")
)
#: Facts of a run that affect its summary's counts and notes, and the bounds for its allowed loss of score.
_CAVEATS = ("samples", "stopping", "largest_cluster", "note", "left_out", "data_samples", "data_expected")
_KEY = re.compile(r"[a-z][\w-]*(/[\w-][\w.-]*)*")  # pattern of a task's key, which must not be a path
_NEED = (
    "it is packed by zstd: pip install 'audiomarathon[inspect]', or: inspect log convert LOG --to json --output-dir OUT"
)


def read_content(file: Path) -> dict[str, Any]:
    """Return the content of a log of Inspect as an object, whose `samples` is a list.

    Raises
    ------
    DataError
        The file cannot be read, is too large, or is not a log.
    """
    has_package = find_spec("inspect_ai") is not None
    try:
        content = read_plain(file)
        if has_package:
            with blaming(f"{file}: inspect-ai cannot be imported:", DataError):
                import inspect_ai.log  # this import adds zstd to zipfile
        if content.startswith(b"PK"):
            content = _joined(content)
        log_fields = parsed(content)  # checked first, since the package reads without limits
    except (OSError, ValueError) as error:
        why = _NEED if f"compression {_ZSTD}" in str(error) else plain(str(getattr(error, "strerror", "") or error))
        raise DataError(f"{file}: cannot be read as a log of Inspect: {why}") from error
    if has_package:
        with blaming(f"{file}: inspect-ai cannot read it:", DataError):
            log = inspect_ai.log.read_eval_log(io.BytesIO(content), resolve_attachments="core", format="json")
            log_fields = parsed(log.model_dump_json(exclude_none=True))
    if not isinstance(log_fields.get("eval"), dict) or not isinstance(log_fields.get("samples"), list):
        raise DataError(f"{file}: cannot be read as a log of Inspect: it lacks 'eval' or 'samples'")
    return log_fields


def read_log(file: Path, content: Mapping[str, Any]) -> Log:
    """Turn the content that :func:`read_content` returned into a :class:`Log`.

    Raises
    ------
    DataError
        A sample is not in Inspect's format.
    """
    spec, entries, listed = content["eval"], list[Entry](), content["eval"].get("dataset")
    order = listed.get("sample_ids") if isinstance(listed, dict) else None
    places = {str(id_): place for place, id_ in enumerate(order if isinstance(order, list) else ())}
    for_each(file, "sample", content["samples"], lambda row: entries.append(_entry(row, places)))
    task, model = (each if isinstance(each := spec.get(name), str) else "unknown" for name in ("task", "model"))
    return Log(task, model, entries, list(places))


def _joined(content: bytes) -> bytes:
    """Convert a zipped log of Inspect to the text of a JSON log."""
    codecs = [_ZSTD] if "inspect_ai" in sys.modules or sys.version_info >= (3, 14) else []
    members = unzipped(content, lambda name: name == _HEADER or name.startswith("samples/"), *codecs)
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
        scores=flat({name: score.get("value") if isinstance(score, dict) else score for name, score in scores.items()}),
        extra=kept | {"output": said}, options=_texts(sample, "choices"), epoch=epoch,
        finish="length" if stop in ("max_tokens", "model_length") else "stop",
        error=str(error.get("message"))[:2000] if error else None,
    )  # fmt: skip


def _of_kind(fields: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Return the value of the field `name` of a JSON object; an empty value of type `kind` if it is missing or null.

    Raises
    ------
    RowError
        The value is of another type.
    """
    value = kind() if fields.get(name) is None else fields[name]
    if not isinstance(value, kind):
        raise RowError(f"field {name!r} holds {shown(value)}, expected {kind.__name__}")
    return value


def _texts(fields: Mapping[str, Any], name: str) -> list[str]:
    """Return the texts in the field `name` of a JSON object, which holds a text or a list of texts, as a list."""
    value = fields.get(name)
    texts = [value] if isinstance(value, str) else list(_of_kind(fields, name, list))
    if not all(isinstance(text, str) for text in texts):
        raise RowError(f"field {name!r} holds {shown(value)}, expected texts")
    return texts


def _text(content: Any) -> str:
    """Return the text of a message, or of a list of messages or message parts; parts such as audio are left out."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    if isinstance(content, dict):
        return _text(next((content[name] for name in ("message", "content", "text") if name in content), ""))
    return content if isinstance(content, str) else ""


def log_of(run: Run, samples: Mapping[str, Sample]) -> tuple[str, dict[str, Any]]:
    """Return a finished run as a log of Inspect: (file name as Inspect names logs, content).

    Parameters
    ----------
    samples
        The task's samples as {id: sample}, for prompts and clips. If a sample is missing, its prompt is left out.
    """
    summary, folder = run.check_finished(), run.folder or Path()
    task, records = get_task(run.key), [*run.records.values(), *run.failed.values()]
    what = json.dumps([run.key, run.checkpoint, run.method, run.control, run.identity], sort_keys=True)
    hashed = hashlib.sha256(what.encode("utf-8", "backslashreplace")).hexdigest()[:22]
    written = datetime.fromtimestamp((folder / "run.json").stat().st_mtime, UTC).isoformat(timespec="seconds")
    corpus = next((list(record.corpus.references) for record in records if record.corpus), [])
    figures = [name for name in summary.get("intervals") or {} if name != "score" and summary.get(name) is not None]
    named = ("task", "method", "control", "identity", *_CAVEATS)
    facts = {name: run.facts[name] for name in named if run.facts.get(name)}
    metadata = {"run": facts | {"settings": {"seed": run.seed}}, "checkpoint": run.checkpoint, "corpus": corpus}
    score = {
        "name": task.scorer.key, "scorer": task.scorer.key,
        "metrics": {name: {"name": name, "value": summary[name]} for name in figures},
    }  # fmt: skip
    answers = list(read_judgements(folder).values())
    made = [_sample(run, task, record, samples.get(record.id), answers) for record in records]
    spec = {
        "eval_id": hashed, "run_id": hashed, "task_id": hashed, "created": written, "model": run.checkpoint,
        "task": run.key, "task_args": {"method": run.method, "control": run.control or None}, "config": {"epochs": 1},
        "dataset": {"name": run.key, "samples": len(records), "sample_ids": [record.id for record in records]},
        "packages": {OURS: __version__}, "metadata": {OURS: metadata},
    }  # fmt: skip
    results = {"total_samples": run.expected, "completed_samples": len(run.records), "scores": [score]}
    name = f"{re.sub('[:+]', '-', written)}_{file_name(re.sub('[^A-Za-z0-9.]+', '-', f'{run.key}-{run.method}'))}"
    # Inspect's viewer needs all of these, in this order.
    head = {"version": 2, "status": "success", "eval": spec, "plan": {"name": run.method}, "results": results}
    return f"{name}_{hashed}.json", {**head, "stats": {"started_at": written}, "samples": made}


def is_ours(content: Mapping[str, Any]) -> bool:
    """Tell whether :func:`log_of` made this log, so that it holds a whole run of this suite."""
    return "run" in _ours(content["eval"])


def restored(file: Path, content: Mapping[str, Any], results: Path, model: str, setting: str) -> Result:
    """Write the run that a log of :func:`log_of` holds to a run folder under `results`, and score it.

    `model` and `setting` are names for tables; "" takes the names that the log holds.

    Raises
    ------
    AudioMarathonError
        The log is not as :func:`log_of` makes it, or the folder holds another run. Nothing is written.
    """
    from audiomarathon.engine.run import as_run

    metadata, records, judgements = _ours(content["eval"]), dict[str, Record](), list[Judgement]()
    run = check_run(file, metadata["run"])
    key, control, corpus = str(run.get("task")), run.get("control") or {}, metadata.get("corpus") or []
    names = model or str(metadata.get("checkpoint", "")), setting or str(run.get("method", ""))
    seed, seconds = (run.get("settings") or {}).get("seed"), control.get("seconds") or 0
    sound = type(seed) is int and isinstance(control.get("kind", ""), str) and isinstance(seconds, int | float)
    sound &= isinstance(corpus, list) and all(
        type(references) is list and {*map(type, references)} == {str} for references in corpus
    )
    stop, note = run.get("stopping") or {}, run.get("note") or ""
    numbers = [*map(run.get, ("largest_cluster", "data_samples", "data_expected")), stop.get("largest")]
    sound &= {*map(type, numbers)} <= {int, type(None)} and type(note) is str and type(stop.get("order", [])) is list
    sound &= bool(_KEY.fullmatch(key)) and not is_reference(key) and not key.endswith(".toml")
    if not (sound and all(name.isprintable() and 0 < len(name) <= 200 for name in names)):
        raise DataError(f"{file}: the metadata of its run cannot be used")

    def add(sample: Any) -> None:
        record, lines = from_line(json.dumps(_ours(sample).get("record")).encode()), _ours(sample).get("judgements")
        said = [Judgement.from_line(str(line).encode()) for line in (lines if isinstance(lines, list) else ())]
        if (
            record is None
            or record.id in records
            or any(not judgement or not NAME.fullmatch(judgement.judge) for judgement in said)
        ):
            raise RowError("the record or the judgements in its metadata are damaged, or there twice")
        records[record.id] = record
        judgements.extend(filter(None, said))

    def refuse(record: Record, error: BaseException) -> None:
        raise DataError(f"{file}: the record of {shown(record.id)} cannot be scored: {told(error)}")

    scorer = get_task(key).scorer
    for_each(file, "sample", content["samples"], add)
    if scorer.instant:  # refuse what cannot be scored before anything is written
        judged(scorer, records.values(), failed=refuse)
    folder = results / Path(*map(file_name, (*key.split("/"), *names)))
    same = run.get("identity") or {}
    facts = {"method": names[1], "settings": {"seed": seed}, "identity": same, "control": control or None}
    facts |= {name: run[name] for name in _CAVEATS if run.get(name)}
    return as_run(
        folder, key, file, names[0], list(records.values()), control=control.get("kind"), corpus=corpus,
        judgements=judgements, facts=facts,
    )  # fmt: skip


def _sample(run: Run, task: Task, record: Record, sample: Sample | None, answers: list[Any]) -> dict[str, Any]:
    reference, verdict = record.reference or {}, run.verdicts.get(record.id)
    prompt = task.prompt(sample) if sample else "(the prompt needs the data)"
    parts = [*map(_part, sample.clips if sample else ()), {"type": "text", "text": prompt}]
    messages: list[Any] = [{"role": "user", "content": parts}]
    lines = [each.to_line().decode() for said in answers for each in said.get(record.id, {}).values()]
    logged: dict[str, Any] = {
        "id": record.id, "epoch": 1, "input": messages, "choices": reference.get("options") or None,
        "target": reference.get("references") or str(reference.get("answer", "")),
        "metadata": {OURS: {"record": record.to_json(), "judgements": lines}},
    }  # fmt: skip
    if record.error is not None:
        return logged | {"error": {"message": record.error, "traceback": "", "traceback_ansi": ""}}
    if verdict is not None and (score := task.scorer.own_score(verdict)) is not None:
        told = {"explanation": task.scorer.shown(verdict), "metadata": dict(verdict.values)}
        logged["scores"] = {task.scorer.key: {"value": score, **told}}
    if record.time:
        logged["total_time"] = sum(record.time[stage] for stage in ("load", "preprocess", "prefill", "decode"))
    reply = {"role": "assistant", "content": record.raw}
    choice = {"message": reply, "stop_reason": "max_tokens" if record.finish == "length" else "stop"}
    usage = {"input_tokens": record.prompt_tokens or 0, "output_tokens": record.new_tokens or 0}
    output = {"model": run.checkpoint, "choices": [choice], "completion": record.raw, "usage": usage}
    return logged | {"messages": [*messages, reply], "output": output}


def _part(clip: Clip) -> dict[str, str]:
    """Return a message part of Inspect's format that refers to an audio clip, as a dict.

    Inspect knows two audio formats (WAV, MP3); clips in other formats are referred to as documents.
    """
    kind = Path(str(clip)).suffix.lower().removeprefix(".")
    if kind in ("wav", "mp3") and isinstance(clip, Path):
        return {"type": "audio", "audio": str(clip), "format": kind}
    return {"type": "document", "document": str(clip), "mime_type": f"audio/{kind}"}


def _ours(holder: Any) -> Mapping[str, Any]:
    """Return the data that this suite put into the metadata of a log or of a log's sample; {} if there are none."""
    for name in ("metadata", OURS):
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder if isinstance(holder, dict) else {}
