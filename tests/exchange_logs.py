"""Write logs in the formats of lmms-eval 0.7.3 and Inspect, from a few facts about each sample."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.task import Sample

TIME = "20261127_120000"


def tau_samples(data: Path) -> list[Sample]:
    """Return TAU's samples in the order of its metadata file."""
    task = get_task("tau")
    return sorted(task.load(task.find(data)).samples, key=lambda sample: sample.row)


def asked(samples: Iterable[Sample], replies: str) -> list[dict[str, Any]]:
    """Return the rows of a log, with one letter of `replies` as the reply to each sample."""
    rows = []
    for sample, reply in zip(samples, replies, strict=True):
        options = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", sample.options, strict=True))
        prompt = f"{sample.question}\n{options}\nAnswer with the option's letter."
        right = float(reply == sample.answer)
        rows.append({"input": prompt, "target": sample.answer, "reply": reply, "scores": {"accuracy": right}})
    return rows


def lmms_folder(folder: Path, rows: Sequence[Mapping[str, Any]], task: str = "audiomarathon_tau", **more: Any) -> Path:
    """Write a folder as `EvaluationTracker` does, without `doc`, `arguments`, or `resps` equal to `filtered_resps`."""
    place = folder / "lmms-lab__a-model"
    place.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, row in enumerate(rows):
        line = {
            "doc_id": row.get("doc_id", number), "target": str(row["target"]), "filtered_resps": row["reply"],
            "token_counts": [{"output_tokens": 2}], "doc_hash": hashlib.sha256(str(number).encode()).hexdigest(),
            **row["scores"], "input": row["input"], **more,
        }  # fmt: skip
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    (place / f"{TIME}_samples_{task}.jsonl").write_text("".join(lines), encoding="utf-8")
    results = {"results": {task: {"alias": task}}, "model_source": "qwen2_5_omni", "model_name": "lmms-lab/a-model"}
    (place / f"{TIME}_results.json").write_text(json.dumps(results))
    return folder


def inspect_content(rows: Sequence[Mapping[str, Any]], task: str = "scenes", epochs: int = 1) -> dict[str, Any]:
    """Return the content of an Inspect log, version 2. `rows` may set any field of a sample."""
    samples = []
    for epoch in range(1, epochs + 1):
        for number, row in enumerate(rows):
            reply = {"role": "assistant", "content": row["reply"]}
            choices = [{"message": reply, "stop_reason": "stop"}]
            sample = {
                "id": row.get("id", f"clip{number}"), "epoch": epoch, "target": row["target"], "messages": [reply],
                "input": [{"role": "user", "content": [{"type": "text", "text": row["input"]}]}],
                "output": {"model": "mockllm/model", "choices": choices, "completion": row["reply"], "time": 0.25},
                "scores": {name: {"value": value} for name, value in row["scores"].items()},
                "metadata": {"speaker": f"s{number // 2}"}, "store": {}, "events": [], "total_time": 1.5,
            }  # fmt: skip
            samples.append(sample | row.get("fields", {}))
    ids = [row.get("id", f"clip{number}") for number, row in enumerate(rows)]
    spec = {"created": "2026-11-27T12:00:00+00:00", "task": task, "model": "mockllm/model"}
    spec |= {"dataset": {"samples": len(rows), "sample_ids": ids}, "config": {"epochs": epochs}}
    return {"version": 2, "status": "success", "eval": spec, "samples": samples}


def inspect_json(file: Path, content: object) -> Path:
    """Write the content of a log as Inspect's JSON, which may contain a bare `NaN`."""
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def inspect_eval(file: Path, content: Mapping[str, Any], **members: bytes) -> Path:
    """Write the content of a log as a compressed `.eval` file, with extra members."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for sample in content["samples"]:
            made.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        made.writestr("header.json", json.dumps({name: content[name] for name in content if name != "samples"}))
        for name, text in members.items():
            made.writestr(name, text)
    return file
