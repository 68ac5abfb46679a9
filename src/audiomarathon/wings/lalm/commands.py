"""Read and write LALM Bench's files (`import lalm`, `export lalm`), and run the scripts of `LALM_Bench/`."""

from __future__ import annotations

import contextlib
import datetime
import gc
import hashlib
import io
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from audiomarathon.cli.command import run_script
from audiomarathon.cli.options import (
    DEFAULT_RESULTS,
    ModelName,
    Results,
    Runs,
    argument,
    complete_methods,
    listed,
    option,
    output_folder,
)
from audiomarathon.cli.output import say, show
from audiomarathon.errors import ANY_ERROR, AudioMarathonError, DataError, RecordError, SettingsError
from audiomarathon.files import file_name, link, read_plain, write_bytes, write_json, write_text, writing
from audiomarathon.models.registry import get_model
from audiomarathon.settings import RunSettings
from audiomarathon.text import utc_name
from audiomarathon.version import __version__
from audiomarathon.wing import asked

if TYPE_CHECKING:
    from audiomarathon.engine.run import Result
    from audiomarathon.runs.read import Run

Phase = Literal["run", "inference", "eval"]
Bench = Literal["clotho", "mmau-pro"]
_TASKS = {"clotho": "lalm/clotho", "mmau-pro": "lalm/mmau_pro"}
_BENCHES = {task: bench for bench, task in _TASKS.items()}
_TITLES = {"clotho": "Clotho", "mmau-pro": "MMAU-Pro"}
_MODELS = ("gemma3n", "qwen2_5-omni", "qwen3-omni")
_ALL = ", ".join(_MODELS)
_OUR_NAMES = {"qwen2_5-omni": "qwen2.5-omni"}
_PREDICTIONS = {"clotho": "predictions.json", "mmau-pro": "predictions.parquet"}
_SCORES, _DEBUG = "scores.json", "debug_info.json"
_RESULTS = "_comprehensive_results.json"  # appended to the stem of the predictions file
_SEED = 42  # seed of --sample_size, as published
_TAIL = 50  # number of last lines of a log to show
_FAITHFUL_TOKENS = 2048
_TYPES = ("closed", "open", "following")
#: {(benchmark, whether figures are computed by the published code's rules): {figure of summary.json: name to print}}.
_FIGURES = {
    ("clotho", False): {"cider_d": "CIDEr-D", "fense": "FENSE"},
    ("clotho", True): {"cider_d_as_published": "CIDEr-D", "fense": "FENSE"},
    ("mmau-pro", False): {name: name for name in ("accuracy", *_TYPES)},
    ("mmau-pro", True): {"as_published": "overall", **{f"{name}_as_published": name for name in _TYPES}},
}


def import_(
    file: Annotated[Path, argument("predictions.json (Clotho) or predictions.parquet (MMAU-Pro).")],
    model_name: ModelName,
    results: Results = DEFAULT_RESULTS,
    control: Annotated[
        Literal["noise", "silence"] | None, option("What replaced the clips' audio, if anything.")
    ] = None,
    data: Annotated[
        Path | None, option("Folder of Clotho, to take word weights from the whole split and not only from the file.")
    ] = None,
    column: Annotated[str, option("Column of the parquet file with the replies.")] = "",
    faithful: Annotated[bool, option("Score the reply ERROR as text, not as a failed sample.", "--faithful")] = False,
) -> int:
    """Turn a file of replies, from LALM Bench's scripts or your own, into a run.

    Example: audiomarathon import lalm predictions.parquet --model-name gemma3n --control noise

    The run can be judged, scored and compared like any other run.
    """
    folder = results / _TASKS[_bench_of(file)] / file_name(model_name)
    place = folder / ("imported" + (f"-{control}" if control else ""))
    return show([_imported(file, place, model_name, control=control, data=data, column=column, faithful=faithful)])


def export(
    runs: Runs, output: Annotated[Path, output_folder("Output folder; files go to MODEL/clotho or MODEL/mmau-pro.")]
) -> None:
    """Write runs as LALM Bench's result files.

    Example: audiomarathon export lalm results/lalm -o outputs
    """
    from audiomarathon.runs.read import read_runs

    targets: dict[Path, Run] = {}
    for run in read_runs(runs):
        if run.key in _TASKS.values():
            run.check_finished()  # check all runs before anything is written
            model = file_name(run.checkpoint) + _suffix(run.control)
            place = _place_of(run, output / model / _BENCHES[run.key])
            if place in targets:
                other = targets[place].folder
                raise RecordError(f"{run.folder}: its files would overwrite those of {other}; export only one of them")
            targets[place] = run
    if not targets:
        raise DataError(f"{', '.join(map(str, runs))}: no run of {' or '.join(_TASKS.values())}; name run folders")
    for place, run in targets.items():
        written = _write_predictions(run, place)
        for file in [written, *_write_scores(run, place, written)]:
            say(f"wrote {file}")


def bench(
    phase: Annotated[Phase, argument("run (both), inference (get replies) or eval (score them).")],
    benchmark: Annotated[Bench, argument("Benchmark.")],
    file: Annotated[Path | None, argument("eval: score this file of predictions.")] = None,
    model: Annotated[list[str] | None, option(f"Model; repeatable (default: {_ALL}).", "--model", "-m")] = None,
    output_root: Annotated[Path, option("Results folder, relative to LALM_Bench/.")] = Path("outputs"),
    data: Annotated[
        str | None, option("Data root [env: AUDIOMARATHON_DATA]; with eval FILE: folder of Clotho, for word weights.")
    ] = None,
    input_: Annotated[Path | None, option("MMAU-Pro: test.parquet; its folder data lies beside it.", "--input")] = None,
    split: Annotated[str, option("Clotho: evaluation, validation, development or all.")] = "",
    prompt: Annotated[str, option("Name of the prompt to use (TASK_PROMPT).")] = "",
    sample_size: Annotated[
        int, option("Use N random samples, as published; 0 = all.", "--sample_size", "--sample-size", min=0)
    ] = 0,
    limit: Annotated[int, option("Use the first N rows; 0 = all.", min=0)] = 0,
    use_white_noise: Annotated[bool, option("Play noise to the model instead of the clips.")] = False,
    batch_size: Annotated[int | None, option("Samples per batch (default 1); above 1 nothing is timed.", min=1)] = None,
    methods: Annotated[str, option("Compression methods A,B to run beside base.", complete=complete_methods)] = "",
    ratios: Annotated[str, option("Fractions to remove: a list, or first:last:step (default 0.5).")] = "",
    judge: Annotated[str, option("MMAU-Pro: judges A,B of open replies, as for audiomarathon judge --with.")] = "",
    faithful: Annotated[
        bool, option("Use the published prompts, 2048 tokens per reply, and print figures as published.", "--faithful")
    ] = False,
    output: Annotated[
        Path | None,
        option("Folder for predictions, or folder or .json file for eval's scores.", "--output_json_path", "--output"),
    ] = None,
    input_json: Annotated[Path | None, option("eval: same as FILE.", "--input_json_path")] = None,
    column: Annotated[str, option("eval: column of FILE with the replies.", "--model_output_column")] = "",
    save_attn: Annotated[bool, option("Save each sample's attention (about 0.3 MB) in attn/RUN/.")] = False,
    attn_full: Annotated[bool, option("Also save whole maps (attn.npy), up to 4,096 tokens.", "--attn-full")] = False,
    attn_layers: Annotated[list[str] | None, option("Layer to save; repeatable (default: all).")] = None,
    attn_run_name: Annotated[str, option("Name of RUN (default: the time in UTC).")] = "",
    attn_plot_now: Annotated[bool, option("Draw the saved attention.", "--attn-plot-now")] = False,
    verbose: Annotated[bool, option("Print replies.", "--verbose")] = False,
    verbose_n: Annotated[int, option("Number of replies to print.", "--verbose_n", "--verbose-n", min=0)] = 5,
    _t: Annotated[bool, typer.Option("-t", hidden=True)] = False,
) -> int:
    """Run LALM Bench's Clotho or MMAU-Pro on one model after the other, and write its result files.

    Examples:
    python cli.py run clotho --model gemma3n
    python cli.py inference mmau-pro --model qwen2.5-omni --limit 100 --batch-size 8
    python cli.py eval mmau-pro --model qwen2.5-omni --judge qwen2.5-7b

    The same command resumes an interrupted one.
    """
    from audiomarathon.judges.registry import open_judges

    root = Path(os.environ.get("LALM_BENCH_ROOT", "")).absolute() / output_root.expanduser()
    captions, predictions = Path(data).expanduser() if data else None, input_json or file
    attention = file_name(attn_run_name or utc_name()) if save_attn or attn_full else ""
    names = list(dict.fromkeys(model or _MODELS))
    unused = {"--split": split, "--limit": limit, "--sample_size": sample_size, "--prompt": prompt, "--input": input_}
    unused |= {"--methods": methods, "--ratios": ratios, "--batch-size": batch_size, "--verbose": verbose}
    unused |= {"--save-attn": save_attn, "--attn-full": attn_full, "--data": benchmark == "mmau-pro" and data}
    given = ", ".join(name for name, value in unused.items() if value)
    is_test = benchmark == "mmau-pro" and input_ and input_.name == "test.parquet" and input_.is_file()
    refused = {
        "--attn-… needs saved attention; add --save-attn": not attention
        and (attn_layers or attn_run_name or attn_plot_now),
        "--judge: captions need no judge; leave --judge out": judge and benchmark == "clotho",
        "--sample_size and --limit: give only one": sample_size and limit,
        f"{given} is not used by eval; allowed with inference only": phase == "eval" and given,
        f"--input {input_}: must be the file test.parquet of MMAU-Pro, beside its folder data": input_ and not is_test,
        f"{predictions}: a file of predictions is only for eval": phase != "eval" and predictions,
        "--output needs a single model; name it with --model": output and len(names) > 1 and not predictions,
    }
    if reasons := [text for text, applies in refused.items() if applies]:
        raise SettingsError(reasons[0])
    if judge:
        open_judges(judge, download=False)  # report unknown judges now, not after hours of inference
    shared = _Options(benchmark, root, output, judge, captions, faithful, use_white_noise, attention, attn_plot_now)
    if predictions:
        return shared.eval_file(predictions, column)
    for name in names:
        get_model(_OUR_NAMES.get(name, name))
    chosen = None
    if phase != "eval":
        flags: dict[str, Any] = {"split": split, "prompt": prompt, "batch_size": batch_size or 1}
        flags |= {"data": str(input_.parent) if input_ else data, "timing": False if (batch_size or 1) > 1 else None}
        flags |= {"save_attn": bool(attention) or None, "attn_layers": ",".join(attn_layers or ()) or None}
        if faithful:
            published = "as_published" if benchmark == "mmau-pro" else ""
            flags |= {"max_new_tokens": _FAITHFUL_TOKENS, "prompt": prompt or published}
        chosen = shared.choose(flags, sample_size, limit, whole=attn_full)
    code = 0
    for name in names:
        code |= shared.one_model(phase, name, chosen, methods, ratios, verbose_n * verbose)
        gc.collect()  # free the previous model's weights
    return code


def door(folder: Path, *arguments: str) -> None:
    """Run :func:`bench` for a script of `LALM_Bench/`; `arguments` are put before those of the command line."""
    os.environ["LALM_BENCH_ROOT"] = os.environ.get("LALM_BENCH_ROOT") or str(folder)
    run_script(bench, [*arguments, *sys.argv[1:]], no_args_is_help=True)


_Chosen = tuple[RunSettings, str]  # settings that name the chosen samples, and the name of the folder for their runs


@dataclass(frozen=True)
class _Options:
    """The options of :func:`bench` that apply to every model.

    Attributes
    ----------
    root
        Folder of the results, with a subfolder per model.
    output
        Folder for predictions and scores; None uses the results folder.
    judge
        Judges to ask after a run, joined by commas.
    captions
        Folder of Clotho, whose captions give the word weights of the caption metrics; None uses the scored file.
    faithful, noise
        Whether to print scores by the rules of the benchmark's published code, and whether models get noise instead of
        the clips.
    attention, draw
        Name of the folder for saved attention ("" saves none), and whether to draw it.
    """

    bench: str
    root: Path
    output: Path | None
    judge: str
    captions: Path | None
    faithful: bool
    noise: bool
    attention: str
    draw: bool

    def choose(self, flags: Mapping[str, Any], sample_size: int, limit: int, *, whole: bool) -> _Chosen:
        """Find the data, and choose the samples to run, in the order of the file, without rows that cannot be read.

        With `noise`, also write noise clips in place of the samples' clips.

        Return (run settings limited to the chosen samples, name of the folder for their runs). With `whole`, runs with
        these settings also save attention maps over all tokens.

        Raises
        ------
        AudioMarathonError
            The data is missing, too many rows are bad, every chosen row is bad, or a setting is wrong.
        """
        from audiomarathon.benchmarks import get_task
        from audiomarathon.benchmarks.captioning import Captioning
        from audiomarathon.benchmarks.fingerprint import clip_hashes, fingerprint
        from audiomarathon.benchmarks.rows import read_parquet, shown
        from audiomarathon.benchmarks.task import name_id
        from audiomarathon.data.controls import build_controls
        from audiomarathon.engine.attention_capture import LONGEST_FULL
        from audiomarathon.engine.run import load_task
        from audiomarathon.wings.lalm.mmau_pro import METADATA

        settings, task = RunSettings.read(**flags), get_task(_TASKS[self.bench])
        loaded = load_task(task, settings, lambda _line: None)  # the run prints these lines again
        if isinstance(task, Captioning):
            split = settings.split or next(iter(task.splits))
            tables = task.tables(loaded.folder, split)
            ids = [name_id(item[0]) for items in tables.values() for item in items]
        else:
            rows = read_parquet(loaded.folder / METADATA, ["id"])["id"].to_pylist()
            split, ids = "test", [name_id(str(id_).strip()) for id_ in rows]
        if sample_size:
            ids = random.Random(_SEED).sample(ids, min(sample_size, len(ids)))
        chosen, good = dict.fromkeys(ids[:limit] if limit else ids), {sample.id for sample in loaded.samples}
        ids = [id_ for id_ in chosen if id_ in good]
        if bad := [id_ for id_ in chosen if id_ not in good]:
            message = f"{loaded.folder}: {len(bad)} of {len(chosen)} chosen samples are bad rows: {shown(bad)}"
            if not ids:
                raise DataError(message)
            say(f"{message}; left out")
        settings = replace(settings, samples=tuple(ids), attn_full=whole * LONGEST_FULL)
        name = [split, settings.prompt, "faithful" * self.faithful, "untimed" * (not settings.timing)]
        if self.noise:
            subset = replace(loaded, samples=tuple(sample for sample in loaded.samples if sample.id in chosen))
            content = fingerprint(subset), sorted(clip_hashes(subset.samples).items())
            name.append(hashed := hashlib.sha256(repr(content).encode()).hexdigest()[:8])
            out = self.root / f"noise-{self.bench}-{hashed}"
            if not (out / "noise").is_dir():
                build_controls([(task, subset)], out, seconds=None, kind="noise")
            settings = replace(settings, data=str(out / "noise"), data_paths=())
        return settings, file_name("-".join(filter(None, name)))

    def one_model(self, phase: str, model: str, chosen: _Chosen | None, methods: str, ratios: str, replies: int) -> int:
        """Run the phases (inference, evaluation) of the benchmark for one model, and write LALM Bench's files.

        Return 1 if a phase or a sample failed, else 0. `replies` is the number of replies to print.
        """
        title, short = _TITLES[self.bench], self.bench.replace("-", "_")
        noun = {"run": "benchmark", "inference": "inference", "eval": "evaluation"}[phase]
        folder = self.root / (file_name(model) + _suffix("noise" * self.noise))
        file = folder / f"result_{short}{'' if phase == 'run' else f'_{noun}'}.txt"
        write_text(file, "")
        _add(file, f"{title} {noun.capitalize()} Results for {model}", f"Started at: {_now()}", "=" * 33)
        target, inferred, runs = self.output or folder / self.bench, list[Path](), list[Path]()
        code: int | None = 0
        if chosen:
            log = folder / f"{self.bench}_infer.stderr.log"
            work = partial(self._infer, model, chosen, folder / "runs", target, methods, ratios, replies)
            inferred, code = _phase(file, f"{title} inference", log, work)
        if phase != "inference" and code is not None:
            log = folder / f"{self.bench}_eval.stderr.log"
            scoring = partial(self._evaluate, model, inferred, folder / "runs", target)
            runs, scored = _phase(file, f"{title} evaluation", log, scoring)
            code = None if scored is None else code | scored
        _add(file, *self._score_lines(runs), *(f"Run: {path}" for path in runs or inferred))
        _add(file, f"Finished at: {_now()}", f"=== Completed {title} {noun} for {model} ===")
        return 1 if code is None else code

    def eval_file(self, file: Path, column: str) -> int:
        """Score a file of predictions; write the scores to `output` or else beside the file, and print them."""
        target, name = self.output or file.parent, _SCORES
        if target.suffix == ".json":
            target, name = target.parent, target.name
        folder, code = self._score_file(file, file.with_name(f"{file.name}.run"), file.stem, column)
        for line in [*self._score_lines([folder]), *map(str, _write_scores(_read(folder), target, file, name))]:
            typer.echo(line)
        return code

    def _infer(
        self, model: str, chosen: _Chosen, runs: Path, target: Path, methods: str, ratios: str, replies: int
    ) -> tuple[list[Path], int]:
        from audiomarathon.embedded.without_data import embedded_instead
        from audiomarathon.engine.run import run
        from audiomarathon.engine.sweep import grid, parse_ratios
        from audiomarathon.runs.folder import what_failed

        settings = replace(chosen[0], results=runs / chosen[1])
        name, settings = embedded_instead(_OUR_NAMES.get(model, model), settings, say)
        swept = (
            grid(listed(methods), parse_ratios(ratios or None, settings.schedule, "0.5"), **settings.places)
            if methods.strip(" ,")
            else None
        )
        results = list(run([_TASKS[self.bench]], name, settings, swept, say=say))
        for result in results:
            done = _read(result.folder)
            _write_predictions(done, place := _place_of(done, target))
            if self.attention:
                self._write_attention(done, settings.samples, place / "attn" / self.attention)
            for record in list(done.records.values())[:replies]:
                say(f"{record.id}: {record.text}")
            if errors := result.summary["errors"]:
                say(f"error: {result.folder}: {what_failed(result.folder, errors)}; fix the cause, then run it again")
        return [finished.folder for finished in results], int(
            not all(finished.summary["complete"] for finished in results)
        )

    def _write_attention(self, run: Run, samples: Sequence[str], place: Path) -> None:
        """Link each sample's saved attention into LALM Bench's folders `sample_0000/` and so on, in data order."""
        from audiomarathon.runs.attention import WHOLE, Attention, file_of, index_of

        assert run.folder is not None
        rows = index_of(run.folder)
        for number, id_ in enumerate(samples):
            if id_ in rows:
                file, target = file_of(run.folder, id_), place / f"sample_{number:04d}"
                attention = Attention.read(file)
                replace(attention, meta={**attention.meta, "attn_run_name": self.attention}).write_texts(target)
                link(file, target / "attention.npz")
                if rows[id_]["full"]:
                    link(file.with_suffix(WHOLE) / "attn.npy", target / "attn.npy")
        say(f"attention: {place}")
        if self.draw and rows:
            try:
                asked(lambda wing: wing.pictures([run], place))
            except AudioMarathonError as error:  # the attention itself is saved already
                say(f"warning: no pictures are drawn; {error}")

    def _evaluate(self, model: str, folders: Sequence[Path], runs: Path, target: Path) -> tuple[list[Path], int]:
        """Score runs and write LALM Bench's score files; return (run folders, exit code).

        The runs are those in `folders`, or else the latest under `runs`, or else the file of predictions in `target`.
        """
        if not folders and (earlier := list(runs.glob(f"*/{_TASKS[self.bench]}/*/*/run.json"))):
            last = max(earlier, key=lambda file: file.stat().st_mtime)
            folders = sorted(file.parent for file in last.parent.parent.glob("*/run.json"))
        if not folders:
            if not (file := target / _PREDICTIONS[self.bench]).is_file():
                raise DataError(f"{target} has no {file.name}; run inference first")
            folder, code = self._score_file(file, runs, model, "")
            _write_scores(_read(folder), target, file)
            return [folder], code
        code = self._score(folders)
        for read_run in map(_read, folders):
            written = _write_predictions(read_run, place := _place_of(read_run, target))
            _write_scores(read_run, place, written)
        return list(folders), code

    def _score_file(self, file: Path, runs: Path, name: str, column: str) -> tuple[Path, int]:
        """Turn a file of predictions into a run, and score it; return (run folder, exit code).

        A file that has changed since an earlier call gets a new run folder.
        """
        if (bench := _bench_of(file)) != self.bench:
            allowed = f"{_TITLES[self.bench]} has {_PREDICTIONS[self.bench]}"
            raise SettingsError(f"{file}: is a file of {_TITLES[bench]}; {allowed}")
        control, data = "noise" if self.noise else None, self.captions and self.captions.absolute()
        options: dict[str, Any] = {"control": control, "data": data, "column": column, "faithful": self.faithful}
        hashed = hashlib.sha256(_content(file) + repr(options).encode()).hexdigest()[:12]
        folder = _imported(file, runs / f"imported-{hashed}", name, **options).folder
        return folder, self._score([folder])

    def _score(self, folders: Sequence[Path]) -> int:
        from audiomarathon.cli.judge import Asking, judge
        from audiomarathon.engine.run import score

        if self.judge:
            return int(judge(runs=folders, asking=Asking(self.judge, yes=True)))
        return show([score(folder) for folder in folders])

    def _score_lines(self, folders: Sequence[Path]) -> list[str]:
        """Return a line of text for each printed score of each run, such as "FENSE: 0.4321".

        With `faithful`, scores are computed by the rules of the benchmark's published code.
        """
        wanted, lines = _FIGURES[self.bench, self.faithful], []
        for folder in folders:
            run = _read(folder)
            setting = f" ({run.method})" if len(folders) > 1 else ""
            for key, value in _summary(run).items():
                name, bracket, encoder = key.partition("[")
                if title := wanted.get(name):
                    shown = f"{value:.4f}" if isinstance(value, float) else "not computed"
                    lines.append(f"{title}{bracket}{encoder}{setting}: {shown}")
        return lines


def _add(file: Path, *lines: str) -> None:
    """Print lines of text, and append them to a file (a model's `result_….txt`)."""
    with writing(file), file.open("a", encoding="utf-8", errors="backslashreplace") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    for line in lines:
        typer.echo(line)


def _phase(
    file: Path, name: str, log: Path, work: Callable[[], tuple[list[Path], int]]
) -> tuple[list[Path], int | None]:
    """Run `work` as one phase (inference or evaluation), and copy stderr to `log`.

    Return the result of `work`, (run folders, exit code), or ([], None) after an error.
    """
    _add(file, f"[{name}] Started at {_now()}")
    begun = time.monotonic()
    result: tuple[list[Path], int | None] = [], None
    with writing(log):
        stream = log.open("w", encoding="utf-8", errors="backslashreplace")
    with stream, redirect_stderr(_Both(sys.stderr, stream)):
        try:
            result = work()
        except AudioMarathonError as error:
            say(f"error: {error}")
        except ANY_ERROR:  # a model that fails must not stop the others
            traceback.print_exc()
    phase, took = name.rpartition(" ")[2], f"({time.monotonic() - begun:.0f}s)"
    if result[1] is not None:
        _add(file, f"✅ {phase} completed {took}")
    else:
        tail = log.read_text(encoding="utf-8").splitlines()[-_TAIL:]
        _add(file, f"❌ {phase} failed {took}. See {log}", "--- stderr (tail) ---", *tail)
    return result


class _Both(io.TextIOBase):
    """A stream that writes text to several streams.

    Other code sees that the stream is not a terminal, so it draws no progress bars.
    """

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        """Write a text to every stream; skip a stream that cannot be written."""
        for stream in self._streams:
            with contextlib.suppress(OSError):  # a full disk or a closed terminal must not end the run
                stream.write(text)
                stream.flush()
        return len(text)


def _bench_of(file: Path) -> str:
    """Return the benchmark (clotho or mmau-pro) to which a file of predictions belongs, judged by the file's suffix."""
    for bench, name in _PREDICTIONS.items():
        if file.suffix.lower() == Path(name).suffix:
            return bench
    raise DataError(f"{file}: expected {' or '.join(_PREDICTIONS.values())}")


def _imported(
    file: Path, place: Path, name: str, *, control: str | None, data: Path | None, column: str, faithful: bool
) -> Result:
    """Turn a file of predictions into a run in the folder `place`, and return the run's result.

    `name` is the model's name; the other parameters are those of :func:`import_`.
    """
    from audiomarathon.engine.run import as_run
    from audiomarathon.wings.lalm.exchange import REPLY, corpus_of, read_answers, read_captions

    bench, corpus = _bench_of(file), list[list[str]]()
    if bench == "clotho":
        records = read_captions(file, data, faithful=faithful)
        corpus, source = corpus_of(records, data)
        say(f"word weights come from the captions of {source}")
    else:
        records = read_answers(file, column or REPLY, faithful=faithful)
    records = [replace(record, control=control) for record in records]
    return as_run(place, _TASKS[bench], file, name, records, control=control, corpus=corpus)


def _write_predictions(run: Run, target: Path) -> Path:
    """Write a run's replies in LALM Bench's format into the folder `target`; return the file.

    If this changes the replies in an existing file, the scores beside it are deleted.
    """
    from audiomarathon.wings.lalm.exchange import answers, predictions

    records = [*run.records.values()]
    file = target / _PREDICTIONS[_BENCHES[run.key]]
    if file.suffix == ".json":
        content = json.dumps(predictions(records), indent=4, ensure_ascii=False).encode("utf-8", "backslashreplace")
    else:
        from pyarrow import parquet

        place = run.facts.get("data_folder")
        parquet.write_table(answers(records, Path(place) if place else None), out := io.BytesIO())
        content = out.getvalue()
    if file.is_file() and _content(file) != content:  # the scores beside the file belong to the old replies
        for name in (_SCORES, f"{file.stem}{_RESULTS}", _DEBUG):
            (target / name).unlink(missing_ok=True)
    write_bytes(file, content)
    return file


def _write_scores(run: Run, target: Path, predictions: Path, name: str = _SCORES) -> list[Path]:
    """Write a run's scores in LALM Bench's format into the folder `target`; return the files."""
    from audiomarathon.wings.lalm.exchange import comprehensive, debug_info, scores

    summary = _summary(run)
    ours = {"audiomarathon": {"version": __version__, "run": str(run.folder), "summary": summary}}
    if _BENCHES[run.key] == "clotho":
        contents = {name: scores(summary, datetime.datetime.now().isoformat()) | ours}
    else:
        verdicts = list(run.verdicts.values())
        results = comprehensive(verdicts, run.expected, predictions, summary.get("as_published")) | ours
        contents = {f"{predictions.stem}{_RESULTS}": results, _DEBUG: debug_info(summary, verdicts)}
    for file, content in contents.items():
        write_json(target / file, content)
    return [target / file for file in contents]


def _summary(run: Run) -> Mapping[str, Any]:
    """Return a finished run's summary, computed again.

    Text encoders may have been installed or removed since the stored summary was written.
    """
    from audiomarathon.benchmarks import get_task
    from audiomarathon.runs.summary import summarise

    run.check_finished()
    return summarise(get_task(run.key), run.facts, [*run.records.values(), *run.failed.values()], run.verdicts)


def _read(folder: Path) -> Run:
    from audiomarathon.runs.read import Run

    return Run.read(folder)


def _place_of(run: Run, target: Path) -> Path:
    """Return the folder for a run's files: `target` for an uncompressed or imported run, else a subfolder of it."""
    from audiomarathon.compression.method import Base
    from audiomarathon.runs.summary import IMPORTED

    return target if run.method in (Base().label, IMPORTED) else target / file_name(run.method)


def _content(file: Path) -> bytes:
    try:
        return read_plain(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error


def _suffix(control: str) -> str:
    return f"_with_{control.replace(' ', '_')}" if control else ""


def _now() -> str:
    return f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
