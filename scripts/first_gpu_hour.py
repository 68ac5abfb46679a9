"""Do the parts of scripts/first_gpu_hour.sh that bash cannot: describe the machine, compare replies, print the table.

python scripts/first_gpu_hour.py machine             # GPUs, the efficiency benchmark's size, facts that results need
python scripts/first_gpu_hour.py replies LOCAL RAY -o replies.json
python scripts/first_gpu_hour.py table OUT           # prints Markdown for docs/results.md and writes OUT/table.md
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from audiomarathon.cli.output import reporting_errors, say
from audiomarathon.errors import RecordError
from audiomarathon.files import write_json, write_text
from audiomarathon.report.render import Kind, Table, markdown
from audiomarathon.report.tables import sweep
from audiomarathon.results.sweep_summary import read_outcome
from audiomarathon.runs.read import Run, read_runs
from audiomarathon.settings import env_names

STEPS = ("doctor", "certify", "efficiency", "sweep", "two_workers")
#: A 7B in bfloat16 with five minutes of audio takes 20 GB (audiomarathon doctor --model qwen2.5-omni-7b).
ROOM_FOR_7B = 22e9
FILES = ("certify/certificate.json", "efficiency/efficiency.json", "two_workers/replies.json")
EFFICIENCY = {
    "seconds": Kind("audio s", "g"),
    "setting": Kind(left=True),
    "kept": Kind("audio tokens", ","),
    "kv_bytes": Kind("KV MB", ".1f", 1e-6),
    "peak_memory_bytes": Kind("peak GB", ".2f", 1e-9),
    "encoder_s": Kind("encoder s", ".3f"),
    "llm_prefill_s": Kind("LLM prefill s", ".3f"),
    "prefill_speed_up": Kind("LLM prefill ×", ".2f"),
    "prefill_ideal": Kind("ideal", ".2f"),
    "prefill_control": Kind("control", ".2f"),
    "first_token_speed_up": Kind("first token ×", ".2f"),
    "decode_per_token_s": Kind("decode ms a token", ".2f", 1e3),
    "decode_speed_up": Kind("decode ×", ".2f"),
    "decode_ideal": Kind("ideal", ".2f"),
}


def machine() -> None:
    """Print three lines: the number of GPUs, the efficiency benchmark's size, and the facts that results depend on."""
    import torch

    from audiomarathon.engine.environment import environment

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    given = {name: os.environ[name] for name in sorted(env_names()) if os.environ.get(name)}
    print(len(gpus))
    print("qwen2.5-omni-7b" if gpus and gpus[0].total_memory > ROOM_FOR_7B else "qwen2.5-omni-3b")
    print(json.dumps({"gpus": [gpu.name for gpu in gpus], "settings": given, **environment()}))


def replies(local: Path, ray: Path, output: Path) -> int:
    """Compare two folders of runs sample by sample, and write the differences to a file; return 1 if there are any."""
    here, there = ({run.method: run for run in read_runs([folder])} for folder in (local, ray))
    if here.keys() != there.keys():
        raise RecordError(f"{local} and {ray} hold different settings: {', '.join(here)}; {', '.join(there)}")
    ours, theirs = (
        {f"{name} {id_}": answer for name in runs for id_, answer in answers(runs[name])} for runs in (here, there)
    )
    different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    (facts, *_) = (run.facts for run in there.values())
    counts = {name: facts.get(name) for name in ("workers", "workers_sharing")}
    write_json(output, {"replies": len(ours), "settings": list(here), "different": different, **counts})
    if different:
        say(f"error: {len(different)} of {len(ours)} replies of Ray's workers differ from local ones: {different[0]} …")
    return 1 if different or not ours else 0


def answers(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield (sample's id, facts that must not depend on workers: reply, kept tokens, cache lengths) of a run."""
    for id_, record in run.records.items():
        yield id_, (record.reply, record.clips, record.kept_audio_tokens, record.kv_lengths, record.new_tokens)


def table(out: Path, *, dry: bool) -> None:
    """Print the results of the steps as Markdown, and write them to `table.md`."""
    certificate, measured, equal = (read(out / name) for name in FILES)
    parts = [f"**First GPU hour**{' (dry run on the CPU: its figures say nothing)' * dry}: {where(out)}"]
    parts.append(markdown(Table.of([state(out / step) for step in STEPS])))
    if certificate:
        failed = [
            f"{name} {check['verdict']}" for name, check in certificate["checks"].items() if check["verdict"] != "pass"
        ]
        what = ", ".join([certificate["model"], *(certificate["about"][name] for name in ("dtype", "attention"))])
        parts.append(
            f"Certificate ({what}): **{certificate['verdict']}**; without a pass: {', '.join(failed) or 'none'}."
        )
    if equal:
        same, share = equal["replies"] - len(equal["different"]), equal["workers_sharing"]
        shared = f" ({share} to a GPU or machine)"
        parts.append(f"{equal['workers']} Ray workers{shared} and local: {same} of {equal['replies']} replies equal.")
    if measured:
        title = (
            f"Efficiency: {measured['flags']['config']} with random weights, {measured['machine']}; × is base ÷ setting"
        )
        parts.append(markdown(Table.of(measured["rows"], tuple(EFFICIENCY), title=title, kinds=EFFICIENCY)))
    for settings in read_outcome(out / "sweep" / "results", seed=42).checkpoints.values():
        parts += map(markdown, sweep(settings))
    text = "\n".join(f"{part.rstrip()}\n" for part in parts)
    write_text(out / "table.md", text)
    print(text)


def where(out: Path) -> str:
    """Return the machine and the versions of software that the first step recorded, as text."""
    facts = json.loads((out / STEPS[0] / "inputs").read_text().splitlines()[-1])
    versions = [f"{name} {facts['packages'][name]}" for name in ("torch", "transformers")]
    ours = f"audiomarathon {facts['audiomarathon']} ({facts['commit'] or 'no checkout'})"
    return ", ".join([*(facts["gpus"] or [facts["cpu"]]), ours, *versions])


def state(folder: Path) -> dict[str, str]:
    """Return a step's arguments, with its duration in seconds or, if it failed, the last line of its log."""
    step = (folder / "inputs").read_text().partition("\n")[0]
    if (folder / "done").exists():
        return {"step": step, "state": "done", "s": (folder / "done").read_text().strip()}
    lines = (folder / "log").read_text(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    return {"step": step, "state": f"failed: {last}", "s": "–"}


def read(file: Path) -> dict[str, Any]:
    """Return the JSON that a step wrote to `file`; {} if it wrote none."""
    return json.loads(file.read_text()) if file.exists() else {}


@reporting_errors
def main() -> int | None:
    """Run the subcommand named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("machine")
    comparing = commands.add_parser("replies")
    comparing.add_argument("local", type=Path)
    comparing.add_argument("ray", type=Path)
    comparing.add_argument("-o", "--output", type=Path, required=True)
    showing = commands.add_parser("table")
    showing.add_argument("out", type=Path)
    showing.add_argument("--dry-run", action="store_true")
    flags = parser.parse_args()
    if flags.command == "machine":
        return machine()
    if flags.command == "replies":
        return replies(flags.local, flags.ray, flags.output)
    return table(flags.out, dry=flags.dry_run)


if __name__ == "__main__":
    main()
