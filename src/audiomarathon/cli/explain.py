"""`audiomarathon explain`: draw which moments of a sample's audio each method keeps."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from audiomarathon.cli.command import with_settings
from audiomarathon.cli.options import (
    PICTURES,
    Model,
    argument,
    complete_methods,
    complete_tasks,
    listed,
    option,
    output_file,
)
from audiomarathon.cli.output import say
from audiomarathon.errors import DataError, MethodError, SettingsError
from audiomarathon.models.registry import get_model
from audiomarathon.records import Record
from audiomarathon.settings import RunSettings, own_settings
from audiomarathon.terminal import progress_of
from audiomarathon.text import did_you_mean

if TYPE_CHECKING:
    from audiomarathon.benchmarks.task import Sample, Task
    from audiomarathon.compression.method import Method
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Prompt
    from audiomarathon.report.explain import Strip

_SETTINGS = (
    "layer", "at", "tower_layer", "schedule", "scope", "data", "model_path", "device", "dtype", "max_new_tokens",
    "seed", "language",
)  # fmt: skip
_PLACES = {"input": "\nat input", "tower": "\nin tower"}
_SHORTEST_MOMENT = 0.01  # in seconds, since each moment takes a prefill
_MAX_NEW_TOKENS = 64  # token limit of a reply about the user's own files


@dataclass(frozen=True)
class _Question:
    """The question to explain, with its clips: a task's sample, or (without a task) about the user's own files."""

    title: str
    prompt: str
    clips: tuple[Path, ...]
    task: Task | None = None
    sample: Sample | None = None

    @property
    def events(self) -> tuple[tuple[float, float], ...]:
        """(Onset, length) in seconds of the event that decides the answer, in the first clip; empty if unknown."""
        return (self.sample.event,) if self.sample and self.sample.event else ()

    def judge(self, reply: str) -> tuple[str, bool | None]:
        """Return (the text to show for a reply, whether the reply is right, or None if unknown)."""
        if self.task is None or self.sample is None:
            return reply, None
        scorer, reference = self.task.scorer, self.task.reference(self.sample)
        if not scorer.instant:
            return reply.strip(), None
        (verdict,) = scorer.verdicts([Record(self.sample.id, self.sample.cluster, reply=reply, reference=reference)])
        shown, right = scorer.shown(verdict), scorer.right(verdict)
        is_clear = right is not None and not scorer.unparsed(verdict)
        return shown if is_clear else f"{shown}: {reply.strip()}", right


@with_settings(*_SETTINGS, read=own_settings)
def explain(
    settings: RunSettings,
    sample: Annotated[list[str], argument("A sample's id (or task:id), or your own audio files.")],
    methods: Annotated[
        str, option("Methods with ratios, joined by commas; base is added.", complete=complete_methods)
    ] = "fast_v:0.5,frame:0.5,random:0.5",
    model: Model = "embedded",
    task: Annotated[str | None, option("The sample's task.", complete=complete_tasks)] = None,
    prompt: Annotated[str | None, option("Question about your own files.")] = None,
    occlude: Annotated[
        float,
        option("Also silence each moment of this many seconds, and draw how much base's reply depends on it; 0 = off."),
    ] = 0.0,
    output: Annotated[Path, output_file("Picture to write.", "explain.png", *PICTURES)] = Path("explain.png"),
) -> None:
    """Draw which moments of a sample's audio each method keeps, with the model's reply.

    Examples:
    audiomarathon explain desed:mini_desed_03 --methods fast_v:0.5,snapkv:0.5 -o explain.png
    audiomarathon explain desed:mini_desed_03 --methods fast_v:0.5,keep_loud:0.5 --occlude 1
    audiomarathon explain talk.wav --prompt "Who speaks?" --model qwen2.5-omni-3b --methods dart:0.7

    With the embedded model and no data root, samples come from the mini benchmark.
    """
    from audiomarathon.audio import decode as audio
    from audiomarathon.compression.external import Foreign
    from audiomarathon.compression.registry import as_method
    from audiomarathon.engine.setup import check_layers

    if occlude and not _SHORTEST_MOMENT <= occlude < float("inf"):
        least = f"0, or the seconds of a moment from {_SHORTEST_MOMENT:g}, such as 1"
        raise SettingsError(f"--occlude {occlude:g}: allowed: {least}")
    names = ["base", *(name for name in listed(methods) if name != "base")]
    if no_ratio := [name for name in names[1:] if ":" not in name]:
        raise SettingsError(f"--methods {no_ratio[0]}: add a ratio, such as {no_ratio[0]}:0.5")
    chosen = [as_method(name, settings) for name in names]
    check_layers(settings.model_path or get_model(model).checkpoint, chosen)
    question = _question(sample, task, prompt, model, settings)
    for path in question.clips:
        audio.probe(path)
    from audiomarathon.engine.answer import generations
    from audiomarathon.engine.batches import sample_seed
    from audiomarathon.engine.engine import open_local
    from audiomarathon.engine.setup import check_able, find_setup
    from audiomarathon.models.prompt import Prompt, by_clip
    from audiomarathon.report.explain import Clip, Strip, draw, shares_kept

    setup = find_setup(model, settings, chosen)
    language = settings.language or (question.task.language if question.task else "en")
    if question.task is not None:
        check_able(setup.spec, setup.checkpoint.path, question.task, settings)
    elif setup.spec.load_family().transcribes_only:
        setup.spec.load_family().check_language(setup.checkpoint.path, language)
    lm = open_local(model, settings, chosen, setup=setup).lm
    waves = tuple(audio.decode(path, lm.sampling_rate) for path in question.clips)
    clips = [
        Clip(path.name, wave, lm.sampling_rate, question.events if index == 0 else ())
        for index, (path, wave) in enumerate(zip(question.clips, waves, strict=True))
    ]
    id_ = question.title.splitlines()[0].partition(":")[2]
    seed = sample_seed(settings.seed, id_)
    transcribes = question.task is not None and question.task.transcribes
    asked = Prompt(question.prompt, waves, seed, transcribes, language)
    inputs = lm.prepare([asked])
    limit = settings.max_new_tokens or (question.task.max_new_tokens if question.task else _MAX_NEW_TOKENS)
    strips, tokens = list[Strip](), list[tuple[int, ...]]()
    for method, generation in generations(lm, inputs, chosen, limit, keep_entries=True):
        if isinstance(method, Foreign) and not generation.kept_entries:
            raise MethodError(f"--methods: the entries that {method.label} keeps are unknown (see above); leave it out")
        shares = by_clip(shares_kept(inputs, generation), inputs, [clip.seconds for clip in clips])
        reply, right = question.judge(generation.replies[0].text)
        key, label = _named(method)
        tokens.append(generation.replies[0].token_ids)
        strips.append(Strip(key, label, shares, reply, right))
    if occlude:
        strips = _with_evidence(lm, asked, tokens[0], occlude, strips)
    path = draw(question.title, clips, strips, get_model(model).tokens_per_second, output)
    say(f"picture: {path}")


def _named(method: Method) -> tuple[str, str]:
    """Return (a method's key, its label in the picture).

    The label has the method's key, its ratio, and where it drops audio tokens (at the input, in the tower or in steps).
    Joined methods (pruner + press) have both labels.
    """
    from audiomarathon.compression.composed import Composed
    from audiomarathon.compression.external import Foreign

    parts: list[Any] = [method.first, method.second] if isinstance(method, Composed) else [method]
    where = [
        "\nin steps" if getattr(part, "schedule", ()) else _PLACES.get(getattr(part, "at", ""), "") for part in parts
    ]
    label = "\n+ ".join(f"{part.key} {part.ratio:g}{place}" for part, place in zip(parts, where, strict=True))
    key = "+".join(part.key for part in parts)
    return key, key if key == "base" else method.label if isinstance(method, Foreign) else label


def _with_evidence(
    lm: AudioLM, prompt: Prompt, reply: Sequence[int], seconds: float, strips: Sequence[Strip]
) -> list[Strip]:
    from audiomarathon.engine.occlusion import losses_when_hidden
    from audiomarathon.report.explain import evidence_strip

    moments = sum(math.ceil(len(clip) / round(seconds * lm.sampling_rate)) for clip in prompt.clips)
    with progress_of(moments, "moments hidden", "moment") as step:
        losses = losses_when_hidden(lm, prompt, reply, seconds, step)
    evidence, told = evidence_strip(losses, seconds, strips)
    return [evidence, *told]


def _question(given: list[str], task: str | None, prompt: str | None, model: str, settings: RunSettings) -> _Question:
    from audiomarathon.benchmarks import all_tasks

    head, _, rest = given[0].partition(":")
    tasks = {name.lower() for known in all_tasks() for name in (known.key, *known.aliases)}
    if task is None and rest and head.lower() in tasks:
        task, given = head, [rest, *given[1:]]
    if task is not None:
        if len(given) > 1:
            raise SettingsError(f"name one sample; found {len(given)} names")
        return _of_task(given[0], task, model, settings)
    spec = get_model(model)
    if missing := [name for name in given if not Path(name).exists()]:
        raise SettingsError(f"{missing[0]}: no such file; to name a sample of a task, write task:id or add --task")
    if not spec.remote and spec.load_family().transcribes_only:
        if prompt is not None:
            raise SettingsError(f"--prompt: {spec.key} can only transcribe and reads no question; leave it out")
        prompt = "transcript"
    if prompt is None:
        raise SettingsError(f"{given[0]}: --prompt is required for your own audio file")
    clips = tuple(Path(name) for name in given)
    return _Question(f"{', '.join(clip.name for clip in clips)}\n{prompt}", prompt, clips)


def _of_task(id_: str, name: str, model: str, settings: RunSettings) -> _Question:
    from audiomarathon.benchmarks import get_task, task_folder
    from audiomarathon.benchmarks.locate import path_variable
    from audiomarathon.embedded.without_data import MINI, data_root

    task = get_task(name)
    root = settings.data
    if not root and model == "embedded" and not os.environ.get(path_variable(task)):
        root = MINI
    folder = task_folder(task, data_root(root), os.environ)
    samples = {sample.id: sample for sample in task.load(folder).samples}
    if id_ not in samples:
        shown = ", ".join(list(samples)[:3])
        raise DataError(f"{task.key}: no sample {id_!r}{did_you_mean(id_, samples)}; of {len(samples)}: {shown}, …")
    sample = samples[id_]
    if not sample.clips:
        raise DataError(f"{task.key}: {id_} has no clip to draw; name another sample")
    title = f"{task.key}:{sample.id}\n{sample.question or task.title}\nright answer: {sample.right}"
    return _Question(title, task.prompt(sample), sample.clips, task, sample)
