"""Probe an audio LLM at many points: the layers of its audio tower, the projector and the LLM's layers.

One prefill gives a clip's hidden states at all points; their means over time are stored side by side, as columns of one
embedding. The command `encoder layers` compares probes at each point, at the point that is best on validation, and on
learned mixes of layers. The command `encoder prune` measures what a probe loses when a method drops audio tokens, and
compares this with two controls: random tokens, and the positions that the method kept in another clip.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.engine.batches import sample_seed
from audiomarathon.engine.run import Result
from audiomarathon.engine.source import source_hash
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.metrics.statistics import Floats
from audiomarathon.settings import SEED, cache_folder
from audiomarathon.terminal import progress_of
from audiomarathon.wings.encoders.encoder import Encoder
from audiomarathon.wings.encoders.home_tasks import LongTask
from audiomarathon.wings.encoders.probing.clips import Clips, Predictions, Split
from audiomarathon.wings.encoders.probing.encode import Batch, Outcome, SharedEncoder, encode_batch, hear, singly
from audiomarathon.wings.encoders.probing.linear_and_knn import linear_probe, standardised
from audiomarathon.wings.encoders.probing.probe_input import Encoded, Material
from audiomarathon.wings.encoders.probing.run import embed, fit
from audiomarathon.wings.encoders.probing.scores import figure
from audiomarathon.wings.encoders.probing.store import FrameStore, Rows, Store
from audiomarathon.wings.encoders.tower import Tower, TowerEncoder, at_point
from audiomarathon.wings.encoders.xares.task import Dataset, EncoderTask

if TYPE_CHECKING:
    import torch

BEST, TEXT = "best", "text"
SHUFFLED = "shuffled_"
"""Prefix of the name of a control, which keeps in a clip the token positions that a method kept in another clip."""
_STEPS, _LOOK, _RATE = 200, 10, 0.02  # learning layer weights: steps of Adam, steps between validations, rate


@dataclass(frozen=True)
class Points:
    """Embeddings of a task's clips at several points of a tower (an audio LLM), such as the outputs of its layers.

    Attributes
    ----------
    encoded
        The clips; an embedding has the mean hidden states at all points, side by side.
    sizes
        {point: number of its columns in an embedding}.
    kept
        For methods that drop tokens: {hash of a clip's audio: whether each of its tokens was kept, shape (N, 1)}.
    made
        Hash of everything on which a point's embeddings depend. The hash does not depend on which other points are
        stored.
    """

    encoded: Encoded
    tower: Tower
    sizes: Mapping[str, int]
    kept: FrameStore
    made: str

    @property
    def spans(self) -> dict[str, slice]:
        """{point, such as "llm.4": its columns in an embedding}."""
        ends = accumulate(self.sizes.values())
        return {point: slice(end - size, end) for (point, size), end in zip(self.sizes.items(), ends, strict=True)}

    def at(self, point: str, name: str = "", **more: Any) -> Encoded:
        """Return the embeddings at one point, such as "llm.4"; for "", those at all points, side by side.

        Parameters
        ----------
        name
            Name for runs; by default the name of the point.
        more
            Further facts of the run's identity.
        """
        columns, name = self.spans.get(point, slice(None)), name or point

        def part(material: Material) -> Material:
            return material[0], material[1][:, columns]

        whole, known = self.encoded, json.dumps(dict(self.tower.identity), sort_keys=True)
        identity = {**whole.identity, "embeddings": self.made, **more}
        identity["checkpoint"] = f"{hashlib.sha256(known.encode()).hexdigest()[:12]}@{name}"
        ours, released = (
            cache(lambda material=source: part(material())) for source in (whole.per_clip, whole.released)
        )
        encoded = replace(whole, name=f"{self.tower.name}@{name}", identity=identity, per_clip=ours, released=released)
        return replace(encoded, facts={**whole.facts, "point": name})


def read_points(
    encoder: Encoder, task: EncoderTask, data: Dataset, method: Method | None = None, points: Sequence[str] = (),
    like: Mapping[str, Any] | None = None,
) -> Points:  # fmt: skip
    """Encode a task's clips at points (layers, projector, …) of an audio LLM; return the embeddings as :class:`Points`.

    Clips that are in the store are not encoded again, so a killed run can be resumed.

    Parameters
    ----------
    encoder
        An encoder made for any one of the points; all points are read in one pass.
    method
        Compression method that drops or merges audio tokens during the prefill; None for no method.
    points
        Points to store; by default all.
    like
        Only for the control `shuffled_METHOD`: {hash of a clip's audio: whether METHOD kept each token of another
        clip}. In this clip, the tokens at the same positions are kept.
    """
    assert isinstance(encoder.module, TowerEncoder)
    tower = encoder.module.tower
    whole = at_point(tower, "", encoder.device, {name: tower.sizes[name] for name in points or tower.sizes})
    module, more = whole.module, dict[str, Any]()
    assert isinstance(module, TowerEncoder)
    if isinstance(task, LongTask):
        _check_files(task, data)
        samples = task.home.load(data.folder).samples
        asked = json.dumps([(sample.id, task.home.prompt(sample)) for sample in samples])
        more["prompts"] = hashlib.sha256(asked.encode()).hexdigest()[:16]
    if method:
        code = [source_hash(part) for part in method.parts().values()]
        more |= {"method": method.key, **method.parameters(), "code": code}
    if like is not None:
        pairs = json.dumps({audio: kept.tolist() for audio, kept in like.items()}, sort_keys=True)
        more["like"] = hashlib.sha256(pairs.encode()).hexdigest()[:16]
    store = Store(cache_folder(), {**whole.identity, **more})
    kept = FrameStore(store)

    def work(batches: Iterable[Batch], framed: bool) -> Iterator[tuple[Batch, Outcome]]:
        for batch in batches:
            made, lost = Rows(), dict[str, str]()
            for part in singly(batch):
                heard_clip = part.cuts[0][0]
                applied = method
                if like is not None and isinstance(method, TokenPruner):
                    applied = _Given(method.ratio, method.layer, method.at, like[heard_clip.audio])
                module.applied = applied.applied_to if applied else None
                module.asked = (
                    (heard_clip.clip.facts[0], sample_seed(SEED, heard_clip.clip.id)) if "prompts" in more else None
                )
                rows, why = encode_batch(whole, part, framed)
                if rows and method and module.last:
                    kept.add({heard_clip.audio: module.last.kept[:, None].float().numpy()})
                made |= rows
                lost |= why
            yield batch, (made, lost)

    if more:  # each clip has its own prompt or its own tokens to keep
        facts = {field.name: getattr(whole, field.name) for field in fields(Encoder)}
        whole = SharedEncoder(**facts, work=work, copies_on=encoder.device)
    what = f"{task.name} ({tower.name}{f', {SHUFFLED * (like is not None)}{method.label}' if method else ''})"
    with progress_of(len(data.clips), what, "clip") as step:
        made = Store(cache_folder(), {**tower.identity, **more}).folder.name
        return Points(embed(whole, task, data, store, step), tower, module.points, kept, made)


def _check_files(task: EncoderTask, data: Dataset) -> None:
    """Raise DataError if two clips have the same audio file.

    Embeddings are stored by the hash of the audio, but each clip has its own prompt, on which they also depend.
    """
    ids: dict[Any, str] = {}
    for clip in data.clips:
        if (first := ids.setdefault(clip.audio, clip.id)) != clip.id:
            why = f"{first} and {clip.id} are the same file; a tower needs a separate file for each clip"
            raise DataError(f"{task.key}: {why}")


def check_labels(tasks: Iterable[EncoderTask]) -> None:
    """Raise an error if the clips of a task have no labels, which linear probes need.

    Raises
    ------
    SettingsError
        A task has no labels.
    """
    for task in tasks:
        if task.kind != "labels":
            raise SettingsError(f"{task.name}: its clips have no labels; towers are probed on tasks with labels only")


def probe_layers(encoder: Encoder, task: EncoderTask, data: Dataset, *, results: Path, say: Any) -> Iterator[Result]:
    """Fit linear probes at every point (such as a layer) of an audio LLM and on mixes of layers; yield their results.

    A further result is for the best point. The best point, and the number of training steps of a mix, are chosen on the
    validation part of each split. A mix is a weighted mean of the tower's or of the LLM's layers. Its weights are a
    softmax, learned with a linear head on the training part, as in SUPERB (S. Yang et al., Interspeech 2021). The mix
    then gets the same probe as a layer.
    """
    read = read_points(encoder, task, data)
    fits: dict[str, Predictions] = {}

    def fitted(point: str, clips: Clips, splits: Sequence[Split]) -> Predictions:
        if point not in fits:
            fits[point] = linear_probe(clips, splits)
        return fits[point]

    for point in read.sizes:
        encoded = replace(read.at(point), probes={"linear": partial(fitted, point)})
        yield from fit(encoded, results, settings=["linear"], seeds=(), say=say)

    chosen: list[str] = []

    def best(clips: Clips, splits: Sequence[Split]) -> Predictions:
        """Return, for each split, the predictions at the point that is best on the split's validation part."""
        predictions = {
            point: fitted(point, replace(clips, embeddings=clips.embeddings[:, columns]), splits)
            for point, columns in read.spans.items()
            if point != TEXT
        }
        ends = [*accumulate(len(clips.rows(split.test)) for split in splits)][:-1]
        for place in range(len(splits)):
            valid = {point: prediction.valid[place] for point, prediction in predictions.items()}
            chosen.append(max(valid, key=valid.__getitem__))
        parts = [np.split(predictions[point].scores, ends)[place] for place, point in enumerate(chosen)]
        return Predictions(next(iter(predictions.values())).rows, np.concatenate(parts))

    def special(name: str, probe: Any, facts: dict[str, Any]) -> Iterator[Result]:
        embedded = replace(read.at("", name), probes={"linear": probe})
        yield from fit(
            replace(embedded, facts={**embedded.facts, **facts}), results, settings=["linear"], seeds=(), say=say
        )

    yield from special(BEST, best, {"chosen": chosen})
    sides = {
        "tower": [point for point in read.sizes if point.startswith("tower.")],
        "llm": [point for point in read.sizes if point == "projector" or point.startswith("llm.")],
    }
    for side, points in sides.items():
        if len(points) < 2:
            continue
        learned: list[dict[str, float]] = []

        def mixed(clips: Clips, splits: Sequence[Split], points: Any = points, learned: Any = learned) -> Predictions:
            layers = np.stack([standardised(clips.embeddings[:, read.spans[point]]) for point in points])
            made = []
            for split in splits:
                weights = _weights(layers, clips, split)
                learned.append(dict(zip(points, weights.round(4).tolist(), strict=True)))
                made.append(linear_probe(replace(clips, embeddings=np.tensordot(weights, layers, 1)), [split]))
            rows, scores = (
                np.concatenate([getattr(prediction, name) for prediction in made]) for name in ("rows", "scores")
            )
            return Predictions(rows, scores, tuple(prediction.penalties[0] for prediction in made))

        yield from special(f"{side}-mix", mixed, {"weights": learned})


def _weights(layers: Floats, clips: Clips, split: Split) -> Floats:
    """Learn one weight per layer with a linear head, on the training part; return the weights, shape (layers,), sum 1.

    The weights of the training step with the best validation score are kept; among equals, the last.
    """
    import torch
    from torch.nn import functional

    rows, valid = clips.rows(*split.train), clips.rows(split.valid)
    inputs, targets = torch.from_numpy(layers[:, rows]).float(), torch.from_numpy(clips.targets[rows])
    heard = torch.from_numpy(layers[:, valid]).float()
    mix, head = torch.zeros(len(layers), requires_grad=True), torch.nn.Linear(layers.shape[2], clips.classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    adam = torch.optim.Adam([mix, *head.parameters()], lr=_RATE)
    best_weights, most = mix.detach().softmax(0), -1.0
    for step in range(1, _STEPS + 1):
        logits = head(torch.tensordot(mix.softmax(0), inputs, 1))
        if clips.multi_label:
            loss = functional.binary_cross_entropy_with_logits(logits, targets.float())
        else:
            loss = functional.cross_entropy(logits, targets)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        if step % _LOOK == 0:
            with torch.no_grad():
                score = figure(head(torch.tensordot(mix.softmax(0), heard, 1)).double().numpy(), clips.targets[valid])
            if score >= most:  # of equally good steps take the last, since its weights have settled
                best_weights, most = mix.detach().softmax(0), score
    weights: Floats = best_weights.double().numpy()
    return weights


@dataclass(frozen=True)
class _Given(TokenPruner):
    """Pruner of the control `shuffled_METHOD`: keep the token positions that METHOD kept in another clip.

    `other` says for each audio token of the other clip whether it was kept. If the clips differ in length, positions
    are scaled.
    """

    key: ClassVar[str] = "given"
    title: ClassVar[str] = "the positions that were kept in another clip"

    other: Any = ()

    def select(self, evidence: Evidence) -> torch.Tensor:
        """Return the indices of the audio tokens to keep: those at the positions that were kept in the other clip."""
        import torch

        count = len(evidence.positions)
        kept = torch.as_tensor(self.other)[torch.arange(count) * len(self.other) // count]
        return kept.sort(descending=True, stable=True).indices[: evidence.n_keep]


def _others(kept: FrameStore, heard: Sequence[str]) -> dict[str, Any]:
    """Pair each clip with another clip; return {hash of the clip's audio: which tokens of the other clip were kept}.

    The other clip has the same number of audio tokens; if none has, it is the next longer clip (for the longest, the
    shortest). `heard` holds the hashes of the clips' audio.
    """
    there = sorted(
        (audio for audio in {*heard} if kept.has(audio)),
        key=lambda audio_hash: (len(kept.rows[audio_hash]), audio_hash),
    )
    places = list[int]()
    for _, group in groupby(range(len(there)), key=lambda place: len(kept.rows[there[place]])):
        members = [*group]
        places += [*members[1:], members[0]] if len(members) > 1 else [(members[0] + 1) % len(there)]
    return {audio: kept.rows[there[place]][:, 0] for audio, place in zip(there, places, strict=True)}


def check_methods(methods: Iterable[Method], tower: Tower | None = None) -> None:
    """Raise an error if a method changes nothing in the prefill, or if the audio LLM cannot run it.

    Raises
    ------
    SettingsError, MethodError
        A method is a press, which changes nothing before decode, or the model cannot run it (no such layer, …).
    """
    for method in methods:
        if not isinstance(method, (Base, TokenPruner)):
            raise SettingsError(
                f"--methods {method.key} changes only the KV cache after prefill, which no probe reads; allowed: "
                "methods that drop or merge audio tokens (audiomarathon list methods)"
            )
        if tower:
            method.check(tower.lm)


def probe_pruned(
    encoder: Encoder, task: EncoderTask, data: Dataset, *, results: Path, methods: Sequence[Method],
    points: Sequence[str], say: Any,
) -> Iterator[Result]:  # fmt: skip
    """Fit linear probes on the audio tokens that each method keeps, and yield the result of each probe.

    There is a probe per method and point; a point is a place where hidden states are read, such as a layer of the LLM.
    The point `text`, the prompt's last token, is always included.

    For each method that drops tokens after the audio tower, except `random`, a control `shuffled_METHOD` is also
    probed: it keeps the token positions that the method kept in another clip, of the same length if there is one. A
    method that drops hidden states inside the tower has no such control, because it keeps other positions in each
    window of the tower. Its only control is `random`, which keeps as many, chosen at random.
    """
    assert isinstance(encoder.module, TowerEncoder)
    check_methods(methods, tower := encoder.module.tower)
    named = [*points, TEXT] if TEXT in tower.sizes else points  # an encoder-decoder has no prompt with audio
    points = list(dict.fromkeys(map(tower.point, named)))
    noise = np.random.default_rng(0).standard_normal(16 * encoder.sampling_rate).astype(np.float32) * 0.1

    def fitted(read: Points, key: str, label: str, method: Method) -> Iterator[Result]:
        for point in points:
            if point in read.sizes:
                encoded = replace(read.at(point, method=key, **method.parameters()), probes={label: linear_probe})
                yield from fit(encoded, results, settings=[label], seeds=(), say=say)

    for method in methods:
        if isinstance(method, Base) or not method.ratio:
            yield from fitted(read_points(encoder, task, data), method.key, method.label, method)
            continue
        tried = tower.read(noise, method.applied_to)
        there = [point for point in points if point in tried.rows]
        if lacking := [point for point in points if point not in there]:
            done = "dropped or merged" if method.changes_tower else "merged"
            say(f"{method.label}: left out {', '.join(lacking)}, since tokens are {done} only after these points")
        read = read_points(encoder, task, data, method, there)
        yield from fitted(read, method.key, method.label, method)
        if not tried.merged and not method.changes_tower and method.key != "random":
            heard = [heard_clip.audio for heard_clip in hear(data.clips, encoder.sampling_rate)]
            read = read_points(encoder, task, data, method, there, _others(read.kept, heard))
            yield from fitted(read, SHUFFLED + method.key, SHUFFLED + method.label, method)
