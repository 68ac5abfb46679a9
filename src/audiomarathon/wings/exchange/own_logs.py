"""Write runs as logs that Inspect opens, and read these logs back: metadata of a sample hold its whole record."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.rows import RowError, for_each
from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.errors import DataError
from audiomarathon.files import file_name
from audiomarathon.judges.judgements import NAME, Judgement, read_judgements
from audiomarathon.object_reference import is_reference
from audiomarathon.records import Record
from audiomarathon.runs.folder import check_run
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import from_line
from audiomarathon.version import __version__

if TYPE_CHECKING:
    from audiomarathon.engine.run import Result

OURS = "audiomarathon"
"""Key of our own facts in the metadata of a log and of its samples."""

_KEPT = (
    "cluster", "groups", "clip_seconds", "audio_tokens", "kept_audio_tokens", "kv_bytes", "peak_memory_bytes", "time",
)  # fmt: skip
_KEY = re.compile(r"[a-z][\w-]*(/[\w-][\w.-]*)*")  # of a task: no path


def log_of(run: Run, samples: Mapping[str, Sample]) -> tuple[str, dict[str, Any]]:
    """Return a finished run as a log of Inspect: the file's name, as Inspect names logs, and its content.

    Parameters
    ----------
    samples
        The task's samples by id, for prompts and clips; without a sample, only its options are known.
    """
    run.check_finished()
    assert run.summary is not None
    assert run.folder is not None
    task, records = get_task(run.key), [*run.records.values(), *run.failed.values()]
    what = json.dumps([run.key, run.checkpoint, run.method, run.control, run.identity], sort_keys=True)
    hashed = hashlib.sha256(what.encode("utf-8", "backslashreplace")).hexdigest()[:22]
    written = datetime.fromtimestamp((run.folder / "run.json").stat().st_mtime, UTC).isoformat(timespec="seconds")
    corpus = next((list(one.corpus.references) for one in records if one.corpus), [])
    figures = {name: run.summary.get(name) for name in run.summary.get("intervals") or {} if name != "score"}
    facts = {name: run.facts[name] for name in ("task", "method", "control", "identity") if run.facts.get(name)}
    own = {"run": facts | {"settings": {"seed": run.seed}}, "checkpoint": run.checkpoint, "corpus": corpus}
    score = {
        "name": task.scorer.key, "scorer": task.scorer.key,
        "metrics": {name: {"name": name, "value": value} for name, value in figures.items() if value is not None},
    }  # fmt: skip
    made = [_sample(run, task, record, samples.get(record.id)) for record in records]
    for said in read_judgements(run.folder).values():
        for one in made:
            lines = [judgement.to_line().decode() for judgement in said.get(one["id"], {}).values()]
            one["metadata"][OURS]["judgements"] += lines
    spec = {
        "eval_id": hashed, "run_id": hashed, "task_id": hashed, "created": written, "model": run.checkpoint,
        "task": run.key, "task_args": {"method": run.method, "control": run.control or None}, "config": {"epochs": 1},
        "dataset": {"name": run.key, "samples": len(records), "sample_ids": [one.id for one in records]},
        "packages": {OURS: __version__}, "metadata": {OURS: own},
    }  # fmt: skip
    results = {"total_samples": run.expected, "completed_samples": len(run.records), "scores": [score]}
    name = file_name(re.sub(r"[^A-Za-z0-9.]+", "-", f"{run.key}-{run.method}"))
    name = f"{re.sub('[:+]', '-', written)}_{name}_{hashed}.json"
    return name, {"version": 2, "status": "success", "eval": spec, "results": results, "samples": made}


def is_ours(content: Mapping[str, Any]) -> bool:
    """Tell whether a log's content was made by :func:`log_of`."""
    return "run" in _ours(content["eval"])


def restored(file: Path, content: Mapping[str, Any], results: Path, model: str, setting: str) -> Result:
    """Write the run in a log of ours to a run folder under `results`, and score it.

    `model` and `setting` are names for tables; "" takes the run's own.

    Raises
    ------
    AudioMarathonError
        The log is not as :func:`log_of` makes it, or another run is in the folder. Nothing is written.
    """
    from audiomarathon.engine.run import as_run

    own, records, judgements = _ours(content["eval"]), dict[str, Record](), list[Judgement]()
    run = check_run(file, own["run"])
    key, control, corpus = str(run.get("task")), run.get("control") or {}, own.get("corpus") or []
    names = model or str(own.get("checkpoint", "")), setting or str(run.get("method", ""))
    seed, seconds = (run.get("settings") or {}).get("seed"), control.get("seconds", 0)
    sound = {
        "task": _KEY.fullmatch(key) and not is_reference(key) and not key.endswith(".toml"),
        "model or setting": all(one.isprintable() and 0 < len(one) <= 200 for one in names),
        "seed": type(seed) is int and 0 <= seed < 1 << 63,
        "control": isinstance(control.get("kind", ""), str) and isinstance(seconds, int | float),
        "corpus": isinstance(corpus, list) and all(isinstance(one, list) for one in corpus),
    }
    if odd := [name for name, fine in sound.items() if not fine]:
        raise DataError(f"{file}: the metadata of its run hold no usable {odd[0]}")

    def add(sample: Any) -> None:
        record, lines = from_line(json.dumps(_ours(sample).get("record")).encode()), _ours(sample).get("judgements")
        said = [Judgement.from_line(str(line).encode()) for line in (lines if isinstance(lines, list) else ())]
        if record is None or record.id in records or any(not one or not NAME.fullmatch(one.judge) for one in said):
            raise RowError("the record or the judgements in its metadata are damaged, or there twice")
        records[record.id] = record
        judgements.extend(filter(None, said))

    get_task(key)  # refuses an unknown task before anything is written
    for_each(file, "sample", content["samples"], add)
    folder = results / Path(*map(file_name, (*key.split("/"), *names)))
    facts = {"method": names[1], "suite": "inspect", "settings": {"seed": seed}, "control": control or None}
    facts["identity"] = run.get("identity") or {}
    return as_run(
        folder, key, file, names[0], list(records.values()), control=control.get("kind"), corpus=corpus,
        judgements=judgements, facts=facts,
    )  # fmt: skip


def _sample(run: Run, task: Task, record: Record, sample: Sample | None) -> dict[str, Any]:
    reference, verdict = record.reference or {}, run.verdicts.get(record.id)
    prompt = task.prompt(sample) if sample else "(the prompt needs the data)"
    parts = [*map(_part, sample.clips if sample else ()), {"type": "text", "text": prompt}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    kept = {name: value for name in _KEPT if (value := getattr(record, name)) is not None}
    found: dict[str, Any] = {
        "id": record.id, "epoch": 1, "input": messages, "choices": reference.get("options") or None,
        "target": reference.get("references") or str(reference.get("answer", "")),
        "metadata": kept | {OURS: {"record": record.to_json(), "judgements": []}},
    }  # fmt: skip
    if record.error is not None:
        return found | {"error": {"message": record.error, "traceback": "", "traceback_ansi": ""}}
    if verdict is not None and (score := task.scorer.own_score(verdict)) is not None:
        told = {"explanation": task.scorer.shown(verdict), "metadata": dict(verdict.values)}
        found["scores"] = {task.scorer.key: {"value": score, **told}}
    if record.time:
        found["total_time"] = sum(record.time[stage] for stage in ("load", "preprocess", "prefill", "decode"))
    reply = {"role": "assistant", "content": record.raw}
    choice = {"message": reply, "stop_reason": "max_tokens" if record.finish == "length" else "stop"}
    usage = {"input_tokens": record.prompt_tokens or 0, "output_tokens": record.new_tokens or 0}
    output = {"model": run.checkpoint, "choices": [choice], "completion": record.raw, "usage": usage}
    return found | {"messages": [*messages, reply], "output": output}


def _part(clip: Path) -> dict[str, str]:
    """Return a reference to a clip; Inspect knows audio of two formats, and takes others as documents."""
    kind = clip.suffix.lower().removeprefix(".")
    if kind in ("wav", "mp3"):
        return {"type": "audio", "audio": str(clip), "format": kind}
    return {"type": "document", "document": str(clip), "mime_type": f"audio/{kind}"}


def _ours(holder: Any) -> Mapping[str, Any]:
    """Return our facts in the metadata of a log or a sample; {} if there are none."""
    for name in ("metadata", OURS):
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder if isinstance(holder, dict) else {}
