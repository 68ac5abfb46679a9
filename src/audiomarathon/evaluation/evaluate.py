"""One model x many settings x one task: the loop that turns samples into records.

The outer loop is samples, the inner one settings, so that audio is decoded, features are extracted and the audio tower
is run once a sample, and each setting is measured next to its baseline. Settings take turns at going first.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from audiomarathon import audio
from audiomarathon.evaluation.records import RunFolder
from audiomarathon.kvpress.audio_features import encoder_shared
from audiomarathon.models.audio_lm import AudioLM, Generation, Inputs, Prompt
from audiomarathon.pruning.method import Method
from audiomarathon.tasks.task import Sample, Task

_BATCHES_AHEAD = 2
_WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Job:
    """A setting and the folder its records go to."""

    method: Method
    folder: RunFolder


@dataclass(frozen=True)
class Plan:
    """How a task is to be run, whatever the setting.

    Attributes
    ----------
    max_new_tokens
        Token limit of a reply.
    decode_tokens
        Length of the forced decode run; 0 for none.
    seed
        Run seed, from which each sample's own is made.
    batch_size
        Samples a batch; None runs timed, at batch 1.
    warm_up
        Whether a timed run starts with an uncounted pass over its first sample.
    """

    task: Task
    samples: tuple[Sample, ...]
    max_new_tokens: int
    decode_tokens: int = 0
    seed: int = 42
    batch_size: int | None = None
    warm_up: bool = True


@dataclass
class _Ready:
    """A batch that is decoded and prepared; samples that failed on the way are in `failed`."""

    samples: list[Sample]
    inputs: Inputs | None
    clip_seconds: list[float]
    load: float
    preprocess: float
    failed: dict[str, str]


def sample_seed(seed: int, sample_id: str) -> int:
    """Return the seed of one sample: the same on every machine and in every order of samples."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{sample_id}".encode()).digest()[:4], "big")


def evaluate(lm: AudioLM, plan: Plan, jobs: Sequence[Job], *, progress: bool | None = None) -> None:
    """Record a reply of every sample under every setting that has none yet.

    Parameters
    ----------
    jobs
        Their folders must be entered. Samples that a folder already holds are passed over; errors are tried again.
    progress
        Whether to show a bar; None shows one on a terminal.

    Raises
    ------
    RecordError
        When a record cannot be written. A sample's own failure is no exception but an error record.
    """
    done = [job.folder.done() for job in jobs]
    pending = {
        sample.id: [job for job, ids in zip(jobs, done, strict=True) if sample.id not in ids] for sample in plan.samples
    }
    bar = tqdm(
        total=len(plan.samples),
        initial=sum(not waiting for waiting in pending.values()),
        desc=plan.task.key,
        unit="sample",
        disable=None if progress is None else not progress,
    )
    todo = [sample for sample in plan.samples if pending[sample.id]]
    timed = plan.batch_size is None
    with bar:
        ready = _one_by_one(lm, plan, todo) if timed else _prefetched(lm, plan, todo)
        for turn, batch in enumerate(ready):
            _run_batch(lm, plan, batch, pending, turn, warm_up=turn == 0 and timed and plan.warm_up)
            bar.update(len(batch.samples) + len(batch.failed))


def _one_by_one(lm: AudioLM, plan: Plan, samples: Sequence[Sample]) -> Iterator[_Ready]:
    """Timed mode: nothing runs in the background while the timer does."""
    for sample in samples:
        yield _prepare(lm, plan, [sample])


def _prefetched(lm: AudioLM, plan: Plan, samples: Sequence[Sample]) -> Iterator[_Ready]:
    """Throughput mode: the next batches are decoded while the model works; at most two wait, so memory is bounded."""
    size = plan.batch_size or 1
    batches = deque(list(samples[start : start + size]) for start in range(0, len(samples), size))
    waiting: deque[Future[_Ready]] = deque()
    with ThreadPoolExecutor(_BATCHES_AHEAD, thread_name_prefix="prefetch") as pool:
        try:
            while batches or waiting:
                while batches and len(waiting) < _BATCHES_AHEAD:
                    waiting.append(pool.submit(_prepare, lm, plan, batches.popleft()))
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _prepare(lm: AudioLM, plan: Plan, samples: list[Sample]) -> _Ready:
    ready = _Ready([], None, [], 0.0, 0.0, {})
    prompts: list[Prompt] = []
    for sample in samples:
        begin = time.perf_counter()
        try:
            clips = tuple(audio.decode(path, lm.sampling_rate) for path in sample.clips)
            prompts.append(Prompt(plan.task.prompt(sample), clips, sample_seed(plan.seed, sample.id)))
        except Exception as error:  # one sample's failure is a record, not the end of the run
            ready.failed[sample.id] = _reason(error)
            continue
        ready.load += time.perf_counter() - begin
        ready.samples.append(sample)
        ready.clip_seconds.append(sum(len(clip) for clip in clips) / lm.sampling_rate)
    if not prompts:
        return ready
    begin = time.perf_counter()
    try:
        ready.inputs = lm.prepare(prompts)
    except Exception as error:
        if len(samples) == 1:
            return _Ready([], None, [], 0.0, 0.0, {samples[0].id: _reason(error)})
        ready.inputs = None  # `_run_batch` prepares them one by one, to find the one that fails
    ready.preprocess = time.perf_counter() - begin
    return ready


def _run_batch(
    lm: AudioLM, plan: Plan, batch: _Ready, pending: Mapping[str, Sequence[Job]], turn: int, *, warm_up: bool
) -> None:
    """Record what the pending settings make of a batch; where it fails as a batch, sample by sample."""
    by_id = {sample.id: sample for sample in plan.samples}
    for id_, reason in batch.failed.items():
        for job in pending[id_]:
            job.folder.append(_error_record(plan, by_id[id_], reason))
    if not batch.samples:
        return
    jobs = list(pending[batch.samples[0].id])
    # A batch that cannot be prepared, or whose samples a resume left with different settings to do, is not run as one.
    as_one = batch.inputs is not None and all(list(pending[sample.id]) == jobs for sample in batch.samples)
    if as_one and warm_up:
        _warm_up(lm, batch, jobs)
    if as_one and _run_settings(lm, plan, batch, jobs, turn):
        return
    for sample in batch.samples:
        missing = {sample.id: [job for job in pending[sample.id] if sample.id not in job.folder.done()]}
        if missing[sample.id]:
            _run_batch(lm, plan, _prepare(lm, plan, [sample]), missing, turn, warm_up=False)


def _run_settings(lm: AudioLM, plan: Plan, batch: _Ready, jobs: Sequence[Job], turn: int) -> bool:
    """Run a batch under each setting, the audio tower once; False when a batch of several failed under one of them."""
    assert batch.inputs is not None
    first = turn % len(jobs)
    encoder: float | None = None
    with encoder_shared(lm) as memory:
        for job in [*jobs[first:], *jobs[:first]]:
            try:
                generation = lm.generate(batch.inputs, job.method, max_new_tokens=plan.max_new_tokens)
                forced = _forced_decode(lm, plan, batch.inputs, job.method)
            except Exception as error:  # one sample's failure is a record, not the end of the run
                reason = _reason(error)
            else:
                encoder = generation.stages.encoder if encoder is None else encoder
                for row in range(len(batch.samples)):
                    job.folder.append(_record(plan, batch, row, generation, forced, encoder, shared=len(jobs) > 1))
                continue
            # Outside the handler, whose traceback held the failed call's tensors.
            if encoder is None:
                memory.clear()  # nobody recorded what the tower took: the next setting runs and measures it
            _free_memory()
            if len(batch.samples) > 1:
                return False
            job.folder.append(_error_record(plan, batch.samples[0], reason))
    return True


def _warm_up(lm: AudioLM, batch: _Ready, jobs: Sequence[Job]) -> None:
    """Run every setting once, not counted: kernels are chosen and memory is claimed at the first call."""
    assert batch.inputs is not None
    for job in jobs:
        try:
            lm.generate(batch.inputs, job.method, max_new_tokens=_WARM_UP_TOKENS)
        except Exception:  # the counted run will fail alike, and record why
            _free_memory()


def _forced_decode(lm: AudioLM, plan: Plan, inputs: Inputs, method: Method) -> dict[str, float] | None:
    """Decode exactly `decode_tokens` tokens, past any end token: what claims about decode speed rest on."""
    if not plan.decode_tokens:
        return None
    generation = lm.generate(inputs, method, max_new_tokens=plan.decode_tokens, ignore_end=True)
    tokens, seconds = generation.replies[0].new_tokens, generation.stages.decode
    return {"tokens": tokens, "seconds": seconds, "per_token": seconds / (tokens - 1)}


def _record(
    plan: Plan,
    batch: _Ready,
    row: int,
    generation: Generation,
    forced: dict[str, float] | None,
    encoder: float,
    *,
    shared: bool,
) -> dict[str, Any]:
    """Put together the record of one sample of a batch (DESIGN.md, section 5)."""
    assert batch.inputs is not None
    sample, reply, timed = batch.samples[row], generation.replies[row], plan.batch_size is None
    alone = len(batch.samples) == 1
    reference = plan.task.reference(sample)
    record: dict[str, Any] = {
        "id": sample.id,
        "cluster": sample.cluster,
        "reply": reply.text,
        "finish": reply.finish,
        **plan.task.score(reply.text, reference),
        "reference": reference,
        "error": None,
        "clip_seconds": round(batch.clip_seconds[row], 6),
        "truncated": False,
        "prompt_tokens": batch.inputs.prompt_tokens[row],
        "audio_tokens": batch.inputs.audio_tokens[row],
        "kept_audio_tokens": generation.kept_audio_tokens[row],
        "kv_lengths": list(generation.kv_lengths) if alone else None,
        "kv_bytes": generation.kv_bytes if alone else None,
        "new_tokens": reply.new_tokens,
        "time": None,
        "peak_memory_bytes": generation.peak_memory_bytes if alone else None,
    }
    if timed:
        stages = generation.stages
        record["time"] = {
            "load": batch.load,
            "preprocess": batch.preprocess,
            "encoder": encoder,
            "llm_prefill": stages.llm_prefill,
            "prefill": encoder + stages.llm_prefill,
            "decode": stages.decode,
            "scoring": generation.scoring,
        }
        record["encoder_shared"] = shared
        record["forced_decode"] = forced
    return record


def _error_record(plan: Plan, sample: Sample, reason: str) -> dict[str, Any]:
    return {
        "id": sample.id,
        "cluster": sample.cluster,
        "reply": None,
        "reference": plan.task.reference(sample),
        "error": reason,
    }


def _reason(error: Exception) -> str:
    """Return an exception as one line of at most 500 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


def _free_memory() -> None:
    """Give back what a failed call held: its traceback's frames are gone, its cached blocks are not."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
