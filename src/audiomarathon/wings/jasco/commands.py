"""`audiomarathon jasco …`: import replies, judge CSV files as JASCO's own program does, and print its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from audiomarathon.cli.command import group
from audiomarathon.cli.judge import Asking
from audiomarathon.cli.options import (
    DEFAULT_RESULTS,
    BatchSize,
    Data,
    ModelName,
    Results,
    Runs,
    argument,
    load_task,
    option,
    output_file,
    output_folder,
)
from audiomarathon.cli.output import say, show
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import file_name, write_json, write_text
from audiomarathon.judges.judgements import request_of, second_of
from audiomarathon.records import Record, Verdict
from audiomarathon.terminal import progress_of
from audiomarathon.text import counted

if TYPE_CHECKING:
    from audiomarathon.results.systems import System

Parser = Literal["original", "strict"]
Prompt = Literal["v2", "v1"]
_ADDED = ("rating", "orientation", "gated", "rule", "judge", "judge_prompt")


def example(
    output: Annotated[Path, output_file("CSV file to write.", "jasco.csv", "*")] = Path("jasco.csv"),
    data: Data = None,
) -> None:
    """Write a CSV file to fill in: 640 rows, one per clip and instruction, with an empty `allm_output`."""
    from audiomarathon.wings.jasco.exchange import REPLY
    from audiomarathon.wings.jasco.exchange import example as rows

    _task, loaded = load_task("jasco", data)
    write_text(output, rows(loaded.samples))
    say(f"wrote {output}: {len(loaded.samples)} rows; fill in {REPLY}")
    say(f"then: audiomarathon jasco import {output} --model-name NAME")


def speech(
    data: Data = None,
    output: Annotated[
        Path | None, output_file("CSV file to write (default: speech.csv beside v0.csv).", "speech.csv")
    ] = None,
) -> None:
    """Find the speech in each clip with silero-vad, for the controls speech-first and speech-last."""
    from audiomarathon.audio.decode import decode, probe
    from audiomarathon.audio.voice_activity import find_speech
    from audiomarathon.benchmarks.rows import as_csv
    from audiomarathon.wings.jasco.speech import SPEECH_FILE

    _task, loaded = load_task("jasco", data)
    clips = {sample.cluster: clip for sample in loaded.samples for clip in sample.clips}
    if not clips:
        raise DataError(f"{loaded.folder} contains no clips; name another folder with --data")
    rows, without, total, spoken = [], [], 0.0, 0.0
    with progress_of(len(clips), "speech", "clip") as step:
        for id_, clip in clips.items():
            info = probe(clip)
            spans = find_speech(decode(clip, info.sampling_rate), info.sampling_rate)
            rows += [{"id": id_, "start": f"{start:.3f}", "end": f"{end:.3f}"} for start, end in spans]
            without += [] if spans else [id_]
            total += info.seconds
            spoken += sum(end - start for start, end in spans)
            step(1)
    file = output or loaded.folder / SPEECH_FILE
    write_text(file, as_csv(rows, ("id", "start", "end")))
    silent = ", ".join(without) or "none"
    say(f"wrote {file}: speech in {spoken / total:.1%} of the audio; clips without speech: {silent}")


def import_(
    file: Annotated[Path, argument("CSV with the columns of JASCO's example.csv.")],
    model_name: ModelName,
    results: Results = DEFAULT_RESULTS,
    allow_missing: Annotated[bool, option("Accept a file without replies to some clips.", "--allow-missing")] = False,
) -> int:
    """Turn replies of another program into a run, which can be judged, scored and compared like any run.

    Example: audiomarathon jasco import my.csv --model-name SALMONN-7B
    """
    from audiomarathon.engine.run import as_run
    from audiomarathon.wings.jasco.exchange import read_whole

    records = read_whole(file, allow_missing=allow_missing)
    folder = results / "jasco" / file_name(model_name) / "imported"
    return show([as_run(folder, "jasco", file, model_name, records)])


def evaluate(
    judge: Annotated[str, argument("Judge: a folder or hub id, openai:MODEL, or replay:FILE.")],
    input_file: Annotated[Path, argument("CSV with replies (allm_output); it may also hold judgements.")],
    output_file: Annotated[Path, argument("CSV to write: the same rows with judgements.")],
    parser: Annotated[
        Parser, option("How to read judgements for the added columns: as JASCO's own program does, or strictly.")
    ] = "original",
    judge_prompt: Annotated[Prompt, option("v2: prompt for three judges; v1: older prompt for one judge.")] = "v2",
    batch_size: BatchSize = 8,
) -> int:
    """Judge replies in a CSV file and print the benchmark's figures, as JASCO's evaluation/eval.py does.

    Example: python eval.py meta-llama/Llama-3.1-70B-Instruct example.csv llama.csv

    If the file has judgements (`llama3_extract`), these are read again without a judge. The same command resumes an
    interrupted run: judgements are kept in <output>.run.
    """
    from audiomarathon.benchmarks import get_task
    from audiomarathon.benchmarks.rows import as_csv
    from audiomarathon.wings.jasco.exchange import JUDGEMENT, judged_columns, read_replies
    from audiomarathon.wings.jasco.figures import CoReasoning
    from audiomarathon.wings.jasco.rubric import AsPublished, Strict

    rows = read_replies(input_file)
    scorer, protocols = get_task("jasco").scorer, (Strict(judge_prompt, anchored=False), AsPublished(judge_prompt))
    assert isinstance(scorer, CoReasoning)
    if rows and JUDGEMENT in rows[0][0][1]:
        records = []
        for (_line, row), record in rows:
            answers: dict[str, str | None] = {}
            if row[JUDGEMENT].strip() and (request := request_of(protocols[0], record)):
                answers[request.hash] = row[JUDGEMENT]
                if second := second_of(protocols[0], row[JUDGEMENT], record):
                    answers[second.hash] = ""  # the file holds no answers to second questions
            records.append(replace(record, judgements={judge: answers}))
    else:
        folder = output_file.with_name(f"{output_file.name}.run")
        judge, records = _judged(folder, input_file, judge, [record for _, record in rows], protocols, batch_size)
    verdicts = [Verdict(record, scorer.judge(record)) for record in records]
    written = []
    for ((_line, row), record), verdict in zip(rows, verdicts, strict=True):
        request = request_of(protocols[0], record)
        raw = (verdict.record.judgements.get(judge) or {}).get(request.hash) if request else ""
        added = judged_columns(verdict, judge, parser) | {"judge": judge, "judge_prompt": judge_prompt}
        written.append({**row, JUDGEMENT: raw or "", **added})
    names = dict.fromkeys([*(rows[0][0][1] if rows else ()), JUDGEMENT, *_ADDED])
    write_text(output_file, as_csv(written, names))
    _print_figures(scorer, verdicts)
    if missing := sum(bool({"absent", "failed"} & {*verdict.values["missing"].values()}) for verdict in verdicts):
        of_all = f"{missing} of {counted(len(rows), 'row')}"
        say(f"error: {of_all} without a judgement, so not in the figures; run the same command again")
    return 1 if missing else 0


def table(
    runs: Runs, output: Annotated[Path | None, output_file("Also write exact values to this CSV file.", ".csv")] = None
) -> None:
    """Print one row per model and setting: best_mean by judge, and whether replies depend on sound, speech or both.

    best_mean averages over clips the best rating that a judge gave to the replies to a clip's eight instructions.
    """
    from audiomarathon.benchmarks import get_task
    from audiomarathon.report import render, tables
    from audiomarathon.scoring.judged import judges_of

    systems = {
        system.name(with_checkpoint=True): list(system.runs["jasco"].verdicts.values()) for system in _systems(runs)
    }
    task = get_task("jasco")
    names_of: dict[str, list[str]] = {}  # runs with the same note, by note
    for name, verdicts in systems.items():
        for note in task.scorer.notes(verdicts):
            names_of.setdefault(note, []).append(name)
    rows_of = {note: ", ".join(names) if len(names) < 3 else f"{len(names)} rows" for note, names in names_of.items()}
    notes = [f"{note} ({rows})" for note, rows in rows_of.items()]
    if len({tuple(judges_of(verdicts)) for verdicts in systems.values()} - {()}) > 1:
        notes.append("not all rows have the same judges: best_mean and mean of different judges cannot be compared")
    shown = tables.of_task(task, systems)[:2]
    shown[0] = replace(shown[0], notes=notes)
    render.show(*shown)
    if output:
        both = shown[0].frame.merge(shown[1].frame, on="setting")
        write_text(output, render.csv(replace(shown[0], data=both)))
        say(f"wrote {output}")


def survival(
    runs: Runs,
    speech: Annotated[
        Path | None, option("Speech times of each clip (default: speech.csv beside the runs' data).")
    ] = None,
    output: Annotated[Path | None, output_folder("Folder for survival.json, .csv and .png.")] = None,
) -> None:
    """Measure whether pruning removes a clip's sound or its speech first. No judge is needed.

    Examples:
    audiomarathon sweep jasco --model qwen2-audio --methods random,fast_v --ratios 0.5,0.7
    audiomarathon jasco survival results/jasco -o survival

    Speech comes late in most clips. To tell a preference for speech from a preference for late audio, add runs on the
    controls speech-first and speech-last (audiomarathon data controls jasco); figures are then the mean of both.
    """
    from audiomarathon.report import charts, render
    from audiomarathon.wings.jasco import survival_report as shown
    from audiomarathon.wings.jasco.speech import read_speech
    from audiomarathon.wings.jasco.survival_of_runs import left_out, survivals

    systems = _systems(runs)
    survival_rows = survivals(systems, read_speech(speech) if speech else None)
    if names := left_out(systems):
        say(f"left out {', '.join(names)}: no run of base answered the same clips")
    if all(row.system.is_base for row in survival_rows):
        raise DataError(f"{', '.join(map(str, runs))}: found no setting with its base; run a sweep, which runs both")
    render.show(*shown.tables(survival_rows))
    for line in shown.sentences(survival_rows):
        say(line)
    if output:
        write_json(output / "survival.json", shown.to_json(survival_rows))
        write_text(output / "survival.csv", render.csv(render.Table.of(shown.long_rows(survival_rows))))
        if drawn := shown.panels(survival_rows):
            charts.save(charts.side_by_side(drawn, title="What pruning removes first"), output / "survival.png")
        say(f"wrote {output}" + ("" if drawn else "; no picture, because there is nothing to draw"))


def _judged(
    folder: Path, file: Path, judge: str, records: Sequence[Record], protocols: Sequence[Any], batch_size: int
) -> tuple[str, list[Record]]:
    """Let a judge model rate the replies in `records`; return (judge's name, records with the judge's answers).

    `protocols` make the questions and read the answers; the answers are kept in the run folder `folder`.
    """
    from audiomarathon.engine.run import as_run
    from audiomarathon.judges.judging import Case
    from audiomarathon.runs.folder import read_records

    if "," in judge:
        raise SettingsError(f"{judge}: name one judge; for several judges use: audiomarathon judge RUN --with A,B,C")
    asking = Asking(judge, batch_size=batch_size, yes=True)
    (name,) = asking.judges
    as_run(folder, "jasco", file, file.stem, records)
    asking.ask([Case(folder, records, protocol) for protocol in protocols])
    known = read_records(folder)
    return name, [known[record.id] for record in records]


def _print_figures(scorer: Any, verdicts: Sequence[Verdict]) -> None:
    """Print the four lines that JASCO's program prints, computed by its rules, then the figures by our strict rules."""
    from audiomarathon.wings.jasco.benchmark import LEANINGS

    strict, published = scorer.sums(verdicts).figures, scorer.published(verdicts).figures
    typer.echo(f"best-mean :  {published['best_mean']}")
    for name in LEANINGS[:3]:
        typer.echo(f"{name.capitalize()}-Oriented % :  {published[name]}")
    shares = ", ".join(f"{name} {_percent(strict[name])} %" for name in LEANINGS)
    judged = sum(not any(scorer.lacks(verdict, judge) for judge in verdict.record.judgements) for verdict in verdicts)
    if unasked := sum(
        published["unanswered"] for verdict in verdicts for published in verdict.values["as_published"].values()
    ):
        say(f"{unasked} judgements need JASCO's second question, which has no answer; they count as '?'")
    best = "–" if strict["best_mean"] is None else f"{strict['best_mean']:.2f}"
    say(f"strict reading: best-mean {best}, {shares}; {judged} of {len(verdicts)} rows read")


def _systems(paths: Sequence[Path]) -> list[System]:
    from audiomarathon.results.systems import systems_of
    from audiomarathon.runs.read import read_runs

    jasco_runs = [run for run in read_runs(paths) if run.key == "jasco"]
    if not jasco_runs:
        raise DataError(f"{', '.join(map(str, paths))}: found no run of jasco; name run folders")
    return systems_of(jasco_runs)


def _percent(value: float | None) -> str:
    """Return a share as whole percent ("–" for None), with halves rounded up as in JASCO's tables."""
    return "–" if value is None else str(int(100 * value + 0.5))


jasco_app = group(
    "JASCO: import replies, judge CSV files, print its tables.",
    {"example": example, "import": import_, "eval": evaluate, "speech": speech, "table": table, "survival": survival},
)
