"""Make records and run folders as a run writes them; a test states only the fields that matter to it."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import soundfile

from audiomarathon.metrics.wer import TranscriptErrors
from audiomarathon.records import LETTERS, Record, Verdict
from audiomarathon.runs.read import Run
from audiomarathon.scoring.choice import Choice
from audiomarathon.scoring.scorer import figures_of, fingerprint_of
from audiomarathon.scoring.transcript import Transcript

STAGES = dict.fromkeys(("load", "preprocess", "encoder", "llm_prefill", "prefill", "decode", "scoring"), 0.1)
#: Fields that every record of an answered sample must have.
NEEDED: dict[str, Any] = {
    "cluster": "c", "reply": "A", "reference": {"answer": "A"}, "finish": "stop", "error": None, "clip_seconds": 90.0,
    "prompt_tokens": 120, "audio_tokens": 100, "kept_audio_tokens": 100, "new_tokens": 2, "kv_lengths": None,
    "kv_bytes": None, "peak_memory_bytes": None, "time": None,
}  # fmt: skip
#: Further fields that a run writes.
WRITTEN: dict[str, Any] = {"clips": None, "truncated": False, "window_padding_tokens": 0, "kept_audio_bits": None}
CLASSES = ["airport", "bus", "metro", "park"]
IDENTITY = {"data": "d", "prompts": "p", "max_new_tokens": 16, "device": "gpu"}
HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u2028\u202e"\\'


def a_record(id_: str = "a", **changes: Any) -> dict[str, Any]:
    """Return the record of an answered sample without task and times, alone in its cluster."""
    return {"id": id_, **NEEDED, **WRITTEN, "cluster": id_, **changes}


def a_session(started: str = "s", *, cpu: str = "a cpu", threads: int = 2, busy: float = 0.0) -> dict[str, Any]:
    """Return a session as `run.json` stores it; `busy` is the number of foreign processes on its two cores."""
    load = {"foreign_processes": busy, "cores": 2}
    machine = {"cpu": cpu, "threads": threads, "cuda": None}
    return {"started": started, "environment": machine, "load_before": load, "load_after": load}


def a_failed_record(id_: str = "f", error: str = "AudioError: no sound", **changes: Any) -> dict[str, Any]:
    """Return the record of a sample that has no reply."""
    facts = {"id": id_, "cluster": id_, "clips": None, "reply": None, "reference": {}, "error": error, "session": "s"}
    return facts | changes


def a_verdict(answer: str, labels: Sequence[str], *, right: bool) -> dict[str, Any]:
    """Return the fields that a choice task adds to a record; a wrong reply is the next letter."""
    letters = "ABCD"[: len(labels)]
    parsed = answer if right else letters[(letters.index(answer) + 1) % len(letters)]
    reference = {"answer": answer, "options": list(labels), "labels": list(labels)}
    return {"reply": parsed, "reference": reference, "parsed": parsed, "rule": "letter"} | dict.fromkeys(
        ("correct", "strict"), right
    )


def a_timed_choice(number: int, *, right: bool, prefill: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Return the timed record of `clip<number>`, one of four scenes; the right answer cycles through A to D."""
    fields = {
        "clip_seconds": 95.0, "kv_lengths": [120], "kv_bytes": 1000, "session": "s", "encoder_shared": True,
        "forced_decode": None, "time": STAGES | {"llm_prefill": prefill, "prefill": prefill + 0.1},
    }  # fmt: skip
    return a_record(f"clip{number}", **a_verdict("ABCD"[number % 4], CLASSES, right=right), **fields) | changes


def steady(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that do not change from run to run."""
    volatile = ("time", "session", "peak_memory_bytes", "forced_decode", "crc", "batch")
    return {name: value for name, value in record.items() if name not in volatile}


def write_records(folder: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace all records of a run."""
    (folder / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file."""
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def records_in(folder: Path) -> list[dict[str, Any]]:
    """Return a run's records in the order of the file, each merged with its stored verdicts."""
    verdicts: dict[str, dict[str, Any]] = {}
    for file in folder.glob("verdicts-*.jsonl"):
        for line in lines_of(file):
            verdict_fields = {name: value for name, value in line.items() if name not in ("id", "stamp", "crc")}
            verdicts.setdefault(line["id"], {}).update(verdict_fields)
    return [line | verdicts.get(line["id"], {}) for line in lines_of(folder / "samples.jsonl")]


def typed(record: dict[str, Any]) -> Record:
    """Convert a record given as a dict to a `Record`."""
    return Record.from_json(record)


def write_run(
    folder: Path, facts: dict[str, Any], records: Sequence[dict[str, Any]], summary: dict[str, Any] | None = None
) -> Path:
    """Write a run folder; its list of samples is that of the records unless `facts` has another."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = [record["id"] for record in records]
    (folder / "run.json").write_text(json.dumps({"samples": samples, **facts}))
    write_records(folder, records)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def added(folder: Path, *records: dict[str, Any]) -> Path:
    """Append records to a run; the last record of a sample counts."""
    write_records(folder, [*lines_of(folder / "samples.jsonl"), *records])
    return folder


def changed(folder: Path, file: str = "run.json", **facts: Any) -> Path:
    """Change fields of a run's `run.json` or `summary.json`."""
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | facts))
    return folder


def with_identity(folder: Path, **identity: Any) -> Path:
    """Change fields of the identity in a run's `run.json`."""
    facts = json.loads((folder / "run.json").read_text())
    return changed(folder, identity=facts["identity"] | identity)


def changed_records(folder: Path, **changes: Any) -> Path:
    """Set the same fields in all records of a run."""
    write_records(folder, [record | changes for record in lines_of(folder / "samples.jsonl")])
    return folder


def timed_as(folder: Path, seconds: Sequence[float]) -> Path:
    """Set each sample's seconds of LLM prefill; the time to the first token gets the same value."""
    records = lines_of(folder / "samples.jsonl")
    for record, prefill_s in zip(records, seconds, strict=True):
        record["time"] |= {"llm_prefill": prefill_s, "prefill": prefill_s}
    write_records(folder, records)
    return folder


#: Seconds of base and of a setting on ten samples, on a machine whose speed drifts: the setting is faster only where
#: the machine happened to be faster. Medians are 0.8 and 0.5 s, the median of base / setting is 0.98.
DRIFTING = [0.8] * 6 + [0.2] * 4, [0.8 / 0.98] * 4 + [0.2] * 2 + [0.2 / 0.98] * 4


def as_control(folder: Path, kind: str = "silence", seconds: float | None = None) -> Path:
    """Mark a run as made on control audio."""
    return changed(folder, control={"kind": kind, "seconds": seconds, "seed": 42})


def a_run(
    root: Path,
    label: str,
    rights: Sequence[bool],
    *,
    task: str = "tau",
    prefill: float = 1.0,
    checkpoint: str = "M",
    cluster: str | None = None,
    session: str = "s",
    first: int = 0,
    **identity: Any,
) -> Path:
    """Write an unfinished run of timed choice records; `rights` says which are right, `clip<first>` is the first."""
    same = {"session": session} | ({"cluster": cluster} if cluster else {})
    records = [a_timed_choice(n, right=right, prefill=prefill, **same) for n, right in enumerate(rights, first)]
    method, ratio = label.split("-")[:2]
    run_identity = IDENTITY | {"method": method, "ratio": float(ratio)} | identity
    facts = {
        "schema_version": 2,
        "task": task,
        "method": label,
        "checkpoint": f"/m/{checkpoint}",
        "identity": run_identity,
    }
    return write_run(root / task / checkpoint / label, facts, records)


def finished(folder: Path, **summary: Any) -> Path:
    """Give a run the summary of its records, with made-up scores."""
    run = Run.read(folder)
    counts = {"n": len(run.records), "errors": len(run.failed), "expected": len(run.facts["samples"]), "unparsed": 0}
    content = {"task": folder.parts[-3], "headline": "macro_f1", "score": 0.5, "intervals": {"score": [0.4, 0.6]}}
    if run.task:  # otherwise it would be computed again, without the made-up scores
        content["records"] = fingerprint_of(run.task.scorer, [*run.records.values(), *run.failed.values()])
    (folder / "summary.json").write_text(json.dumps(content | counts | summary))
    return folder


def summarise_choices(
    truth: Sequence[str], chosen: Sequence[str | None], strict: Sequence[bool], clusters: Sequence[str], *, seed: int
) -> dict[str, Any]:
    """Return the metrics of choices with these true and chosen classes."""
    labels = sorted({*truth, *(choice for choice in chosen if choice)})
    letters = dict(zip(labels, LETTERS, strict=False))
    verdicts = []
    for number, (right, guess, exact, cluster) in enumerate(zip(truth, chosen, strict, clusters, strict=True)):
        record = Record(str(number), cluster, reference={"answer": letters[right], "options": labels, "labels": labels})
        values = {"parsed": letters[guess] if guess else None, "correct": right == guess, "strict": exact}
        verdicts.append(Verdict(record, values))
    return figures_of(Choice(), verdicts, seed=seed)


def summarise_transcripts(errors: Sequence[TranscriptErrors], clusters: Sequence[str], *, seed: int) -> dict[str, Any]:
    """Return the metrics of transcripts with these errors."""
    records = [Record(str(number), cluster) for number, cluster in enumerate(clusters)]
    verdicts = [Verdict(record, asdict(counts)) for record, counts in zip(records, errors, strict=True)]
    return figures_of(Transcript(), verdicts, seed=seed)


@pytest.fixture(scope="module")
def one_load() -> Iterator[None]:
    """Share loaded models among all runs of a test file: loading one takes longer than a short run."""
    from audiomarathon.models.audio_lm import AudioLM

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AudioLM, "load", classmethod(functools.cache(AudioLM.load.__func__)))
        yield


def rendered_here(request: dict[str, Any]) -> dict[str, str]:
    """Render a chat template in this process instead of the child process, which takes a second to start."""
    from transformers.utils.chat_template_utils import render_jinja_template

    from audiomarathon.models import template_child

    request.pop("seconds")
    return template_child._rendered(render_jinja_template, request)


@contextmanager
def counting_opens() -> Iterator[Counter[str]]:
    """Count how often the block opens each file, in Python or in libsndfile."""
    opened, watching, make = Counter[str](), [True], soundfile.SoundFile.__init__
    sys.addaudithook(lambda event, given: watching and event == "open" and opened.update([str(given[0])]))

    def counted(sound: Any, file: Any, *arguments: Any, **more: Any) -> None:
        opened.update([str(file)] if isinstance(file, str | Path) else [])
        make(sound, file, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soundfile.SoundFile, "__init__", counted)
        yield opened
    watching.clear()
