"""Capture a model's attention on a sample, and reduce it to a small summary while it is computed.

The capture is a `generate` call of its own, after the timed call. In each layer, attention is computed again in float32
from the layer's queries and keys, a few query rows at a time, and reduced. Memory is O(H·S), never S×S.
"""

from __future__ import annotations

import functools
import shutil
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audiomarathon.benchmarks.task import Sample
from audiomarathon.compression.attention import Attention as Given
from audiomarathon.compression.attention import attention_watched
from audiomarathon.compression.method import Method
from audiomarathon.engine.batches import Plan, heard
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.errors import ANY_ERROR, MethodError, RecordError, SettingsError, told
from audiomarathon.files import append_line, file_name, writing
from audiomarathon.fingerprint import same
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.layers import window_of
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Inputs, Prompt, by_clip
from audiomarathon.models.trace import Trace
from audiomarathon.runs.attention import BLOCKS, FOLDER, INDEX, ROWS, TOP, WHOLE, Attention, captured, index_of
from audiomarathon.runs.folder import Job
from audiomarathon.runs.record_line import pack
from audiomarathon.settings import RunSettings
from audiomarathon.text import Say

_CHUNK = 128  # number of query rows whose attention is held in memory at one time
_CACHED = 1 << 20  # numbers that fit into a CPU's caches; on a CPU, this limits the query rows at one time
LONGEST_FULL = 4096  # longest prompt in tokens whose whole maps are written without --yes (1.9 GB for 28 layers)


@dataclass(frozen=True)
class Parts:
    """The part of the prompt (clip 1, question, template, …) that each prompt position belongs to.

    Attributes
    ----------
    groups
        Names of the parts, such as `clip 1` and `question`.
    group_of
        Shape (S + 1,): index into `groups` for each prompt position; the last entry stands for all generated tokens.
    question
        Shape (S,): True at the question's positions.
    clips
        Number of audio tokens of each clip.
    """

    groups: tuple[str, ...]
    group_of: torch.Tensor
    question: torch.Tensor
    clips: tuple[int, ...]


def parts_of(lm: AudioLM, inputs: Inputs, prompt: Prompt) -> Parts:
    """Return :class:`Parts`: the part of the prompt (template, a clip, or the question) that each position belongs to.

    If the question's text is not in the prompt (some families word a request for a transcript themselves), all text
    after the audio counts as the question.

    Parameters
    ----------
    inputs
        A batch of only this prompt, prepared by :meth:`AudioLM.prepare`.
    """
    heard = inputs.audio_mask[0].cpu()
    places = heard.nonzero().flatten()
    seconds = [len(clip) / lm.sampling_rate for clip in prompt.clips]
    spans = by_clip(places.numpy(), inputs, seconds) if seconds else ()
    names = ("first token", "template before", *(f"clip {number}" for number in range(1, len(spans) + 1)))
    names = (*names, "question", "rest of the template", "generated")
    asked, rest = len(names) - 3, len(names) - 2
    group_of = torch.full((len(heard) + 1,), rest)
    start, end = _found(lm, inputs, prompt.text) or (int(places[-1]) + 1 if len(places) else 0, len(heard))
    group_of[: min([start, *places[:1].tolist()])] = 1
    group_of[start:end] = asked
    for number, span in enumerate(spans, start=2):
        group_of[torch.as_tensor(span)] = number
    group_of[0], group_of[-1] = 0, len(names) - 1
    is_question = torch.zeros(len(heard), dtype=torch.bool)
    is_question[start:end] = True
    return Parts(names, group_of.to(lm.device), is_question, tuple(map(len, spans)))


def _found(lm: AudioLM, inputs: Inputs, question: str) -> tuple[int, int] | None:
    """Return (start, end) of the question's text in prompt positions, the end exclusive; None if the text is absent."""
    ids, heard = inputs.tensors["input_ids"][0].tolist(), inputs.audio_mask[0].tolist()
    texts = [[*run] for is_heard, run in groupby(range(len(ids)), key=heard.__getitem__) if not is_heard]
    for run in reversed(texts):
        if (span := _within(lm, [ids[place] for place in run], question.strip())) is not None:
            return run[0] + span[0], run[0] + span[1]
    return None


def _within(lm: AudioLM, ids: Sequence[int], wanted: str) -> tuple[int, int] | None:
    at = _text(lm, ids).find(wanted) if wanted else -1
    if at < 0:
        return None

    def length(count: int) -> int:
        return len(_text(lm, ids[:count]))

    counts = range(len(ids) + 1)
    return bisect_right(counts, at, key=length) - 1, bisect_left(counts, at + len(wanted), key=length)


def _text(lm: AudioLM, ids: Sequence[int]) -> str:
    text: str = lm.tokenizer.decode(ids, skip_special_tokens=False)
    return text


def capture(
    lm: AudioLM,
    inputs: Inputs,
    method: Method,
    prompt: Prompt,
    *,
    max_new_tokens: int,
    layers: Sequence[int] = (),
    full: np.ndarray[Any, Any] | None = None,
) -> Attention:
    """Generate a reply to one sample, and return the attention that the model paid during this call.

    Parameters
    ----------
    inputs
        A batch of only this prompt, prepared by :meth:`AudioLM.prepare`.
    layers
        Layers to capture; empty for all.
    full
        Array to fill with each layer's whole attention map, averaged over heads, shape (L, S, S); rows and columns of
        dropped positions are 0.

    Raises
    ------
    SettingsError
        The model lacks one of the layers.
    """
    check_layers(lm, layers)
    chosen = sorted({*layers}) or list(range(len(lm.decoder_layers)))
    recorder = _Recorder(lm, inputs, parts_of(lm, inputs, prompt), chosen, full)
    with_hooks = recorder.around(method.applied_to(lm, inputs))
    generation = lm.generate(inputs, with_hooks, max_new_tokens=max_new_tokens, keep_entries=True)
    return recorder.attention(generation)


def check_layers(lm: AudioLM, layers: Sequence[int]) -> None:
    """Raise SettingsError if the model lacks one of the `layers`; the message names it."""
    count = len(lm.decoder_layers)
    if unknown := [layer for layer in layers if not 0 <= layer < count]:
        raise SettingsError(f"layer {unknown[0]}: not one of this model's layers 0–{count - 1}")


@dataclass
class _Recorder:
    """Records the attention of one `generate` call, and reduces it to small summaries layer by layer.

    Positions count the whole prompt, before any token is dropped. All generated tokens share one position at the end.
    """

    lm: AudioLM
    inputs: Inputs
    parts: Parts
    layers: Sequence[int]
    full: np.ndarray[Any, Any] | None
    trace: Trace = field(init=False)
    rows: dict[tuple[str, int], dict[str, np.ndarray[Any, Any]]] = field(default_factory=dict)
    blocks: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    decoded: dict[int, torch.Tensor] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mask = self.inputs.audio_mask[0]
        self.length = len(mask)
        self.audio = mask.nonzero().flatten()
        self.edges = np.linspace(0, self.length, min(BLOCKS, self.length) + 1).round().astype(np.int32)
        places = np.searchsorted(self.edges, np.arange(self.length), side="right") - 1
        self.block_of = torch.as_tensor(places, device=mask.device)
        self.question = self.parts.question.to(mask.device)

    @contextmanager
    def around(self, applied: AbstractContextManager[Trace]) -> Iterator[Trace]:
        """Enter a method's context manager; yield its trace (the method's report), and record attention meanwhile.

        Only the attention of the chosen layers is recorded.
        """
        looks = {self.lm.decoder_layers[layer].self_attn: functools.partial(self._look, layer) for layer in self.layers}
        with applied as trace:
            self.trace = trace
            with attention_watched(self.lm.attn_implementation, looks, decode=True):  # type: ignore[arg-type]
                yield trace

    def _look(self, layer: int, given: Given) -> None:
        look = self._prefill if given.query.shape[2] > 1 else self._decode
        look(layer, given)

    def _positions(self, layer: int, device: torch.device) -> torch.Tensor:
        """Return the prompt positions that a layer computes in prefill, shape (S',); dropped positions are left out."""
        if self.trace.positions is None:
            return torch.arange(self.length, device=device)
        return self.trace.positions(layer, 0).to(device)

    def _prefill(self, layer: int, given: Given) -> None:
        device = given.query.device
        positions = self._positions(layer, device)
        count, blocks = len(positions), len(self.edges) - 1
        question = self.question.to(device)[positions]
        in_block = torch.nn.functional.one_hot(self.block_of.to(device)[positions], blocks).float()  # (S', blocks)
        asking = torch.zeros(given.query.shape[1], count, dtype=torch.float64, device=device)
        whole = torch.zeros(blocks, blocks, dtype=torch.float64, device=device)
        chunk = min(_CHUNK, max(16, _CACHED // (len(asking) * count))) if device.type == "cpu" else _CHUNK
        for start in range(0, count, chunk):
            weights = given.of_queries(start, min(chunk, count - start))[0]  # (H, rows, seen)
            rows, seen = slice(start, start + weights.shape[1]), weights.shape[2]
            mean = weights.mean(0)
            whole += in_block[rows].double().T @ (mean @ in_block[:seen]).double()
            if question[rows].any():
                asking[:, :seen] += weights[:, question[rows]].sum(1)
            if self.full is not None:
                ours = positions.cpu().numpy()
                self.full[self.layers.index(layer)][np.ix_(ours[rows], ours[:seen])] = mean.cpu().numpy()
            last = weights[:, -1]
        per_block = in_block.sum(0)[:, None]
        self.blocks[layer] = (whole / per_block).half().cpu().numpy()  # a block without rows is NaN
        self._keep("last", layer, self._spread(last, positions.expand_as(last)))
        self._keep("question", layer, self._spread(asking, positions.expand_as(asking)) / question.sum())

    def _decode(self, layer: int, given: Given) -> None:
        weights = given.of_queries(0, 1)[0, :, 0]  # (H, entries)
        heads, device = weights.shape[0], weights.device
        self.steps[layer] = step = self.steps.get(layer, 0) + 1
        entries = self._positions(layer, device)[None]
        if self.trace.kept_entries:  # a press keeps different entries in each head
            kept = self.trace.kept_entries[layer].to(device)
            order = kept.int().sort(stable=True).indices[:, -int(kept.sum(1).max()) :]  # kept entries last, in order
            entries = entries.expand(kept.shape).gather(1, order)  # a head with fewer entries has masked fillers first
        entries = entries.repeat_interleave(heads // len(entries), 0)
        fresh = torch.full((heads, step), self.length, device=device)
        columns = torch.cat([entries, fresh], 1)
        if window_of(self.lm.decoder.config, layer):  # a sliding window: the cache holds the last entries only
            columns = columns[:, -weights.shape[1] :]
        if columns.shape != weights.shape:
            mismatch = f"layer {layer} has {weights.shape[1]} cache entries, not {columns.shape[1]}"
            raise MethodError(f"{mismatch}: the method does not say which entries it kept")
        spread = self._spread(weights, columns)
        self.decoded[layer] = self.decoded[layer] + spread if layer in self.decoded else spread

    def _spread(self, weights: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return attention over prompt positions, shape (H, S + 1), made from attention over KV-cache entries, shape
        (H, entries).

        Dropped positions get 0. H is the number of heads; the last of the S + 1 positions stands for all generated
        tokens. `columns` has each entry's prompt position, shape (H, entries).
        """
        wide = torch.zeros(len(weights), self.length + 1, dtype=torch.float64, device=weights.device)
        return wide.scatter_add_(1, columns, weights.double())

    def _keep(self, kind: str, layer: int, row: torch.Tensor) -> None:
        """Reduce the attention `row`, shape (H, S + 1), to a summary, and store it for `layer`.

        The summary holds the attention on each part of the prompt, the profile over audio tokens (mean over heads), and
        each head's top audio tokens and entropy. `kind` tells which queries attend: the `last` prompt token, the
        `question`, or the `generated` tokens.
        """
        group_of = self.parts.group_of.to(row.device)
        mass = torch.zeros(len(row), len(self.parts.groups), dtype=row.dtype, device=row.device)
        heard = row[:, self.audio.to(row.device)]
        share = heard / heard.sum(1, keepdim=True)
        top = heard.topk(min(TOP, heard.shape[1]), 1)
        arrays = {
            "mass": mass.index_add_(1, group_of, row).float(),
            "profile": (heard.mean(0) * heard.shape[1]).half(),
            "top_index": top.indices.int(),
            "top_mass": top.values.half(),
            "entropy": -torch.special.xlogy(share, share).sum(1).float(),
        }
        self.rows[kind, layer] = {name: value.cpu().numpy() for name, value in arrays.items()}

    def _spans(self) -> list[list[Any]]:
        """Return [[part of the prompt, start, end (exclusive)], …]: an item per run of neighbouring positions in a
        part.
        """
        groups = [self.parts.groups[group] for group in self.parts.group_of[:-1].tolist()]
        runs = [[*run] for _group, run in groupby(range(len(groups)), key=groups.__getitem__)]
        return [[groups[run[0]], run[0], run[-1] + 1] for run in runs]

    def attention(self, generation: Generation) -> Attention:
        """Return the captured attention with its metadata; call it after the `generate` call."""
        for layer in self.layers:
            total = self.decoded.get(layer)
            heads = len(self.rows["last", layer]["mass"])
            nothing = torch.full((heads, self.length + 1), torch.nan, dtype=torch.float64)
            self._keep("generated", layer, nothing if total is None else total / self.steps[layer])
        reduced = {
            name: np.stack([[self.rows[kind, layer][name] for layer in self.layers] for kind in ROWS])
            for name in ("mass", "profile", "top_index", "top_mass", "entropy")
        }
        kept, (reply,) = generation.kept_positions, generation.replies
        ids = self.inputs.tensors["input_ids"][0].tolist()
        text = {id_: _text(self.lm, [id_]) for id_ in {*ids}}
        meta = {
            "groups": list(self.parts.groups),
            "clips": list(self.parts.clips),
            "parts": self._spans(),
            "model_layers": len(self.lm.decoder_layers),
            "kept_audio_bits": pack(kept[0], self.inputs.audio_mask[0]) if kept else None,
            "reply": reply.text,
            "new_tokens": reply.new_tokens,
            "head_mean": True,
            "dtype": "float32",
            "seq_len": self.length,
            "layers": list(self.layers),
        }
        blocks = np.stack([self.blocks[layer] for layer in self.layers])
        return Attention(**reduced, blocks=blocks, edges=self.edges, tokens=tuple(text[id_] for id_ in ids), meta=meta)


def capture_missing(
    lm: AudioLM,
    plan: Plan,
    jobs: Sequence[Job],
    settings: RunSettings,
    *,
    say: Say = lambda _line: None,
    step: Callable[[int], object] = lambda _more: None,
) -> None:
    """Capture and store the attention of every sample that has a reply but no stored attention.

    A sample that fails is reported and skipped; running the same command again retries it.

    Parameters
    ----------
    jobs
        Each setting with its run folder.
    say
        Receives lines for the user.
    step
        Called with 1 after each sample, to show progress.

    Raises
    ------
    RecordError
        A file cannot be written.
    """
    different, clips = 0, plan.clips
    missing = {job.method.label: job.folder.done(clips) - captured(job.folder, clips, settings) for job in jobs}
    before = {job.method.label: index_of(job.folder.path) for job in jobs}
    for sample in plan.samples:
        if todo := [job for job in jobs if sample.id in missing[job.method.label]]:
            try:
                prompt = heard(plan, sample, lm.sampling_rate)
                inputs = lm.prepare([prompt])
                with encoder_shared(lm), patched_attribute(lm, "prefill_chunk", 0):  # maps need whole prompts
                    for job in todo:
                        row = before[job.method.label].get(sample.id)
                        different += not _capture_one(lm, plan, job, sample, prompt, inputs, settings, row)
            except RecordError:  # a full disk: later samples would fail too
                raise
            except ANY_ERROR as error:  # one sample's failure is not the end of the run
                say(f"error: {plan.task.key}: attention of {sample.id}: {told(error)}")
        step(1)
    if different:
        again = "number of replies that differ from the recorded reply when generated again to capture attention"
        say(f"{plan.task.key}: {again}: {different}")


def _capture_one(
    lm: AudioLM,
    plan: Plan,
    job: Job,
    sample: Sample,
    prompt: Prompt,
    inputs: Inputs,
    settings: RunSettings,
    before: Mapping[str, Any] | None,
) -> bool:
    """Capture and store one sample's attention under one setting.

    Return whether the reply, which is generated again, equals the recorded reply.

    Parameters
    ----------
    before
        The sample's existing line in the index of captured attention; None if there is none.
    """
    name, place = file_name(sample.id), job.folder.path / FOLDER
    if before and not same(before.get("clips"), plan.clips.get(sample.id)):
        before = None  # the sample's clips have changed since
    everything = not settings.attn_layers or bool(before and before["all"])
    layers = () if everything else tuple(sorted({*settings.attn_layers, *(before["layers"] if before else ())}))
    longest = settings.attn_full or (sys.maxsize if before and before["full"] else 0)  # keep an existing whole map
    facts = {
        "model": job.folder.run.get("checkpoint_name"),
        "method": job.method.label,
        "sample_id": sample.id,
        "benchmark": plan.task.key,
        "split": sample.meta.get("split"),
        "prompt": prompt.text,
        "audio": [str(clip) for clip in sample.clips],
        "events": [sample.event] if sample.event else [],
    }
    how: dict[str, Any] = {"layers": layers, "max_new_tokens": plan.max_new_tokens}
    whole = place / f"{name}{WHOLE}"
    if longest:
        attention = capture_whole(lm, inputs, job.method, prompt, whole, longest=longest, facts=facts, **how)
    else:
        attention = capture(lm, inputs, job.method, prompt, **how)
        shutil.rmtree(whole, ignore_errors=True)  # the folder may hold whole maps of clips that have changed since
    attention = replace(attention, meta={**attention.meta, **facts})
    row = {"id": sample.id, "file": f"{name}.npz", "bytes": attention.save(place / f"{name}.npz")}
    row |= {"layers": attention.meta["layers"], "all": everything, "full": bool(longest)}
    row |= {"clips": plan.clips.get(sample.id), "prompt_tokens": inputs.audio_mask.shape[1]}
    append_line(place / INDEX, {**row, "audio_tokens": inputs.audio_tokens[0]})
    return bool(attention.meta["reply"] == job.folder.records[sample.id].reply)


def capture_whole(
    lm: AudioLM,
    inputs: Inputs,
    method: Method,
    prompt: Prompt,
    folder: Path,
    *,
    longest: int,
    facts: Mapping[str, Any],
    layers: Sequence[int] = (),
    max_new_tokens: int = 1,
) -> Attention:
    """Capture and return attention as :func:`capture` does, and also write whole attention maps to `folder`.

    The files are in LALM Bench's format: `attn.npy` of shape (L, S, S), `tokens.json`, `meta.json`.

    Parameters
    ----------
    longest
        Longest prompt allowed, in tokens.
    facts
        Fields to add to `meta.json`; `sample_id` is required.

    Raises
    ------
    SettingsError
        The prompt is longer than `longest`, or the model lacks a layer.
    RecordError
        The files cannot be written.
    """
    length, count = inputs.audio_mask.shape[1], len(layers or lm.decoder_layers)
    if length > longest:
        raise SettingsError(
            f"{facts['sample_id']}: whole maps of {length:,} tokens take {count * length**2 / 2**28:.1f} GB; allowed: "
            f"prompts of at most {longest:,} tokens, or audiomarathon attention capture --yes"
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / ".attn.npy.new"
        try:
            maps = np.lib.format.open_memmap(temporary, "w+", np.float32, (count, length, length))  # type: ignore[no-untyped-call]
            attention = capture(lm, inputs, method, prompt, max_new_tokens=max_new_tokens, layers=layers, full=maps)
            temporary.replace(folder / "attn.npy")
        finally:
            temporary.unlink(missing_ok=True)
    replace(attention, meta={**attention.meta, **facts}).write_texts(folder)
    return attention
