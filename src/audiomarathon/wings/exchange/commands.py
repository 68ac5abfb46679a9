"""The commands `import lmms-eval`, `import inspect`, `export inspect` and `export hub`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from audiomarathon.cli.options import DEFAULT_RESULTS, Data, Results, Runs, argument, one_line, option, output_folder
from audiomarathon.cli.output import say, show
from audiomarathon.errors import RecordError
from audiomarathon.files import write_bytes, write_json

Task = Annotated[str, option("Task whose samples these are; its data give answers, clusters and the scorer.")]
Choices = Annotated[bool, option("Read the options from the prompts, and score the replies as choices.", "--choices")]
Score = Annotated[str, option("Take this score of the log as the verdict (default: its only one).")]
OutOf = Annotated[float, option("Best score of a sample in the log; scores are divided by it.")]
Cluster = Annotated[str, option("Field of the log whose value is the sample's cluster, such as metadata.speaker.")]
ModelName = Annotated[str, option("Name of the model in tables (default: the log's).", callback=one_line)]
Setting = Annotated[str, option("Name of the setting in tables (default: imported).", callback=one_line)]


def import_log(
    log: Annotated[Path, argument("lmms-eval: *_samples_*.jsonl, or a folder with one; Inspect: .eval or .json.")],
    task: Task = "", data: Data = None, choices: Choices = False, score: Score = "", out_of: OutOf = 1.0,
    cluster: Cluster = "", model_name: ModelName = "", setting: Setting = "", results: Results = DEFAULT_RESULTS,
) -> int:  # fmt: skip
    """Turn a log of lmms-eval (its samples) or of Inspect into a run.

    Examples:
    audiomarathon import lmms-eval logs/m --task tau                  # scored by us, with tau's answers and clusters
    audiomarathon import lmms-eval logs/m --choices                   # scored by us, options read from the prompts
    audiomarathon import inspect m.eval --score choice --cluster metadata.speaker    # the log's own scores: reported

    Without --task, --choices and --score, the log's only score is used. A log that `export inspect` wrote becomes the
    original run again, with new scores.
    """
    from audiomarathon.wings.exchange import inspect_logs, lmms_eval
    from audiomarathon.wings.exchange.importing import as_results

    if log.suffix.lower() in (".eval", ".json"):
        content = inspect_logs.read_content(log)
        if inspect_logs.is_ours(content) and not (task or choices or score or cluster):
            return show([inspect_logs.restored(log, content, results, model_name, setting)])
        read = log, inspect_logs.read_log(log, content)
    else:
        read = lmms_eval.read_log(log)
    return show([as_results(
        *read, results, say, task=task, data=data, choices=choices, score=score, out_of=out_of,
        cluster=cluster, model=model_name, setting=setting,
    )])  # fmt: skip


def export_inspect(
    runs: Runs, output: Annotated[Path, output_folder("Folder for the logs, one a run.")], data: Data = None
) -> None:
    """Write finished runs as logs of Inspect.

    Example: audiomarathon export inspect results -o logs && inspect view --log-dir logs

    The log holds replies, scores and the tokens that each method kept; clips are named, not copied. Prompts and clips
    need the data: the run's data, or --data.
    """
    from audiomarathon.report.samples import samples_in
    from audiomarathon.results.systems import read_systems
    from audiomarathon.wings.exchange.inspect_logs import log_of

    all_runs = [run for system in read_systems(runs) for run in system.runs.values()]
    for run in all_runs:
        run.check_finished()  # check all runs before anything is written
    for name, content in (log_of(run, samples_in(run, data)) for run in all_runs):
        write_json(output / name, content)
        say(f"wrote {output / name}")


def export_hub(
    runs: Runs, output: Annotated[Path, output_folder("A new folder for the dataset: README.md and parquet files.")]
) -> None:
    """Write finished runs as a dataset folder for the Hugging Face hub; nothing is uploaded.

    Example: audiomarathon export hub results -o my-results && hf upload ME/my-results my-results --repo-type dataset
    """
    from audiomarathon.report.notebook import load_runs
    from audiomarathon.wings.exchange.hub import dataset_files

    if output.exists() and any(output.iterdir()):
        raise RecordError(f"{output}: is not empty; name a new folder")
    for name, content in dataset_files(load_runs(runs)).items():
        write_bytes(output / name, content)
        say(f"wrote {output / name}")
