"""`audiomarathon encoder`: probe frozen audio encoders (fit small models on their embeddings) on X-ARES' tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audiomarathon.cli.command import group, with_executor, with_group
from audiomarathon.cli.options import DeviceName, Runs, Seed, argument, listed, option
from audiomarathon.cli.output import one_by_one, say
from audiomarathon.cli.report import report
from audiomarathon.cli.status import status
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import AudioMarathonError, EncoderError, MissingDataError, SettingsError
from audiomarathon.files import file_name, named_folder
from audiomarathon.models.registry import EMBEDDED, all_models, get_model
from audiomarathon.settings import PLACES, SEED, cache_folder
from audiomarathon.text import counted
from audiomarathon.wings.encoders.encoder import Encoder
from audiomarathon.wings.encoders.registry import all_encoders, load_encoder

if TYPE_CHECKING:
    from audiomarathon.engine.run import Result
    from audiomarathon.report.charts import Chart
    from audiomarathon.report.render import Table
    from audiomarathon.runs.read import Run
    from audiomarathon.wings.encoders.results.scores import Score
    from audiomarathon.wings.encoders.xares.task import Dataset, EncoderTask

_Encoder = Annotated[
    str,
    argument(
        "PATH_encoder.py[:Class], hf:ID or hf:FOLDER, tower:MODEL[@point], baseline:…, control:… "
        "(encoder list encoders)."
    ),
]
_Tasks = Annotated[
    str,
    option("Task names joined by commas, a domain (speech, …, long), all, private, or a *_task.py file.", "--tasks"),
]
_Data = Annotated[Path | None, option("Data folder (default: $AUDIOMARATHON_ENCODER_DATA, $XARES_ENV_ROOT, else env).")]
_Results = Annotated[Path, option("Results folder.")]
_Arguments = Annotated[list[str] | None, option("name=value for the encoder's class; repeatable.", "--encoder-arg")]
_Llm = Annotated[
    str,
    option(
        "LLM of the speech recognition probe: a hub id or folder; X-ARES uses Qwen/Qwen2.5-0.5B.", envvar="XARES_LLM"
    ),
]
_Tokenizer = Annotated[
    str, option("Tokenizer of captions: a hub id or folder (default: BERT's).", envvar="XARES_TOKENIZER")
]
_Model = Annotated[str, argument("An audio LLM: audiomarathon list models.")]
_Limit = Annotated[int, option("Clips per part (such as train or test), at least one per class; 0 = all.", min=0)]
_AllowBadRows = Annotated[bool, option("Continue if over 1 % of rows are bad.", "--allow-bad-rows")]
_RESULTS, _POINTS = Path("results"), "llm.2,llm.last"
_TRIED = 20  # number of clips to encode for an estimate of the time


@dataclass(frozen=True)
class Probing:
    """Options that the commands of `audiomarathon encoder` share: data and results folders, how to load an encoder."""

    data: _Data = None
    results: _Results = _RESULTS
    encoder_arg: _Arguments = None
    device: DeviceName = "auto"

    @property
    def root(self) -> Path:
        """Folder that contains the data of all tasks."""
        from audiomarathon.embedded import without_data
        from audiomarathon.wings.encoders.probing.evaluate import data_root

        return without_data.data_root(str(self.data or "")) or data_root()

    @property
    def is_mini(self) -> bool:
        """Whether the data is the mini benchmark: small synthetic data for trials, not a real corpus."""
        from audiomarathon.embedded.without_data import MINI

        return str(self.data) == MINI

    @property
    def arguments(self) -> dict[str, str]:
        """The values of --encoder-arg as {name: text}: arguments for the encoder's class."""
        return _by_name(self.encoder_arg)

    def check(self, tasks: str, model: str = "") -> None:
        """Raise an error for unknown tasks or models, and for data that is not a folder, before anything is loaded."""
        if model:
            get_model(model)
        for name in (word for word in tasks.split(",") if not word.strip().lower().endswith(".py")):
            _named(name)
        if self.data and not self.is_mini and not named_folder(self.data).is_dir():
            raise MissingDataError(f"{self.data}: not a folder; name the data root with --data, or mini")

    def on_workers(self, loaded: Encoder, name: str, ray: Ray | None) -> AbstractContextManager[Encoder]:
        """Return a context manager that gives the encoder to use: one that runs on Ray workers if `ray` is set.

        Without `ray`, it gives `loaded`, which runs in this process.
        """
        if ray is None:
            return nullcontext(loaded)
        from audiomarathon.wings.encoders.probing.ray_encoder import shared_out

        return shared_out(loaded, name, self.arguments, self.device, ray, say)


with_probing = with_group("probing", Probing)


@with_executor
@with_probing
def run(
    encoder: _Encoder,
    probing: Probing,
    tasks: _Tasks = "all",
    protocol: Annotated[str, option("Probes to fit: standard (ours), as_published (X-ARES 0.1.3) or both.")] = "both",
    limit: _Limit = 0,
    mini: Annotated[bool, option("Use X-ARES' small variants of its large tasks.", "--mini")] = False,
    seeds: Annotated[int, option("Number of seeds for trained probes (X-ARES' and Clotho's).", min=1, max=100)] = 5,
    llm: _Llm = "",
    tokenizer: _Tokenizer = "",
    allow_bad_rows: _AllowBadRows = False,
    plan: Annotated[bool, option("Print available data and estimated time, and stop.", "--plan")] = False,
    ray: Ray | None = None,
) -> int:
    """Probe an encoder: encode each clip once, then fit our probes and those of X-ARES.

    Examples:
    audiomarathon encoder run hf:openai/whisper-base --tasks esc50,gtzan_genre
    audiomarathon encoder run my_encoder.py --tasks speech --limit 200
    audiomarathon encoder run control:logmel --tasks esc50          # every encoder should beat this control

    Rely on our probes linear (shrinkage LDA; ridge if clips have several labels) and kNN; both have 95 % intervals.
    X-ARES MLP and X-ARES kNN repeat its released probes, faults included; compare them only with its published
    tables. Embeddings are kept in $AUDIOMARATHON_CACHE, so the same command resumes and encodes nothing twice. With
    --executor ray, package, encoder and data must have the same paths on every machine.
    """
    probing.check(tasks)
    from audiomarathon.wings.encoders.probing.evaluate import check_protocol, probe_task, read_tasks, ready
    from audiomarathon.wings.encoders.probing.run import found_for

    check_protocol(protocol)
    loaded = ready(encoder, probing.arguments, probing.device)
    tokenizer = tokenizer or EMBEDDED * probing.is_mini
    chosen = _named(tasks, loaded.module, llm=llm, tokenizer=tokenizer)
    datasets, missing = read_tasks(chosen, probing.root, limit=limit, mini=mini, plan=plan, bad=allow_bad_rows, say=say)
    if plan:
        for task, _ in datasets:
            found_for(task, protocol, say)
        _plan(loaded, datasets, missing)
        return 0
    probe = partial(probe_task, results=probing.results, protocol=protocol, seeds=seeds, say=say)
    with probing.on_workers(loaded, encoder, ray) as shared:
        return _finish([probe(shared, task, data) for task, data in datasets], probing.results)


def check(encoder: _Encoder, encoder_arg: _Arguments = None, device: DeviceName = "auto", long: bool = False) -> int:
    """Check that an encoder follows X-ARES' interface; also report other properties that affect scores.

    Example: audiomarathon encoder check my_encoder.py

    Exit code 1: the encoder breaks one of X-ARES' ten rules, its hop is not the declared one, or its output is not
    finite; 0 otherwise.
    --long also tests ten minutes of audio.
    """
    from audiomarathon.wings.encoders.check import HOP_OFF, check_encoder
    from audiomarathon.wings.encoders.probing.evaluate import checked_device

    try:
        checked = check_encoder(load_encoder(encoder, _by_name(encoder_arg), checked_device(device)), long=long)
    except EncoderError as error:
        say(f"error: {error}")
        return 1
    # A wrong hop shifts every label in time, so it is an error here, though X-ARES does not check it.
    errors = [
        *checked.errors,
        *(f"{finding.name}: {finding.line}" for finding in checked.findings if finding.name == HOP_OFF),
    ]
    for line in errors:
        say(f"error: {line}")
    for finding in checked.findings:
        if finding.name != HOP_OFF:
            typer.echo(f"finding: {finding.name}: {finding.line}")
    if not checked.errors:
        typer.echo("the encoder follows X-ARES' interface")
    return int(bool(errors))


def list_(what: Annotated[str, argument("What to list: tasks or encoders.")] = "tasks") -> None:
    """List the tasks, or the encoders that have a name."""
    from audiomarathon.report import render
    from audiomarathon.wings.encoders.xares.tasks import TASKS

    if what not in ("tasks", "encoders"):
        raise SettingsError(f"unknown list {what!r}; allowed: tasks, encoders")
    if what == "encoders":
        rows: list[dict[str, object]] = [{"key": encoder.key} for encoder in all_encoders()]
        rows += [{"key": f"tower:{model.key}"} for model in all_models() if not model.remote]
    else:
        rows = [
            {
                "task": task.name,
                "X-ARES": task.formal_name,
                "domain": task.domain,
                "classes": (task.classes if isinstance(task.classes, int) else len(task.classes)) or None,
                "test_clips": task.n_test * (len(task.parts) if task.folds else 1) or None,
                "zenodo": "private" if task.private else task.zenodo,
                "what": task.title,
            }
            for task in TASKS
        ]
    render.show(render.Table.of(rows, title=what.capitalize(), least=("zenodo", "what")))


def download(
    tasks: Annotated[str, argument("Tasks, as for encoder run.")],
    data: _Data = None,
    plan: Annotated[bool, option("Print sizes and licences, and stop.", "--plan")] = False,
    source: Annotated[Path | None, option("Folder or archive with the tars, downloaded by hand.", "--from")] = None,
) -> int:
    """Download tasks from Zenodo and check each file; the same command resumes.

    Examples:
    audiomarathon encoder download esc50 --plan
    audiomarathon encoder download esc50,gtzan_genre --data env
    """
    from audiomarathon.wings.encoders import zenodo
    from audiomarathon.wings.encoders.probing.evaluate import data_root

    root, chosen = data or data_root(), _named(tasks)
    if source and len(chosen) > 1:
        raise SettingsError(f"--from works with a single task, but {len(chosen)} tasks are named; name one")

    def get(task: EncoderTask) -> None:
        if source:
            zenodo.from_folder(task, source, root)
        elif plan:
            _say_size(task)
        else:
            zenodo.fetch(task, root, say)

    return int(len(one_by_one(chosen, get)) < len(chosen))


def compare(
    runs: Runs,
    probe: Annotated[str, option("Probe: linear, knn, knn-centred, or a probe of X-ARES.")] = "linear",
    against: Annotated[str | None, option("Encoder to compare all others with.")] = None,
    seed: Seed = SEED,
    picture: Annotated[
        Path | None, option("Draw each tower's score against the score of its model, to this .png or .svg file.")
    ] = None,
) -> None:
    """Compare pairs of encoders, by one probe, on the clips they share; Holm's p corrects for the number of tasks.

    Examples:
    audiomarathon encoder compare results --probe linear --against logmel
    audiomarathon encoder compare results --picture towers.png      # scores of tower:MODEL against those of MODEL
    """
    from audiomarathon.report import render, tables
    from audiomarathon.report.charts import save
    from audiomarathon.report.comparison_text import notes
    from audiomarathon.results.compare import compare as compare_systems
    from audiomarathon.results.systems import find_reference, systems_of
    from audiomarathon.runs.read import read_runs
    from audiomarathon.wings.encoders.report.tower_sections import standing_chart, standing_table
    from audiomarathon.wings.encoders.results.towers import standings
    from audiomarathon.wings.encoders.xares.task import EncoderTask

    all_runs = read_runs(runs)
    if standing := standings(all_runs):
        render.show(standing_table(standing))
    if picture:
        if not standing:
            raise SettingsError(
                f"--picture {picture}: no model has both its tower's linear probe and its own runs in these results; "
                "next: audiomarathon run TASK --model MODEL, into the same results"
            )
        say(f"picture: {save(standing_chart(standing), picture)}")
    probed = [run for run in all_runs if isinstance(run.task, EncoderTask) and run.method == probe]
    systems = systems_of(probed) if probed else []
    if len(systems) < 2:
        if standing:
            return
        names = ", ".join(system.checkpoint for system in systems) or "none"
        raise SettingsError(f"found these encoders with the probe {probe}: {names}; compare needs at least two")
    reference = f"{against} {probe}" if against in {system.checkpoint for system in systems} else against
    compared = compare_systems(systems, find_reference(systems, reference), seed=seed)
    render.show(tables.comparison(compared, []))
    for line in notes(compared, {}):
        say(line)


def table(runs: Runs) -> None:
    """Show the stored scores of every encoder on every task, and each encoder's means."""
    from audiomarathon.report import render
    from audiomarathon.runs.read import read_runs
    from audiomarathon.wings.encoders.report.encoder_tables import encoder_scores
    from audiomarathon.wings.encoders.results.scores import task_scores

    render.show(encoder_scores(task_scores(read_runs(runs))))


@with_executor
@with_probing
def reproduce(
    encoder: Annotated[str, argument("X-ARES' baseline: dasheng, wav2vec2, whisper or data2vec.")],
    probing: Probing,
    tasks: _Tasks = "all",
    table: Annotated[
        str, option("Published table: readme, or first (in X-ARES' first README, on the mini sets).")
    ] = "readme",
    llm: _Llm = "",
    tokenizer: _Tokenizer = "",
    ray: Ray | None = None,
) -> int:
    """Run one of X-ARES' baselines by X-ARES' protocol, and show the published scores beside ours.

    Example: audiomarathon encoder reproduce whisper --tasks esc50,gtzan_genre
    """
    from audiomarathon.runs.read import REPRODUCED
    from audiomarathon.wings.encoders.probing.evaluate import probe_task, read_tasks, ready
    from audiomarathon.wings.encoders.report.encoder_tables import beside_published
    from audiomarathon.wings.encoders.xares.published import ENCODERS, TABLES, published

    if encoder not in ENCODERS or table not in TABLES:
        allowed = f"{', '.join(ENCODERS)}; --table {', '.join(TABLES)}"
        raise SettingsError(f"the table {table!r} has no encoder {encoder!r}; allowed: {allowed}")
    name, folder = f"baseline:{encoder}", probing.results / f"{REPRODUCED}{table}"
    loaded = ready(name, probing.arguments, probing.device)
    chosen = _named(tasks, loaded.module, llm=llm, tokenizer=tokenizer)
    if unknown := [task.name for task in chosen if published(table, encoder, task.name)[0] is None]:
        say(f"left out: {', '.join(unknown)}, since they are not in the table {table!r}")
    chosen = [task for task in chosen if task.name not in unknown]
    datasets, _missing = read_tasks(chosen, probing.root, mini=table == "first", say=say)
    with probing.on_workers(loaded, name, ray) as shared:
        works = [probe_task(shared, task, data, folder, protocol="as_published", say=say) for task, data in datasets]
        return _finish(works, folder, partial(beside_published, encoder=encoder, table=table))


def import_(
    env: Annotated[Path, argument("X-ARES' env folder, or a task's folder in it.")],
    encoder: Annotated[str, option("Class name of the encoder, as in X-ARES' folder names.")],
    tasks: _Tasks = "all",
    results: _Results = _RESULTS,
    tokenizer: _Tokenizer = "",
    allow_bad_rows: _AllowBadRows = False,
) -> int:
    """Probe embeddings that X-ARES stored (wds-encoded-*.tar). The runs are marked `imported`, since only the
    encoder's name is known, not its code or weights.

    Example: audiomarathon encoder import env --encoder DashengEncoder --tasks esc50
    """
    from audiomarathon.wings.encoders.probing.imported import probe_stored

    chosen = _named(tasks, tokenizer=tokenizer)
    return _finish(probe_stored(env, encoder, chosen, results, bad=allow_bad_rows, say=say), results)


def demo(results: _Results = Path("encoder_demo")) -> int:
    """Probe the control encoders on synthetic sounds and write a page; offline, under a minute."""
    from audiomarathon.wings.encoders.probing.evaluate import probe_task, ready
    from audiomarathon.wings.encoders.sounds_task import write_task

    (task,) = _named(str(write_task(results / "env")))
    data = task.read(results / "env")
    controls = [ready(f"control:{name}", device="cpu") for name in ("logmel", "random", "length-loudness", "noise")]
    works = [probe_task(encoder, task, data, results, protocol="both", say=say) for encoder in controls]
    code = _finish(works, results)
    report([results], output=results / "report.html", audio="embed")
    return code


@with_probing
def layers(model: _Model, tasks: _Tasks, probing: Probing, limit: _Limit = 0) -> int:
    """Probe every layer of an audio LLM at the audio tokens: the tower's layers, the LLM's input, and the LLM's layers.

    Examples:
    audiomarathon encoder layers qwen2-audio --tasks esc50,gtzan_genre
    audiomarathon encoder layers qwen2-audio --tasks long --data DATA     # AudioMarathon's own clips, labelled by class

    Each clip is read in one prefill, and the means of all layers are kept, so the same command resumes an interrupted
    run. MODEL@POINT is one layer's linear probe; MODEL@best takes, in each split, the layer that is best on validation;
    MODEL@tower-mix and MODEL@llm-mix learn a weight for each layer. MODEL@text is the prompt's last token. Pictures in
    RESULTS show one curve per task, with 95 % intervals.
    """
    probing.check(tasks, model)
    from audiomarathon.report import render
    from audiomarathon.wings.encoders.probing.towers import probe_layers
    from audiomarathon.wings.encoders.report.tower_sections import layer_curves, layer_table

    runs, code = _probed(model, tasks, limit, probing, probe_layers)
    render.show(layer_table(runs))
    _draw(layer_curves(runs), probing.results, "layers")
    return code


@with_probing
def prune(
    model: _Model, tasks: _Tasks, probing: Probing, limit: _Limit = 0,
    methods: Annotated[str, option("Methods that drop or merge audio tokens, joined by commas.")] = "fast_v",
    ratios: Annotated[str, option("Fractions removed: first:last:step, or a list 0.1,0.5.")] = "0.5,0.9",
    points: Annotated[
        str, option("Points (docs/towers.md): tower.I, tower, projector, llm.K, llm.last; text is always added.")
    ] = _POINTS,
    layer: Annotated[int, option("Layer at which tokens are dropped.", min=0)] = 2,
    at: Annotated[
        str, option("Where tokens are dropped: layer (inside the LLM), input (before it) or tower (inside the tower).")
    ] = "layer",
    tower_layer: Annotated[
        int | None, option("With --at tower: layer of the tower before which states go [half of its layers].", min=0)
    ] = None,
) -> int:  # fmt: skip
    """Probe what audio LLMs still know of a sound after dropping audio tokens; compare with base on the same clips.

    Examples:
    audiomarathon encoder prune qwen2-audio --tasks esc50 --methods fast_v,dart --ratios 0.5:0.9:0.2
    audiomarathon encoder prune qwen2-audio --tasks long/desed --data DATA --points tower,llm.last
    audiomarathon encoder prune qwen2-audio --tasks esc50 --methods frame,merge_frame --at tower

    A point's embedding is the mean over the audio tokens that are kept. Differences to base are paired, with 95 %
    intervals. Controls: random drops the same number of tokens, at random; shuffled_METHOD keeps the positions that
    METHOD kept in another clip; the point text is the prompt's last token. KV presses change nothing before decode and
    are refused. If the results also hold the model's own runs on the same clips and settings, audiomarathon report
    shows what is lost, and what the model does not use.
    """
    from audiomarathon.engine.sweep import grid, parse_ratios

    if at not in PLACES:
        raise SettingsError(f"--at {at}: allowed: {', '.join(PLACES)}")
    if tower_layer is not None and at != "tower":
        raise SettingsError(f"--tower-layer {tower_layer}: allowed: only with --at tower")
    probing.check(tasks, model)
    names = [*dict.fromkeys(["random", *listed(methods)])]
    chosen = grid(names, parse_ratios(ratios), layer=layer, at=at, tower_layer=tower_layer)
    from audiomarathon.report import render, tables
    from audiomarathon.report.comparison_text import notes
    from audiomarathon.results.compare import compare_with
    from audiomarathon.results.systems import systems_of
    from audiomarathon.wings.encoders.probing.towers import check_methods, probe_pruned
    from audiomarathon.wings.encoders.report.tower_sections import pruned_curves

    check_methods(chosen)
    if not any(method.ratio for method in chosen):
        raise SettingsError(f"--ratios {ratios}: nothing is dropped; allowed: at least one ratio above 0")
    probe = partial(probe_pruned, methods=chosen, points=listed(points))
    runs, code = _probed(model, tasks, limit, probing, probe)
    for name in dict.fromkeys(run.checkpoint for run in runs):
        systems = systems_of([run for run in runs if run.checkpoint == name])
        if len(systems) < 2:  # a point before all drops; a line above says so
            continue
        compared = compare_with(systems, None)
        table = tables.comparison(compared, [])
        render.show(replace(table, title=f"{name} {table.title}"))
        for line in notes(compared, {}):
            if not line.startswith("no speed-ups"):  # probes are never timed
                say(line)
    _draw(pruned_curves(runs), probing.results, "pruned")
    return code


def _probed(
    model: str, tasks: str, limit: int, probing: Probing, probe: Callable[..., Iterator[Result]]
) -> tuple[list[Run], int]:
    """Load a model's audio tower and call `probe` on it for each task; return (the probes' runs, exit code)."""
    from audiomarathon.wings.encoders.probing.evaluate import checked_device, read_tasks
    from audiomarathon.wings.encoders.probing.towers import check_labels

    say_once = cache(say)  # print a line once, though it is repeated at every point
    check_labels(chosen := _named(tasks))
    datasets, _missing = read_tasks(chosen, probing.root, limit=limit, say=say_once)
    encoder = load_encoder(f"tower:{model}", probing.arguments, checked_device(probing.device))
    return _done([probe(encoder, task, data, results=probing.results, say=say_once) for task, data in datasets])


def _finish(
    works: Sequence[Iterator[Result]], results: Path, view: Callable[[list[Score]], Table] | None = None
) -> int:
    """Run the probes, print their scores as a table made by `view` (default: all encoders); return the exit code."""
    from audiomarathon.report import render
    from audiomarathon.runs.folder import what_failed
    from audiomarathon.wings.encoders.report.encoder_tables import encoder_scores
    from audiomarathon.wings.encoders.results.scores import task_scores

    runs, code = _done(works)
    if runs:
        render.show((view or encoder_scores)(task_scores(runs)))
        say(f"records in {results}")
    for run in runs:
        if run.folder and run.failed:
            say(f"error: {run.folder}: {what_failed(run.folder, len(run.failed))}")
    return code


def _done(works: Sequence[Iterator[Result]]) -> tuple[list[Run], int]:
    """Run the probes of all tasks; return (their runs, exit code)."""
    from audiomarathon.runs.read import Run
    from audiomarathon.wings.encoders.probing.evaluate import tried

    done, failed = tried(works, say)
    code = int(failed or not all(result.summary["complete"] for result in done))
    return [Run.read(result.folder) for result in done], code


def _draw(charts: Mapping[str, Chart], results: Path, what: str) -> None:
    from audiomarathon.report.charts import save

    for name, chart in charts.items():
        path = results / f"{file_name(re.sub('[^a-zA-Z0-9.]+', '-', name))}-{what}.png"
        say(f"picture: {save(chart, path)}")


def _by_name(arguments: Sequence[str] | None) -> dict[str, str]:
    if wrong := [text for text in arguments or () if "=" not in text]:
        raise SettingsError(f"--encoder-arg {wrong[0]}: allowed: name=value")
    return dict(text.split("=", 1) for text in arguments or ())


def _named(tasks: str, encoder: object = None, *, llm: str = "", tokenizer: str = "") -> list[EncoderTask]:
    from audiomarathon.wings.encoders.home_tasks import encoder_tasks
    from audiomarathon.wings.encoders.xares.tasks import equipped

    return [equipped(task, llm=llm, tokenizer=tokenizer) for task in encoder_tasks(tasks.split(","), encoder)]


def _say_size(task: EncoderTask) -> None:
    from audiomarathon.wings.encoders import zenodo

    plan = zenodo.plan(task)
    say(f"{task.name}: {plan.size / 1e9:.2f} GB to download, licence {plan.licence}, record {task.zenodo}")


def _plan(encoder: Encoder, datasets: Sequence[tuple[EncoderTask, Dataset]], missing: Sequence[EncoderTask]) -> None:
    """Print the time to encode each task, estimated from a few clips, and the download size of missing tasks."""
    import time

    from audiomarathon.wings.encoders.probing.encode import encode_own, hear
    from audiomarathon.wings.encoders.probing.store import FrameStore, Store

    store = Store(cache_folder(), encoder.identity)
    for task, data in datasets:
        clips = [clip for clip in hear(data.clips, encoder.sampling_rate) if not clip.error]
        encoded = FrameStore(store) if task.framed else store
        missing_clips = [clip for clip in clips if not encoded.has(clip.audio)]
        hours, to_encode = (
            sum(clip.samples for clip in group) / encoder.sampling_rate / 3600 for group in (clips, missing_clips)
        )
        tried, begun = missing_clips[:_TRIED], time.perf_counter()
        encode_own(encoder, tried, encoded)
        pace = (time.perf_counter() - begun) / max(1, sum(clip.samples for clip in tried)) * encoder.sampling_rate
        size = len(clips) * encoder.output_dim * 4 / 1e6
        if task.framed:
            size = hours * 7.2 / encoder.hop_size_in_ms * encoder.output_dim  # in half precision
        say(
            f"{task.name}: {counted(len(clips), 'clip')}, {hours:.2f} hours of audio. Encoding the "
            f"missing {to_encode:.2f} hours takes about {to_encode * pace:.2f} hours on this machine "
            f"(twice that if clips differ in length and X-ARES' batches are encoded too), plus the probes; "
            f"cache {size:.1f} MB"
        )
    for task in missing:
        try:
            _say_size(task)
        except AudioMarathonError as error:
            say(f"{task.name}: {error}")


encoder_app = group(
    "Audio encoders: probe them on X-ARES' tasks.",
    {
        "run": run, "check": check, "list": list_, "download": download, "table": table, "compare": compare,
        "report": report, "status": status, "reproduce": reproduce, "import": import_, "demo": demo,
        "layers": layers, "prune": prune,
    },
)  # fmt: skip
