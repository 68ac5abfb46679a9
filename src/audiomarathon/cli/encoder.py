"""`audiomarathon encoder`: probe frozen audio encoders on X-ARES' tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audiomarathon.cli.command import group, with_executor
from audiomarathon.cli.options import DeviceName, Runs, Seed, argument, listed, option
from audiomarathon.cli.output import one_by_one, say
from audiomarathon.cli.report import report
from audiomarathon.cli.status import status
from audiomarathon.encoders.encoder import Encoder, all_encoders, load_encoder
from audiomarathon.engine.ray_options import Ray
from audiomarathon.errors import AudioMarathonError, EncoderError, SettingsError
from audiomarathon.files import file_name
from audiomarathon.models.registry import all_models
from audiomarathon.settings import cache_folder
from audiomarathon.text import counted

if TYPE_CHECKING:
    from audiomarathon.benchmarks.xares.task import Dataset, EncoderTask
    from audiomarathon.engine.run import Result
    from audiomarathon.report.charts import Chart
    from audiomarathon.report.render import Table
    from audiomarathon.results.encoders import Score
    from audiomarathon.runs.read import Run

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
        "Causal LM of the recognition probe: a hub id or folder; X-ARES uses Qwen/Qwen2.5-0.5B.", envvar="XARES_LLM"
    ),
]
_Tokenizer = Annotated[
    str, option("Tokenizer of captions: a hub id or folder (default: BERT's).", envvar="XARES_TOKENIZER")
]
_Model = Annotated[str, argument("An audio LLM: audiomarathon list models.")]
_Limit = Annotated[int, option("Clips per part, at least one per class; 0 = all.", min=0)]
_RESULTS, _POINTS = Path("results"), "llm.2,llm.last"
_TRIED = 20  # clips to encode for a time estimate


@with_executor
def run(
    encoder: _Encoder,
    tasks: _Tasks = "all",
    protocol: Annotated[str, option("both, standard or as_published (X-ARES 0.1.3).")] = "both",
    data: _Data = None,
    results: _Results = _RESULTS,
    limit: _Limit = 0,
    mini: Annotated[bool, option("Use X-ARES' small variants of its large tasks.", "--mini")] = False,
    seeds: Annotated[int, option("Number of seeds for trained probes (X-ARES' and Clotho's).", min=1, max=100)] = 5,
    llm: _Llm = "",
    tokenizer: _Tokenizer = "",
    encoder_arg: _Arguments = None,
    device: DeviceName = "auto",
    allow_bad_rows: Annotated[bool, option("Continue if over 1 % of rows are bad.", "--allow-bad-rows")] = False,
    plan: Annotated[bool, option("Print available data and estimated time, and stop.", "--plan")] = False,
    ray: Ray | None = None,
) -> int:
    """Probe an encoder: encode each clip once, then fit our probes and X-ARES' own.

    Examples:
    audiomarathon encoder run hf:openai/whisper-base --tasks esc50,gtzan_genre
    audiomarathon encoder run my_encoder.py --tasks speech --limit 200
    audiomarathon encoder run control:logmel --tasks esc50          # what any encoder should beat

    Trust linear (shrinkage LDA; ridge if clips have several labels) and kNN; both have 95 % intervals. X-ARES MLP and
    kNN are its released probes with their faults; compare them only with its published tables. Embeddings are kept in
    $AUDIOMARATHON_CACHE, so the same command resumes and encodes nothing twice. With --executor ray, package, encoder
    and data must have the same paths on every machine.
    """
    from audiomarathon.probing.evaluate import check_protocol, probe_task, read_tasks
    from audiomarathon.probing.run import found_for
    from audiomarathon.report.encoder_tables import encoder_scores

    check_protocol(protocol)
    loaded = _loaded(encoder, encoder_arg, device)
    chosen, root = _named(tasks, loaded.module, llm=llm, tokenizer=tokenizer), _root(data)
    there, missing = read_tasks(chosen, root, limit=limit, mini=mini, plan=plan, bad=allow_bad_rows, say=say)
    if plan:
        for task, _ in there:
            found_for(task, protocol, say)
        _plan(loaded, there, missing)
        return 0
    work = partial(probe_task, results=results, protocol=protocol, seeds=seeds, say=say)
    with _shared(loaded, encoder, encoder_arg, device, ray) as shared:
        return _finish([work(shared, *one) for one in there], results, encoder_scores)


def check(encoder: _Encoder, encoder_arg: _Arguments = None, device: DeviceName = "auto", long: bool = False) -> int:
    """Check that an encoder follows X-ARES' interface, and report other findings.

    Example: audiomarathon encoder check my_encoder.py

    Exit code 1: it breaks one of X-ARES' ten rules, or its output is not finite. Findings alone give 0. --long also
    tests ten minutes of audio.
    """
    from audiomarathon.encoders.check import check_encoder
    from audiomarathon.probing.evaluate import checked_device

    try:
        checked = check_encoder(load_encoder(encoder, _given(encoder_arg), checked_device(device)), long=long)
    except EncoderError as error:
        say(f"error: {error}")
        return 1
    for line in checked.errors:
        say(f"error: {line}")
    for finding in checked.findings:
        typer.echo(f"finding: {finding.name}: {finding.line}")
    if not checked.errors:
        typer.echo("the encoder follows X-ARES' interface")
    return int(bool(checked.errors))


def list_(what: Annotated[str, argument("tasks or encoders.")] = "tasks") -> None:
    """List the tasks, or the named encoders."""
    from audiomarathon.benchmarks.xares.tasks import TASKS
    from audiomarathon.report import render

    if what not in ("tasks", "encoders"):
        raise SettingsError(f"unknown list {what!r}; allowed: tasks, encoders")
    if what == "encoders":
        rows: list[dict[str, object]] = [{"key": one.key} for one in all_encoders()]
        rows += [{"key": f"tower:{one.key}"} for one in all_models() if not one.remote]
    else:
        rows = [
            {
                "task": one.name,
                "X-ARES": one.formal_name,
                "domain": one.domain,
                "classes": (one.classes if isinstance(one.classes, int) else len(one.classes)) or None,
                "test_clips": one.n_test * (len(one.parts) if one.folds else 1) or None,
                "zenodo": "private" if one.private else one.zenodo,
                "what": one.title,
            }
            for one in TASKS
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
    from audiomarathon.data import zenodo
    from audiomarathon.probing.evaluate import data_root

    root, chosen = data or data_root(), _named(tasks)
    if source and len(chosen) > 1:
        raise SettingsError(f"--from: it holds one task's files, but {len(chosen)} tasks are named; name one")

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
    seed: Seed = 42,
    picture: Annotated[
        Path | None, option("Draw towers against their models' own scores, where both are there: .png, .svg.")
    ] = None,
) -> None:
    """Compare encoders by one probe, paired on the clips of both; Holm's p corrects for the number of tasks.

    Examples:
    audiomarathon encoder compare results --probe linear --against logmel
    audiomarathon encoder compare results --picture towers.png      # tower:MODEL's scores against MODEL's own
    """
    from audiomarathon.benchmarks.xares.task import EncoderTask
    from audiomarathon.report import render, tables
    from audiomarathon.report.charts import save
    from audiomarathon.report.comparison_text import notes
    from audiomarathon.report.tower_sections import standing_chart, standing_table
    from audiomarathon.results.compare import compare as compare_systems
    from audiomarathon.results.systems import find_reference, systems_of
    from audiomarathon.results.towers import standings
    from audiomarathon.runs.read import read_runs

    found = read_runs(runs)
    standing = standings(found)
    if standing:
        render.show(standing_table(standing))
    if picture:
        if not standing:
            raise SettingsError(
                f"--picture {picture}: no model has both its tower's linear probe and its own runs there; next: "
                "audiomarathon run TASK --model MODEL, into the same results"
            )
        say(f"picture: {save(standing_chart(standing), picture)}")
    probed = [run for run in found if isinstance(run.task, EncoderTask) and run.method == probe]
    systems = systems_of(probed) if probed else []
    if len(systems) < 2 and standing:
        return
    if len(systems) < 2:
        names = ", ".join(one.checkpoint for one in systems) or "none"
        raise SettingsError(f"encoders with the probe {probe}: {names}; compare needs at least two")
    named = against and next((f"{one.checkpoint} {probe}" for one in systems if one.checkpoint == against), against)
    compared = compare_systems(systems, find_reference(systems, named), seed=seed)
    render.show(tables.comparison(compared, []))
    for line in notes(compared, {}):
        say(line)


def table(runs: Runs) -> None:
    """Show stored scores: every encoder on every task, and its means."""
    from audiomarathon.benchmarks.xares.task import EncoderTask
    from audiomarathon.report import render
    from audiomarathon.report.encoder_tables import encoder_scores
    from audiomarathon.results.encoders import task_scores
    from audiomarathon.runs.read import read_runs

    found = [run for run in read_runs(runs) if isinstance(run.task, EncoderTask)]
    render.show(encoder_scores(task_scores(found)))


@with_executor
def reproduce(
    encoder: Annotated[str, argument("dasheng, wav2vec2, whisper or data2vec.")],
    tasks: _Tasks = "all",
    table: Annotated[
        str, option("Published table: readme, or first (of X-ARES' first README, on mini sets).")
    ] = "readme",
    data: _Data = None,
    results: _Results = _RESULTS,
    llm: _Llm = "",
    tokenizer: _Tokenizer = "",
    encoder_arg: _Arguments = None,
    device: DeviceName = "auto",
    ray: Ray | None = None,
) -> int:
    """Run a baseline of X-ARES by its protocol, and show its published scores beside ours.

    Example: audiomarathon encoder reproduce whisper --tasks esc50,gtzan_genre
    """
    from audiomarathon.benchmarks.xares.published import ENCODERS, TABLES, published
    from audiomarathon.probing.evaluate import probe_task, read_tasks
    from audiomarathon.report.encoder_tables import beside_published
    from audiomarathon.runs.read import REPRODUCED

    if encoder not in ENCODERS or table not in TABLES:
        allowed = f"{', '.join(ENCODERS)}; --table {', '.join(TABLES)}"
        raise SettingsError(f"the table {table!r} has no encoder {encoder!r}; allowed: {allowed}")
    name, folder = f"baseline:{encoder}", results / f"{REPRODUCED}{table}"
    loaded = _loaded(name, encoder_arg, device)
    chosen = _named(tasks, loaded.module, llm=llm, tokenizer=tokenizer)
    if unknown := [task.name for task in chosen if published(table, encoder, task.name)[0] is None]:
        say(f"left out: {', '.join(unknown)}: not in the table {table!r}")
    chosen = [task for task in chosen if task.name not in unknown]
    there, _missing = read_tasks(chosen, _root(data), mini=table == "first", say=say)
    with _shared(loaded, name, encoder_arg, device, ray) as shared:
        works = [probe_task(shared, task, found, folder, protocol="as_published", say=say) for task, found in there]
        return _finish(works, folder, partial(beside_published, encoder=encoder, table=table))


def import_(
    env: Annotated[Path, argument("X-ARES' env folder, or a task's folder in it.")],
    encoder: Annotated[str, option("Class name of the encoder, as in X-ARES' folder names.")],
    tasks: _Tasks = "all",
    results: _Results = _RESULTS,
    tokenizer: _Tokenizer = "",
) -> int:
    """Probe embeddings that X-ARES stored (wds-encoded-*.tar). Their runs are marked, because their encoder is unknown.

    Example: audiomarathon encoder import env --encoder DashengEncoder --tasks esc50
    """
    from audiomarathon.probing.imported import probe_stored
    from audiomarathon.report.encoder_tables import encoder_scores

    works = probe_stored(env, encoder, _named(tasks, tokenizer=tokenizer), results, say=say)
    return _finish(works, results, encoder_scores)


def demo(results: _Results = Path("encoder_demo")) -> int:
    """Probe the control encoders on synthetic sounds and write a page; offline, under a minute."""
    from audiomarathon.embedded.sounds import write_task
    from audiomarathon.probing.evaluate import probe_task
    from audiomarathon.report.encoder_tables import encoder_scores

    (task,) = _named(str(write_task(results / "env")))
    data = task.read(results / "env")
    loaded = [_loaded(f"control:{name}", (), "cpu") for name in ("logmel", "random", "length-loudness", "noise")]
    works = [probe_task(one, task, data, results, protocol="both", say=say) for one in loaded]
    code = _finish(works, results, encoder_scores)
    report([results], output=results / "report.html", audio="embed")
    return code


def layers(
    model: _Model, tasks: _Tasks, data: _Data = None, results: _Results = _RESULTS, limit: _Limit = 0,
    encoder_arg: _Arguments = None, device: DeviceName = "auto",
) -> int:  # fmt: skip
    """Probe every layer of an audio LLM: its tower's, what enters its LLM, and its LLM's, at the audio tokens.

    Examples:
    audiomarathon encoder layers qwen2-audio --tasks esc50,gtzan_genre
    audiomarathon encoder layers qwen2-audio --tasks long --data DATA     # AudioMarathon's own clips, by their class

    Each clip is read in one prefill, and the means of all layers are kept: a run that was stopped, given again, goes
    on. MODEL@POINT is one layer's linear probe; MODEL@best takes, in each split, the layer that is best on validation;
    MODEL@tower-mix and MODEL@llm-mix learn a weight for each layer. MODEL@text is the prompt's last token. Pictures go
    into RESULTS, a curve a task with 95 % intervals.
    """
    from audiomarathon.probing.towers import probe_layers
    from audiomarathon.report import render
    from audiomarathon.report.tower_sections import layer_curves, layer_table

    runs, code = _probed(model, tasks, data, limit, encoder_arg, device, partial(probe_layers, results=results))
    render.show(layer_table(runs))
    _draw(layer_curves(runs), results, "layers")
    return code


def prune(
    model: _Model, tasks: _Tasks,
    methods: Annotated[str, option("Methods that drop or merge audio tokens, joined by commas.")] = "fast_v",
    ratios: Annotated[str, option("Fractions removed: first:last:step, or a list 0.1,0.5.")] = "0.5,0.9",
    points: Annotated[str, option("tower.I, tower, projector, llm.K or llm.last; text is added.")] = _POINTS,
    layer: Annotated[int, option("Layer at which tokens are dropped.", min=0)] = 2,
    at: Annotated[str, option("layer, or input: before the LLM.")] = "layer",
    data: _Data = None, results: _Results = _RESULTS, limit: _Limit = 0, encoder_arg: _Arguments = None,
    device: DeviceName = "auto",
) -> int:  # fmt: skip
    """Probe what is left of the sound after audio tokens are dropped, beside nothing dropped, on the same clips.

    Examples:
    audiomarathon encoder prune qwen2-audio --tasks esc50 --methods fast_v,dart --ratios 0.5:0.9:0.2
    audiomarathon encoder prune qwen2-audio --tasks long/desed --data DATA --points tower,llm.last

    A point's embedding is the mean over the audio tokens that are kept. Differences to base are paired, with 95 %
    intervals. Controls: random drops as many by chance; shuffled_METHOD keeps the places that METHOD kept in another
    clip; the point text is the prompt's last token. KV presses change nothing before decode and are refused.
    With runs of the model itself on the same clips and settings, audiomarathon report tells what is lost, and what the
    model does not use.
    """
    from audiomarathon.engine.sweep import grid, parse_ratios
    from audiomarathon.probing.towers import check_methods, probe_pruned
    from audiomarathon.report import render, tables
    from audiomarathon.report.comparison_text import notes
    from audiomarathon.report.tower_sections import pruned_curves
    from audiomarathon.results.compare import compare_with
    from audiomarathon.results.systems import systems_of

    if at not in ("layer", "input"):
        raise SettingsError(f"--at {at}: allowed: layer, input")
    chosen = grid([*dict.fromkeys(["random", *listed(methods)])], parse_ratios(ratios), layer=layer, at=at)
    check_methods(chosen)
    if not any(method.ratio for method in chosen):
        raise SettingsError(f"--ratios {ratios}: nothing is dropped; allowed: at least one ratio above 0")
    work = partial(probe_pruned, results=results, methods=chosen, points=listed(points))
    runs, code = _probed(model, tasks, data, limit, encoder_arg, device, work)
    for name in dict.fromkeys(run.checkpoint for run in runs):
        compared = compare_with(systems_of([run for run in runs if run.checkpoint == name]), None)
        table = tables.comparison(compared, [])
        render.show(replace(table, title=f"{name} {table.title}"))
        for line in notes(compared, {}):
            if not line.startswith("no speed-ups"):  # nothing is timed
                say(line)
    _draw(pruned_curves(runs), results, "pruned")
    return code


def _probed(
    model: str, tasks: str, data: Path | None, limit: int, arguments: Sequence[str] | None, device: str,
    work: Callable[..., Iterator[Result]],
) -> tuple[list[Run], int]:  # fmt: skip
    """Load a model, do the work on each task, and return the runs and the exit code."""
    from audiomarathon.probing.evaluate import checked_device, read_tasks, tried
    from audiomarathon.probing.towers import check_labels
    from audiomarathon.runs.read import Run

    tell = cache(say)  # each line once, for many points
    check_labels(chosen := _named(tasks))
    there, _missing = read_tasks(chosen, _root(data), limit=limit, say=tell)
    encoder = load_encoder(f"tower:{model}", _given(arguments), checked_device(device))
    done, failed = tried([work(encoder, task, found, say=tell) for task, found in there], say)
    return [Run.read(one.folder) for one in done], _code(done, failed)


def _finish(works: Sequence[Iterator[Result]], results: Path, view: Callable[[list[Score]], Table]) -> int:
    """Run the probes, show a view of their scores, and return the exit code."""
    from audiomarathon.probing.evaluate import tried
    from audiomarathon.report import render
    from audiomarathon.results.encoders import task_scores
    from audiomarathon.runs.folder import what_failed
    from audiomarathon.runs.read import Run

    done, failed = tried(works, say)
    if done:
        render.show(view(task_scores([Run.read(one.folder) for one in done])))
        say(f"records in {results}")
    for one in done:
        if errors := one.summary["errors"]:
            say(f"error: {one.folder}: {what_failed(one.folder, errors)}")
    return _code(done, failed)


def _code(done: Sequence[Result], failed: bool) -> int:
    return int(failed or not all(one.summary["complete"] for one in done))


def _draw(charts: Mapping[str, Chart], results: Path, what: str) -> None:
    from audiomarathon.report.charts import save

    for name, chart in charts.items():
        path = results / f"{file_name(re.sub('[^a-zA-Z0-9.]+', '-', name))}-{what}.png"
        say(f"picture: {save(chart, path)}")


def _loaded(name: str, arguments: Sequence[str] | None, device: str) -> Encoder:
    from audiomarathon.probing.evaluate import ready

    return ready(name, _given(arguments), device)


def _shared(
    loaded: Encoder, name: str, arguments: Sequence[str] | None, device: str, ray: Ray | None
) -> AbstractContextManager[Encoder]:
    """Return the encoder, run by Ray's workers if asked for."""
    if ray is None:
        return nullcontext(loaded)
    from audiomarathon.probing.ray_encoder import shared_out

    return shared_out(loaded, name, _given(arguments), device, ray, say)


def _given(arguments: Sequence[str] | None) -> dict[str, str]:
    if odd := [one for one in arguments or () if "=" not in one]:
        raise SettingsError(f"--encoder-arg {odd[0]}: allowed: name=value")
    return dict(one.split("=", 1) for one in arguments or ())


def _named(tasks: str, encoder: object = None, *, llm: str = "", tokenizer: str = "") -> list[EncoderTask]:
    from audiomarathon.benchmarks.long import encoder_tasks
    from audiomarathon.benchmarks.xares.tasks import equipped

    return [equipped(task, llm=llm, tokenizer=tokenizer) for task in encoder_tasks(tasks.split(","), encoder)]


def _root(data: Path | None) -> Path:
    from audiomarathon.embedded import without_data
    from audiomarathon.probing.evaluate import data_root

    return without_data.data_root(str(data or "")) or data_root()


def _say_size(task: EncoderTask) -> None:
    from audiomarathon.data import zenodo

    said = zenodo.plan(task)
    say(f"{task.name}: {said.size / 1e9:.2f} GB to download, licence {said.licence}, record {task.zenodo}")


def _plan(encoder: Encoder, there: Sequence[tuple[EncoderTask, Dataset]], missing: Sequence[EncoderTask]) -> None:
    """Estimate the encoding time from some clips, and list missing downloads."""
    import time

    from audiomarathon.probing.encode import encode_own, hear
    from audiomarathon.probing.store import FrameStore, Store

    store = Store(cache_folder(), encoder.identity)
    for task, data in there:
        heard = [one for one in hear(data.clips, encoder.sampling_rate) if not one.error]
        kept = FrameStore(store) if task.framed else store
        left = [one for one in heard if not kept.has(one.audio)]
        hours, to_do = (sum(one.samples for one in group) / encoder.sampling_rate / 3600 for group in (heard, left))
        some, begun = left[:_TRIED], time.perf_counter()
        encode_own(encoder, some, kept)
        pace = (time.perf_counter() - begun) / max(1, sum(one.samples for one in some)) * encoder.sampling_rate
        size = len(heard) * encoder.output_dim * 4 / 1e6
        size = hours * 7.2 / encoder.hop_size_in_ms * encoder.output_dim if task.framed else size  # in half precision
        say(
            f"{task.name}: {counted(len(heard), 'clip')}, {hours:.2f} hours, {to_do:.2f} not encoded yet: "
            f"about {to_do * pace:.2f} hours here, without the probes "
            f"(twice that with X-ARES' batches if clips differ in length); cache {size:.1f} MB"
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
