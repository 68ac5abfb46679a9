"""The interfaces of X-ARES, for the folder X-ARES/: the command `python -m xares.run` and the class `XaresTask`."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer

from audiomarathon.cli.options import argument, option
from audiomarathon.cli.output import reporting_errors, say
from audiomarathon.errors import AudioMarathonError, MissingDataError, SettingsError
from audiomarathon.files import write_text
from audiomarathon.report import render
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import Encoder
from audiomarathon.wings.encoders.probing.evaluate import data_root, encode_task, probe_task, read_tasks, ready
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED
from audiomarathon.wings.encoders.probing.run import settings_of
from audiomarathon.wings.encoders.report.encoder_tables import encoder_scores
from audiomarathon.wings.encoders.results.scores import Score, task_scores
from audiomarathon.wings.encoders.xares.task_config import TaskConfig, task_of
from audiomarathon.wings.encoders.xares.tasks import config_in, config_of, equipped, named
from audiomarathon.wings.encoders.zenodo import fetch

_LLM = "Qwen/Qwen2.5-0.5B"

Scored = tuple[float, int]
"""(score, its weight in X-ARES' averages); the weight is 0 if there is no score."""


class XaresTask:
    """A task and the encoder to evaluate on it, with the methods of X-ARES' class of the same name.

    Parameters
    ----------
    config
        Settings of the task as in a task file of X-ARES, with the encoder.
    results
        Folder for the runs.

    Raises
    ------
    SettingsError
        The task that `config` describes cannot run here.
    """

    def __init__(self, config: TaskConfig, results: Path = Path("results")) -> None:
        self.config, self.results = config, results
        self.task = equipped(task_of(config), llm=os.environ.get("XARES_LLM", _LLM))
        self.root = data_root() if config.env_root in (None, "./env") else Path(config.env_root)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder named in the configuration, loaded and checked against X-ARES' interface."""
        return ready(self.config.encoder)

    def run(self) -> tuple[Scored, Scored]:
        """Download missing data, encode the clips, fit every probe; return the results of X-ARES' MLP and kNN.

        Each of the two results is (score, weight of the task in the mean).
        """
        self.download_audio_tar()
        self.work()
        return self.score()[1]

    def download_audio_tar(self) -> None:
        """Download the task's tars from Zenodo, if it has a Zenodo record and its tars are missing."""
        if self.task.zenodo and not self.task.placed(self.root):
            fetch(self.task, self.root, say)

    def work(self, to_stage: int = 2) -> None:
        """Encode the clips and fit the probes; if `to_stage` is 1, only encode the clips."""
        ((_, data),) = read_tasks([self.task], self.root, mini=self.config.use_mini_dataset, bad=True, say=say)[0]
        if to_stage == 1:
            encode_task(self.encoder, self.task, data).released()
        else:
            deque(probe_task(self.encoder, self.task, data, self.results, protocol="both", say=say), maxlen=0)

    def score(self) -> tuple[Score, tuple[Scored, Scored]]:
        """Write X-ARES' score files; return (scores of all probes, (result of X-ARES' MLP, result of X-ARES' kNN)).

        A result is (score, weight of the task in the mean); a probe that was not run has weight 0.
        """
        folder = self.results / self.task.key / self.encoder.name
        settings = [setting for setting in settings_of(self.task, "both") if (folder / setting).is_dir()]
        runs = [Run.read(folder / setting) for setting in settings]
        self.complete = not any(run.failed for run in runs)
        (score,) = task_scores(runs)
        files = self.root / self.task.name / "checkpoints" / type(self.encoder.module).__name__
        pairs: list[Scored] = []
        for probe, name in zip(PUBLISHED, ("mlp", "knn"), strict=True):
            estimate = score.by_probe.get(probe)
            if estimate:
                pairs.append((float(estimate.value), self.config.eval_weight))
                write_text(files / f"{name}_score.txt", "{}\n{}".format(*pairs[-1]))
            else:  # like X-ARES, report 0 for a probe that is not run
                pairs.append((float("nan") if self.task.lacking and probe == PUBLISHED[0] else 0, 0))
        return score, (pairs[0], pairs[1])


def run(
    encoder_py: Annotated[str, argument("Encoder, such as example/dasheng/dasheng_encoder.py.")],
    tasks_py: Annotated[list[str], argument("Task files, such as src/tasks/*.py, or names of tasks.")],
    max_jobs: Annotated[int, option("Tasks to run in parallel, each in a process; 0 = in this process.", min=0)] = 1,
    from_stage: Annotated[int, option("First stage: 0 download, 1 encode, 2 score.", min=0, max=2)] = 0,
    to_stage: Annotated[int, option("Last stage.", min=0, max=2)] = 2,
    results: Annotated[Path, option("Results folder.")] = Path("results"),
) -> int:
    """Evaluate an encoder on X-ARES' tasks; print X-ARES' table, then our scores with intervals.

    Example: python -m xares.run --max-jobs 8 example/dasheng/dasheng_encoder.py src/tasks/*.py

    A task that fails does not stop the others; the exit code is then 1.
    """
    failed: set[str] = set()
    encoder = ready(encoder_py, device="cpu" if max_jobs else "auto") if to_stage else None
    jobs = _jobs(tasks_py, results, failed, encoder)
    for word, job in jobs.items() if from_stage == 0 else ():
        with _trying(word, failed):
            job.download_audio_tar()
    if encoder is None:
        return int(bool(failed))
    ready_jobs = {word: job for word, job in jobs.items() if word not in failed}
    if max_jobs:
        failed |= _side_by_side(max_jobs, [*ready_jobs], (encoder_py, to_stage, results))
    for word, job in ready_jobs.items():
        job.encoder = encoder
        if not max_jobs:
            with _trying(word, failed):
                job.work(to_stage)
    done = [job for word, job in ready_jobs.items() if word not in failed]
    if to_stage == 1 or not done:
        return int(bool(failed))
    _show(done)
    return int(bool(failed) or not all(job.complete for job in done))


def _jobs(words: Sequence[str], results: Path, failed: set[str], encoder: Encoder | None) -> dict[str, XaresTask]:
    """Return the tasks that can run, as {task file or name: task}.

    A line is printed for each task that is disabled, lacks data or is wrong.

    `words` are task files or names; a word whose task is wrong is added to `failed`.
    """
    jobs: dict[str, XaresTask] = {}
    for word in words:
        with _trying(word, failed, left_out=(MissingDataError,)):
            is_file = word.endswith(".py") and Path(word).is_file()
            for name in [word] if is_file else [task.name for task in named([word])]:
                job = XaresTask(_config(name, encoder), results)
                if job.config.disabled:
                    say(f"left out: {job.task.name} is disabled in its task file")
                    continue
                if job.task.private:
                    job.task.find(job.root)
                if job.task.key in {other.task.key for other in jobs.values()}:
                    raise SettingsError(f"{job.task.name} is named twice; name it once")
                jobs[name] = job
    return jobs


def _config(word: str, encoder: Encoder | None) -> TaskConfig:
    module = encoder and encoder.module
    return config_in(Path(word), module) if word.endswith(".py") else config_of(word, module)


@contextmanager
def _trying(word: str, failed: set[str], left_out: tuple[type[AudioMarathonError], ...] = ()) -> Iterator[None]:
    """Print an error raised in the `with` block as one line, and continue after the block.

    Add `word` (the task's file or name) to `failed`, unless the error's type is in `left_out`.
    """
    try:
        yield
    except left_out as error:
        say(f"left out: {error}")
    except AudioMarathonError as error:
        failed.add(word)
        say(f"error: {error}")


def _side_by_side(many: int, words: Sequence[str], how: tuple[str, int, Path]) -> set[str]:
    """Run each task in a process of its own, `many` at a time; return the tasks that failed.

    `words` are the tasks' files or names; `how` is (file of the encoder, last stage, results folder).
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    gpus, start = torch.cuda.device_count(), multiprocessing.get_context("spawn").Process
    devices = [f"cuda:{index % gpus}" if gpus else "cpu" for index in range(len(words))]

    def run_one(word: str, device: str) -> int | None:
        child = start(target=_child, name=word, args=(word, device, *how), daemon=True)
        child.start()
        child.join()
        return child.exitcode

    failed: set[str] = set()
    with ThreadPoolExecutor(many) as pool:
        for word, code in zip(words, pool.map(run_one, words, devices), strict=True):
            if code:
                failed.add(word)
                say(f"error: {word}: its process ended with exit code {code}")
    return failed


def _child(word: str, device: str, encoder_py: str, to_stage: int, results: Path) -> None:
    def work() -> None:
        encoder = ready(encoder_py, device=device)
        job = XaresTask(_config(word, encoder), results)
        job.encoder = encoder
        job.work(to_stage)

    reporting_errors(work)()


def _show(jobs: Sequence[XaresTask]) -> None:
    """Print scores and averages in X-ARES' format, then our table of scores with intervals."""
    scores, pairs = zip(*(job.score() for job in jobs), strict=True)
    private, names = [job.config.private for job in jobs], [job.config.formal_name for job in jobs]
    (mlp, _), (knn, _) = (zip(*column, strict=True) for column in zip(*pairs, strict=True))
    table = pd.DataFrame({"Task": names, "MLP_Score": mlp, "KNN_Score": knn, "Private": private}).sort_values("Task")
    typer.echo(f"\nResults:\n{table.to_string(index=False)}")
    _averages("All", pairs)
    if public := any(private) and [pair for pair, hidden in zip(pairs, private, strict=True) if not hidden]:
        _averages("Public", public)
        say("note: X-ARES 0.1.3 prints the private tasks' average here; this average is of the public tasks")
    typer.echo()
    render.show(encoder_scores(scores))
    say(f"records in {jobs[0].results}")


def _averages(group: str, pairs: Sequence[tuple[Scored, Scored]]) -> None:
    typer.echo()
    for name, column in zip(("MLP", "KNN"), zip(*pairs, strict=True), strict=True):
        counted = [(score, weight) for score, weight in column if weight]
        average = sum(score * weight for score, weight in counted) / (sum(weight for _, weight in counted) or 1)
        typer.echo(f"Weighted Average {name} Score for {group} Datasets: {average}")
