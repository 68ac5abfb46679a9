"""Show how many word errors a published model makes on real speech after encoder states are dropped: `make demo-real`.

Whisper base hears voice prompts, whole and with states dropped or merged before its decoder: one sweep, one page, one
picture of what is kept. Then SmolLM2, a text LLM of 135 M parameters, answers four questions from its transcripts. The
first call downloads 240 MB; after that it takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import cascade
import speech
import whisper_base

from audiomarathon import load_runs
from audiomarathon.errors import DataError

METHODS = "frame:0.5,frame:0.8,random:0.8,merge_frame:0.8"
SHOWN = "frame:0.8,random:0.8"
ASKED = "frame:0.8"  # setting, besides base, whose transcripts are used to answer questions
LONGEST = 600  # most characters of a transcript to print; a model that repeats itself may write thousands


def command(*parts: object) -> int:
    """Print a command of `audiomarathon`, run it, and return its exit code."""
    words = ["audiomarathon", *map(str, parts)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    return subprocess.run([sys.executable, "-m", *words], check=False).returncode


def print_rates(results: Path) -> None:
    """Print each setting's word error rate with its interval; the commands' own tables show 1 − WER, at least 0."""
    print("\nWER, with 95 % intervals over clips:")
    for run in json.loads((results / "summary.json").read_text(encoding="utf-8"))["results"]:
        interval = (run["summary"]["intervals"] or {}).get("wer")  # None: one clip
        shown = ", ".join(f"{end:.3f}" for end in interval) if interval else "–"
        print(f"  {run['setting']:24}{run['summary']['wer']:.3f} [{shown}]")


def print_transcripts(results: Path, sample: str) -> None:
    """Print the text that a sample says, and each setting's transcript of it."""
    records = load_runs(results).records
    rows = records[records["id"] == sample]
    print(f"\n{sample} is said:\n{textwrap.indent(textwrap.fill(rows['answer'].iloc[0], 110), '  ')}")
    for setting, reply, errors, words in rows[["setting", "reply", "errors", "words"]].itertuples(index=False):
        text = reply if len(reply) <= LONGEST else f"{reply[:LONGEST]} … ({len(reply):,} characters)"
        print(f"{setting} hears, {errors} errors in {words} words:\n{textwrap.indent(textwrap.fill(text, 110), '  ')}")


def ask(here: Path) -> int:
    """Let SmolLM2 answer one question of each task of cascade.py from transcripts; print its prompts and replies.

    Return the exit code of a command that failed, else 0, even if the prompts or SmolLM2 are not available.
    """
    data, results = here / "questions", here / "answers"
    try:
        llm, tasks = cascade.smollm2(), cascade.write(data)
    except DataError as error:
        print(f"\nno questions: {error}")
        return 0
    where = ("--data", data, "--limit", 1, "--results", results)
    model = ("--model", "whisper-base", "--model-path", whisper_base.whisper_base(), "--at", "input")
    if code := command("transcribe", *tasks, *model, "--methods", ASKED, *where):
        return code
    if code := command("cascade", results / "transcripts", *tasks, "--with", llm, *where):
        return code
    rows = {task.stem: map(json.loads, task.with_suffix(".jsonl").read_text("utf-8").splitlines()) for task in tasks}
    asked = {(task, row["id"]): row["question"] for task, task_rows in rows.items() for row in task_rows}
    for file in sorted(results.glob("own-*/*/*/*/samples.jsonl")):
        record = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
        reference = record["reference"]
        options = ", ".join(f"{letter}. {text}" for letter, text in zip("ABCD", reference["options"], strict=False))
        print(f"\n{file.parts[-2]}: {asked[file.parts[-4], record['id']]} Right is {reference['answer']} of {options}")
        for what, text in (("reads", record["transcripts_read"][0]), ("says", record["reply"])):
            print(textwrap.indent(textwrap.fill(f"{what}: {text}", 110), "  "))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the whole demo; return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("demo_results"), help="results folder (demo_results)")
    parser.add_argument("--limit", type=int, default=10, help="clips of up to 28 s; 0 = all (10)")
    given = parser.parse_args(arguments)
    here = given.results / datetime.datetime.now().strftime("real_%Y-%m-%d_%H-%M-%S")
    data, results, page, picture = (here / name for name in ("speech", "results", "report.html", "explain.png"))
    if whisper_base.main() or speech.main([str(data)]):
        return 1
    task = data / "prompts.toml"
    model = ("--model", "whisper-base", "--model-path", whisper_base.whisper_base(), "--data", data, "--at", "input")
    if command("sweep", task, *model, "--methods", METHODS, "--limit", given.limit, "--results", results):
        return 1
    sample = sorted(load_runs(results).records["id"])[0]
    codes = [
        command("report", results, "-o", page),
        command("plot", results, "-o", here / "plots"),
        command("explain", sample, "--task", task, *model, "--methods", SHOWN, "-o", picture),
    ]
    print_rates(results)
    print_transcripts(results, sample)
    codes.append(ask(here))
    print("\nto look at:")
    for file in (results / "summary.txt", page, picture, *sorted((here / "plots").glob("*.png"))):
        print(f"  {file}")
    return int(any(codes))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
