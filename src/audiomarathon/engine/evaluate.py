"""One model x many settings x one task: the loop that turns samples into records.

The outer loop is samples, the inner one settings, so that audio is decoded, features are extracted and the audio tower
is run once a sample, and each setting is measured next to its baseline. Settings take turns at going first.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from audiomarathon.benchmarks.task import Sample
from audiomarathon.compression.method import Method
from audiomarathon.engine.batches import (
    MEMORY_ADVICE,
    Plan,
    Ready,
    is_out_of_memory,
    one_by_one,
    prefetched,
    prepare,
    reason_of,
)
from audiomarathon.engine.encoder_cache import Tower, encoder_shared
from audiomarathon.engine.progress_view import watching
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs
from audiomarathon.records import Record
from audiomarathon.runs import kept_audio
from audiomarathon.runs.folder import Job

_WARM_UP_TOKENS = 4

#: Takes each record as it is made, with the setting that it is of.
Add = Callable[[Method, Record], None]


def evaluate(
    lm: AudioLM,
    plan: Plan,
    jobs: Sequence[Job],
    *,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
) -> None:
    """Record a reply of every sample under every setting that has none yet.

    Parameters
    ----------
    jobs
        Their folders must be entered. Samples that a folder already holds are passed over; errors are tried again.
    say, progress
        See :func:`~audiomarathon.engine.progress_view.watching`.

    Raises
    ------
    RecordError
        When a record cannot be written. A sample's own failure is no exception but an error record.
    """
    pending, folders = pending_methods(plan, jobs), {job.method.label: job.folder for job in jobs}
    todo = [sample for sample in plan.samples if sample.id in pending]
    with watching(plan, jobs, say, progress=progress) as bar:
        add: Add = lambda method, record: folders[method.label].append(record)  # noqa: E731
        for done in answer(lm, plan, todo, pending, add, cold=plan.warm_up, say=say):
            bar.update(done)


def pending_methods(plan: Plan, jobs: Sequence[Job]) -> dict[str, list[Method]]:
    """Return for each sample that is not finished the settings that it lacks."""
    done = [(job.method, job.folder.done(plan.clips)) for job in jobs]
    waiting = {sample.id: [method for method, ids in done if sample.id not in ids] for sample in plan.samples}
    return {id_: methods for id_, methods in waiting.items() if methods}


def answer(
    lm: AudioLM,
    plan: Plan,
    samples: Sequence[Sample],
    pending: Mapping[str, Sequence[Method]],
    add: Add,
    *,
    first_turn: int = 0,
    cold: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Iterator[int]:
    """Record what a model makes of samples, under the settings pending for each; yield a batch's samples when done.

    Parameters
    ----------
    first_turn
        Number of the first batch, by which settings take turns at going first.
    cold
        Whether a timed run's first batch is run once beforehand, not counted.
    say
        Told once when batches do not fit into memory.
    """
    once = functools.cache(say)
    timed = plan.batch_size is None
    # All of them: of a sweep that was killed the first sample may lack but one.
    warm_up = {one.label: one for methods in pending.values() for one in methods} if cold and timed else {}
    tower = Tower()
    ready = one_by_one(lm, plan, samples) if timed else prefetched(lm, plan, samples)
    for turn, batch in enumerate(ready, first_turn):
        _run_batch(lm, plan, batch, samples, pending, add, turn, once, tower, warm_up=list(warm_up.values()))
        if batch.samples:  # a first sample that could not be prepared warmed nothing up
            warm_up = {}
        yield len(batch.samples) + len(batch.failed)


def _run_batch(
    lm: AudioLM,
    plan: Plan,
    batch: Ready,
    samples: Sequence[Sample],
    pending: Mapping[str, Sequence[Method]],
    add: Add,
    turn: int,
    say: Callable[[str], None],
    tower: Tower,
    *,
    warm_up: Sequence[Method] = (),
) -> None:
    """Record what the pending settings make of a batch; where it fails as a batch, in halves or sample by sample."""
    for sample in samples if batch.failed else ():
        if sample.id in batch.failed:
            for method in pending[sample.id]:
                add(method, error_record(plan, sample, batch.failed[sample.id]))
    if not batch.samples:
        return
    methods, finished = list(pending[batch.samples[0].id]), list[Method]()
    # A batch that cannot be prepared, or whose samples a resume left with different settings to do, is not run as one.
    as_one = batch.inputs is not None and all(list(pending[sample.id]) == methods for sample in batch.samples)
    if as_one and warm_up:
        _warm_up(lm, batch, warm_up)
    size = _run_settings(lm, plan, batch, methods, add, turn, say, tower, finished) if as_one else 1
    for start in range(0, len(batch.samples) if size else 0, size or 1):
        part = batch.samples[start : start + size]
        missing = {sample.id: [method for method in pending[sample.id] if method not in finished] for sample in part}
        if any(missing.values()):
            _run_batch(lm, plan, prepare(lm, plan, part), part, missing, add, turn, say, tower)


def _run_settings(
    lm: AudioLM,
    plan: Plan,
    batch: Ready,
    methods: Sequence[Method],
    add: Add,
    turn: int,
    say: Callable[[str], None],
    tower: Tower,
    finished: list[Method],
) -> int:
    """Run a batch under each setting, the audio tower once; settings that are on record are added to `finished`.

    It does not run at all where the batch before was of the same clips.

    Returns
    -------
    int
        0 when all is on record; else how many samples to try at a time, since a batch of several failed.
    """
    assert batch.inputs is not None
    first = turn % len(methods)
    tower.turn_to(batch.samples)
    with encoder_shared(lm, tower):
        for method in [*methods[first:], *methods[:first]]:
            try:
                generation = method.generate(lm, batch.inputs, max_new_tokens=plan.max_new_tokens)
                forced = _forced_decode(lm, plan, batch.inputs, method)
            except (Exception, SystemExit) as error:  # one sample's failure is a record, not the end of the run
                reason, memory_full = reason_of(error), is_out_of_memory(error)
            else:
                ran = tower.ran_in = tower.ran_in or generation
                shared = len(methods) > 1 or ran is not generation
                for row in range(len(batch.samples)):
                    add(method, _record(plan, batch, row, generation, forced, ran, shared=shared))
                finished.append(method)
                continue
            # Outside the handler, whose traceback held the failed call's tensors.
            if tower.ran_in is None:
                tower.clear()  # nobody recorded what the tower took: the next setting runs and measures it
            _free_memory()
            if len(batch.samples) > 1:
                if not memory_full:
                    return 1
                say(f"{plan.task.key}: BATCH_SIZE={plan.batch_size} does not fit into memory: such batches are halved")
                return (len(batch.samples) + 1) // 2
            if memory_full:
                reason = f"{MEMORY_ADVICE} ({reason}"[:499] + ")"
            add(method, error_record(plan, batch.samples[0], reason))
    return 0


def _warm_up(lm: AudioLM, batch: Ready, methods: Sequence[Method]) -> None:
    """Run every setting once, not counted: kernels are chosen and memory is claimed at the first call."""
    assert batch.inputs is not None
    for method in methods:
        try:
            method.generate(lm, batch.inputs, max_new_tokens=_WARM_UP_TOKENS)
        except (Exception, SystemExit):  # the counted run will fail alike, and record why
            _free_memory()


def _forced_decode(lm: AudioLM, plan: Plan, inputs: Inputs, method: Method) -> dict[str, float] | None:
    """Decode exactly `decode_tokens` tokens, past any end token: what claims about decode speed rest on."""
    if not plan.decode_tokens:
        return None
    generation = method.generate(lm, inputs, max_new_tokens=plan.decode_tokens, ignore_end=True)
    tokens, seconds = generation.replies[0].new_tokens, generation.stages.decode
    return {"tokens": tokens, "seconds": seconds, "per_token": seconds / (tokens - 1)}


def _record(
    plan: Plan,
    batch: Ready,
    row: int,
    generation: Generation,
    forced: dict[str, float] | None,
    tower: Generation,
    *,
    shared: bool,
) -> Record:
    """Put together the record of one sample of a batch.

    The audio tower's time and peak of memory are those of `tower`, the call that ran it for every setting.
    """
    inputs = batch.inputs
    assert inputs is not None
    sample, reply, timed = batch.samples[row], generation.replies[row], plan.batch_size is None
    alone, left = len(batch.samples) == 1, generation.kept_positions
    return replace(
        asked(plan, sample),
        reply=reply.text,
        transcript=reply.transcript if plan.task.transcribes else None,
        finish=reply.finish,
        clip_seconds=round(batch.clip_seconds[row], 6),
        truncated=bool(inputs.truncated and inputs.truncated[row]),
        prompt_tokens=inputs.prompt_tokens[row],
        audio_tokens=inputs.audio_tokens[row],
        window_padding_tokens=inputs.window_padding[row] if inputs.window_padding else 0,
        kept_audio_tokens=generation.kept_audio_tokens[row],
        kept_audio_bits=(kept_audio.pack(left[row], inputs.audio_mask[row]) or None) if left else None,
        kv_lengths=list(generation.kv_lengths) if alone else None,
        kv_bytes=generation.kv_bytes if alone else None,
        new_tokens=reply.new_tokens,
        peak_memory_bytes=peak_memory(generation, tower) if alone else None,
        time=_times(batch, generation, tower) if timed else None,
        session=plan.session if timed else None,
        encoder_shared=shared if timed else None,
        forced_decode=forced if timed else None,
    )


def _times(batch: Ready, generation: Generation, tower: Generation) -> dict[str, float]:
    stages, encoder = generation.stages, tower.stages.encoder
    return {
        "load": batch.load,
        "preprocess": batch.preprocess,
        "encoder": encoder,
        "llm_prefill": stages.llm_prefill,
        "prefill": encoder + stages.llm_prefill,
        "decode": stages.decode,
        "scoring": generation.scoring,
    }


def peak_memory(generation: Generation, tower: Generation) -> int | None:
    """Return what a call would have needed at its peak, had it run the audio tower that `tower` ran for it."""
    peaks = [p for p in (generation.peak_memory_bytes, tower.encoder_peak_memory_bytes) if p is not None]
    return max(peaks, default=None)


def asked(plan: Plan, sample: Sample) -> Record:
    """Return what a sample's record holds whoever answers, and whatever the reply."""
    return Record(
        sample.id,
        sample.cluster,
        plan.clips[sample.id] if plan.clips else None,
        reference=plan.task.reference(sample),
        groups=plan.task.groups(sample),
        control=plan.control,
    )


def error_record(plan: Plan, sample: Sample, reason: str) -> Record:
    """Return the record of a sample that has no reply, with the reason."""
    return replace(asked(plan, sample), error=reason, session=plan.session)


def _free_memory() -> None:
    """Give back what a failed call held: its traceback's frames are gone, its cached blocks are not."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
