"""`audiomarathon experiment …`: LALM Bench's side experiments on finished runs, also under its scripts' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from audiomarathon.cli.command import group, run_script
from audiomarathon.cli.judge import Asking, with_asking
from audiomarathon.cli.options import (
    BatchSize,
    Data,
    Yes,
    argument,
    option,
    output_file,
    output_folder,
    output_option,
    places,
)
from audiomarathon.cli.output import say
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import check_writable, write_json, write_lines, write_text
from audiomarathon.judges.judgements import reading_of
from audiomarathon.records import Record, Verdict
from audiomarathon.settings import SEED
from audiomarathon.text import counted

if TYPE_CHECKING:
    from audiomarathon.judges.protocol import Protocol
    from audiomarathon.metrics.statistics import Estimate
    from audiomarathon.runs.read import Run

_RUN = "Run folder, or LALM Bench's predictions.json or .parquet."
_CLOTHO = "clotho_captions_"
_BGE = "BAAI/bge-base-en-v1.5"
_NEXT = "run the same command again to retry failed requests, or use --with another model for unreadable answers"
Captions = Annotated[str, argument("clotho, audiocaps, or a CSV file with the columns caption_1, caption_2, ….")]
Split = Annotated[str, option("Split of clotho or audiocaps, or all (default: the test split).")]
Encoder = Annotated[str, option("Sentence encoder: a folder or hub id.", envvar="TEXT_ENCODER")]


def similarity(
    run_a: Annotated[Path, argument(_RUN)],
    run_b: Annotated[Path, argument("Second run, such as the same model on noise.")],
    encoder: Encoder = _BGE,
    output: Annotated[Path, output_option("JSON file or folder; also writes a CSV file.")] = Path("similarity.json"),
    batch_size: BatchSize = 32,
) -> None:
    """Measure how similar the replies of two runs are. The floor is the similarity of replies to different samples.

    Example: audiomarathon experiment similarity results/lalm/mmau_pro/m/base-0 results-noise/lalm/mmau_pro/m/base-0
    """
    from audiomarathon.report import render
    from audiomarathon.results.similarity import as_published
    from audiomarathon.results.similarity import similarity as compare
    from audiomarathon.scoring.caption_models import SentenceEncoder

    runs, opened = (_run(run_a), _run(run_b)), SentenceEncoder(encoder, window=None, batch_size=batch_size)
    frame, rows = compare(runs[0], runs[1], opened)
    a, b = ({**run.records, **run.failed} for run in runs)
    unused = {"only_a": len(a.keys() - b.keys()), "only_b": len(b.keys() - a.keys())}
    unused["failed"] = sum(not (a[id_].answered and b[id_].answered) for id_ in a.keys() & b.keys())
    facts = {"encoder": opened.name, "encoder_hash": opened.hash, "runs": [str(run_a), str(run_b)]}
    file = output if output.suffix == ".json" else output / "similarity.json"
    write_json(file, as_published(frame, rows) | {"audiomarathon": {**facts, **unused, "rows": rows}})
    write_text(file.with_suffix(".csv"), render.csv(render.Table(frame)))
    notes = [f"by {opened.name}; floor: replies to different samples of a category", _counts(unused)]
    # If there is a single category, show one row.
    render.show(render.Table.of(rows[len(rows) == 2 :], title="Similarity", notes=notes).without_empty("category"))
    say(f"wrote {file} and {file.with_suffix('.csv').name}")


def references(
    captions: Captions = "clotho",
    data: Data = None,
    split: Split = "",
    run: Annotated[Path | None, option(f"Also score these replies. {_RUN}")] = None,
    encoder: Encoder = "BAAI/bge-m3",
    output: Annotated[Path, output_folder("Output folder.")] = Path("references"),
    batch_size: BatchSize = 32,
) -> None:
    """Find captions that differ from the other captions of their clip; show scores with and without them.

    Example: audiomarathon experiment references clotho --data data --run results/lalm/clotho/m/base-0

    No audio is read. It writes clotho_pairs_SPLIT.csv, clotho_outliers_SPLIT.csv and clotho_references_SPLIT.json; for
    FILE.csv, captions_pairs_FILE.csv and so on.
    """
    import pandas as pd

    from audiomarathon.report import render
    from audiomarathon.scoring.caption_models import ENCODER, SentenceEncoder
    from audiomarathon.wings.lalm.references import OUTLIER, compare_captions, scores_without

    name, clips, replies = _captions(captions, data, split)
    if run:
        replies = {id_: record.text for id_, record in _run(run).records.items()}
        if not replies.keys() & dict(clips):
            raise DataError(f"{run} has no reply to any clip of {captions}; name a run on these clips")
    opened = SentenceEncoder(encoder, window=None, batch_size=batch_size)
    pairs, compared = compare_captions(clips, opened)
    outliers = [caption for caption in compared if abs(caption["z"]) >= OUTLIER]
    named = "sbert_sim" if opened.name == ENCODER else f"sbert_sim[{opened.name}]"
    scores = scores_without(outliers, clips, replies, opened, named)
    rows = [
        {"figure": key, "n": both["all"].clusters, "n_cleaned": both["cleaned"].clusters, **_cells(both)}
        for key, both in scores.items()
    ]
    counts = {"captions": len(compared), "far": sum(outlier["z"] < 0 for outlier in outliers)}
    counts["close"] = len(outliers) - counts["far"]
    same = {kind: [pair for pair in pairs if pair["same"] == kind] for kind in ("duplicate", "near_duplicate")}
    summary = {"encoder": opened.name, **counts, **same, "scores": rows}
    write_json((output / (name % "references")).with_suffix(".json"), summary)
    columns = {"pairs": "file_name i j similarity", "outliers": "file_name caption_index caption mean_similarity z"}
    for kind, listed in (("pairs", pairs), ("outliers", outliers)):
        frame = pd.DataFrame(list(listed), columns=columns[kind].split(), dtype=object)
        write_text(output / (name % kind), render.csv(render.Table(frame)))
    counts |= {f"{kind}s": len(members) for kind, members in same.items()}
    notes = [", ".join(f"{key.replace('_', '-')} {count:,}" for key, count in counts.items())]
    notes.append(
        "far, close: outliers far from or close to their clip's other captions; people: each caption scored against "
        "the clip's other captions; words are weighted by all captions"
    )
    render.show(render.Table.of(rows, title="Scores with all captions, and without the outliers", notes=notes))
    say(f"wrote {', '.join(name % kind for kind in columns)} and a summary to {output}")


@with_asking
def write(
    asking: Asking,
    captions: Captions = "clotho",
    output: Annotated[Path, output_file("JSONL file, one line per clip.", "rubrics.jsonl")] = Path("rubrics.jsonl"),
    data: Data = None,
    split: Split = "",
    limit: Annotated[int, option("Use the first N clips; 0 = all.", min=0)] = 0,
) -> int:
    """Let one model write criteria for each clip from its captions, and merge criteria of the same meaning.

    Example: audiomarathon experiment rubrics write clotho --data data --with qwen2.5-7b

    Answers are kept in OUTPUT.run, and clips with a line in OUTPUT are skipped. So the same command resumes, and
    another model can fill in clips whose first answer was unreadable.
    """
    from audiomarathon.wings.lalm.rubrics import MergeRubric, WriteRubric, read_rubrics, with_criteria

    if len(asking.judges) > 1:
        raise SettingsError(f"--with {asking.with_}: name only one model; it writes all rubrics")
    _pattern, clips, _replies = _captions(captions, data, split)
    asked = {id_: [*filter(None, texts)] for id_, texts in clips[: limit or None] if any(texts)}
    known, (author,), dropped = read_rubrics(output) if output.exists() else {}, asking.judges, 0
    check_writable(output.parent)
    new = [(id_, texts) for id_, texts in asked.items() if id_ not in known]
    records = [Record(id_, id_, reply="\n".join(texts), reference={"references": texts}) for id_, texts in new]
    for protocol in (WriteRubric(), MergeRubric()):
        if (answers := _answers(Path(f"{output}.run"), records, protocol, asking)) is None:
            return 0 if asking.plan else 2
        readings = [
            (record, reading_of(protocol, record, record.judgements.get(author, {})).values) for record in answers[1]
        ]
        dropped += sum(values.get("dropped", 0) for _record, values in readings if values)
        records = [
            with_criteria(record, values["criteria"]) for record, values in readings if values and values["criteria"]
        ]
    known |= {
        record.id: {"id": record.id, "criteria": record.reference["criteria"], "judge": author} for record in records
    }
    if records:
        write_lines(output, known.values())
    made = counted(len(known), "rubric") if known else "not written"
    say(f"{output}: {made}; {dropped:,} criteria dropped, because they quote no caption")
    if missing := sum(id_ not in known for id_ in asked):
        say(f"error: no rubric for {counted(missing, 'clip')}; {_NEXT}")
    return 1 if missing else 0


@with_asking
def judge(
    run: Annotated[Path, argument(_RUN)],
    rubrics: Annotated[Path, option("JSONL file from `rubrics write`.")],
    asking: Asking,
    output: Annotated[Path | None, output_option("JSON file (default: rubrics/rubrics.json in the run).")] = None,
) -> int:
    """Let judges check which criteria each reply meets; a reply's score is the weight of the criteria it meets.

    Example: audiomarathon experiment rubrics judge results/lalm/clotho/m/base-0 --rubrics rubrics.jsonl --with A,B

    Answers are kept in the run's folder; the same command asks only for missing answers.
    """
    from audiomarathon.metrics.statistics import Resampler
    from audiomarathon.report import render
    from audiomarathon.wings.lalm.rubrics import RubricScore, read_rubrics, with_criteria

    read, known, scorer = _run(run), read_rubrics(rubrics), RubricScore()
    records = [with_criteria(record, known[id_]["criteria"]) for id_, record in read.records.items() if id_ in known]
    if not records:
        raise DataError(f"{rubrics} has no rubric for any clip of {run}; write rubrics with `rubrics write`")
    place = (read.folder or run.with_name(f"{run.name}.run")) / "rubrics"
    if (answers := _answers(place, records, scorer.protocol, asking)) is None:
        return 0 if asking.plan else 2
    verdicts = [Verdict(record, scorer.judge(record)) for record in answers[1]]
    figures, summary = Resampler(SEED).of_sums(scorer.sums(verdicts)), scorer.summary(verdicts)["judged"]
    rows = [
        {"judge": name, "n": facts["n"], **_cells({"score": figures[name]}), "missing": sum(facts["missing"].values())}
        for name, facts in summary["judges"].items()
    ]
    unused = {"without_rubric": len(read.records) - len(records), "failed": len(read.failed)}
    notes = [*scorer.notes(verdicts), _counts(unused)]
    render.show(render.Table.of(rows, title="Share of the rubric's weight that replies meet", notes=notes))
    detailed = [{"id": verdict.record.id, "readings": verdict.values["readings"]} for verdict in verdicts]
    content = {"rows": rows, **_cells({"rubric_score": figures["rubric_score"]}), **unused, **summary}
    write_json(file := output or place / "rubrics.json", content | {"detailed": detailed})
    say(f"wrote {file}")
    if silent := [name for name in asking.judges if not summary["judges"][name]["n"]]:
        say(f"error: no judgement by {', '.join(silent)}; {_NEXT}")
    return 1 if answers[0] or silent else 0


def _run(path: Path) -> Run:
    """Read the only run in a folder (an error if there are several), or a file of predictions as if it were a run."""
    from audiomarathon.runs.read import Run, read_runs
    from audiomarathon.wings.lalm.exchange import read_answers, read_captions

    if path.suffix in (".json", ".parquet") and not path.is_dir():
        task, read = ("lalm/clotho", read_captions) if path.suffix == ".json" else ("lalm/mmau_pro", read_answers)
        records = read(path)
        answered, failed = (
            {record.id: record for record in records if record.answered is wanted} for wanted in (True, False)
        )
        return Run({"task": task}, answered, failed)
    if len(runs := read_runs([path])) > 1:
        raise SettingsError(f"{path}: contains {len(runs)} runs; name one, such as {runs[0].folder}")
    return runs[0]


def _captions(
    captions: str, data: Path | None, split: str
) -> tuple[str, list[tuple[str, Sequence[str]]], dict[str, str]]:
    """Return (pattern for output names, clips, replies).

    The pattern is such as `clotho_%s_evaluation.csv`. The clips are (id, captions) pairs. The replies are {id: reply};
    only a CSV file may hold replies.
    """
    from audiomarathon.benchmarks import get_task, task_folder
    from audiomarathon.benchmarks.captioning import ALL, Captioning
    from audiomarathon.benchmarks.task import name_id
    from audiomarathon.wings.lalm.references import read_captions_table

    if captions.lower().endswith(".csv"):
        if split or data:
            raise SettingsError(f"{captions}: --split and --data do not apply to a file; leave them out")
        stem = Path(captions).stem.replace("%", "_")
        prefix = "clotho" if stem.startswith(_CLOTHO) else "captions"
        return f"{prefix}_%s_{stem.removeprefix(_CLOTHO)}.csv", *read_captions_table(Path(captions))
    task = get_task(captions)
    if not isinstance(task, Captioning) or split not in ("", *task.splits, ALL):
        allowed = f"{', '.join(task.splits)}, {ALL}" if isinstance(task, Captioning) else "clotho, audiocaps, FILE.csv"
        raise SettingsError(f"{captions} {split}: allowed: {allowed}")
    split = split or next(iter(task.splits))
    tables = task.tables(task_folder(task, *places(data)), split)
    clips: list[tuple[str, Sequence[str]]] = [(name_id(row[0]), row[2]) for rows in tables.values() for row in rows]
    return f"{task.aliases[0]}_%s_{split}.csv", clips, {}


def _answers(
    folder: Path, records: Sequence[Record], protocol: Protocol, asking: Asking
) -> tuple[int, list[Record]] | None:
    """Ask judges about the records; return (number of failed requests, records with answers).

    Return None if the judges were not asked, because the user only wanted a plan or declined.
    """
    from audiomarathon.judges.judging import Case
    from audiomarathon.runs.folder import with_context

    failed = asking.ask([Case(folder, records, protocol)]) if records else 0
    answered = with_context(folder, {record.id: record for record in records}).values()
    return None if failed is None else (failed, list(answered))


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())


def _cells(figures: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return the cells of a table row, as {column: value}: each estimate and the ends of its interval."""
    from audiomarathon.report.render import estimated

    return {name: value for key, figure in figures.items() for name, value in estimated(key, figure).items()}


experiment_app = group(
    "LALM Bench's side experiments: similarity, references, rubrics.",
    {"similarity": similarity, "references": references},
)
experiment_app.add_typer(
    group("Let models write criteria for captions and check replies against them.", {"write": write, "judge": judge}),
    name="rubrics",
)


def similarity_door(folder: Path) -> None:
    """Run :func:`similarity` with the options and default files of LALM Bench's script `calculate_similarity.py`."""

    def calculate(
        noise_file: Annotated[Path, option(_RUN)] = folder / "predictions_with_noise.parquet",
        audio_file: Annotated[Path, option(_RUN)] = folder / "predictions_with_audio.parquet",
        output: Annotated[Path, option("JSON file.")] = folder / "similarity_results.json",
        model: Annotated[str, option("Sentence encoder: a folder or hub id.")] = _BGE,
        batch_size: BatchSize = 32,
    ) -> None:
        """Measure how similar the replies with noise are to the replies with the audio, on the same questions."""
        similarity(noise_file, audio_file, model, output, batch_size)

    run_script(calculate)


def judge_door() -> None:
    """Run :func:`judge` with the options of LALM Bench's script `judge.py`."""

    def check(
        model: Annotated[str, option("Judges, joined by commas, as for audiomarathon judge --with.")],
        rubrics: Annotated[Path, option("rubrics.jsonl from run.py.", "--rubric_path")],
        run: Annotated[Path, option(_RUN, "--model_outputs_path")],
        output: Annotated[Path, option("JSON file of scores.", "--output_json_path")],
        use_vllm: Annotated[bool, typer.Option("--use_vllm", hidden=True)] = False,
        yes: Yes = False,
    ) -> int:
        """Let judges check, for each reply, which criteria in the rubric of the reply's clip it meets."""
        if use_vllm:
            raise SettingsError("--use_vllm: start vllm serve, set OPENAI_BASE_URL, and give --model endpoint:NAME")
        return int(judge(run=run, rubrics=rubrics, output=output, asking=Asking(model, yes=yes)))

    run_script(check)
