"""The evaluation loop: run one model on one task under many settings, and make a record of each reply.

The outer loop runs over samples, the inner loop over settings. So each sample is decoded and encoded once, and each
setting is measured shortly before or after the baseline. The setting that goes first changes from batch to batch.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from audiomarathon.benchmarks.task import Sample
from audiomarathon.compression.method import Method
from audiomarathon.engine.batches import WARM_PASS_TOKENS, Plan, Ready, prefetched, prepare
from audiomarathon.engine.encoder_cache import Tower, encoder_shared
from audiomarathon.engine.out_of_memory import MEMORY_ADVICE, free_memory, half, is_out_of_memory
from audiomarathon.errors import ANY_ERROR, told
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.busy import busy_seconds
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs
from audiomarathon.models.timing import Stages
from audiomarathon.records import Record
from audiomarathon.runs.record_line import pack, pack_shares
from audiomarathon.text import Say

_WARM_UP_TOKENS = 4
_BUSY_TOKENS = 64  # limit of profiled decode steps: each launches hundreds of kernels, too many for the profiler

#: A setting's label, and the record of one sample under it.
Labelled = tuple[str, Record]


def answer(
    lm: AudioLM,
    plan: Plan,
    samples: Sequence[Sample],
    pending: Mapping[str, Sequence[Method]],
    *,
    first_turn: int = 0,
    cold: bool = False,
    say: Say = lambda _line: None,
) -> Generator[Labelled]:
    """Answer samples under their pending settings; yield (label of the setting, record) as soon as the record is made.

    Parameters
    ----------
    pending
        The settings to run, as {sample id: methods}.
    first_turn
        Number of the first batch; it decides which setting goes first.
    cold
        Whether the model has not run yet: a timed or batched run then runs its first batch once without making records,
        to warm up, unless the plan warms up each call.
    say
        Receives a line for the user if a batch does not fit into memory; the line is not repeated.
    """
    if plan.sizes:
        yield from _each_in_its_batches(lm, plan, samples, pending, functools.cache(say), cold=cold)
        return
    loop, timed = _Loop(lm, plan, functools.cache(say)), plan.batch_size is None
    # Warm up every method: after a resumed sweep the first sample may miss only one of them.
    every = {method.label: method for methods in pending.values() for method in methods}
    cold_methods = every if cold and (plan.batched or (timed and not plan.warm)) else {}
    ready = (prepare(lm, plan, [sample]) for sample in samples) if timed else prefetched(lm, plan, samples)
    for turn, batch in enumerate(ready, first_turn):
        if batch.inputs is not None:  # if the first sample cannot be prepared, a later sample warms up
            run_uncounted(lm, batch.inputs, cold_methods.values())
            cold_methods = {}
        yield from loop.run(batch, pending, turn)


def _each_in_its_batches(
    lm: AudioLM,
    plan: Plan,
    samples: Sequence[Sample],
    pending: Mapping[str, Sequence[Method]],
    say: Say,
    *,
    cold: bool,
) -> Generator[Labelled]:
    """Answer all samples under one setting, then under the next, in batches of the size planned for each setting.

    If a batch does not fit into memory, the setting continues with the smaller size that fits. Yield (label of the
    setting, record).
    """
    for method in {method.label: method for methods in pending.values() for method in methods}.values():
        size, turn = plan.sizes[method.label], 0
        left = [
            sample
            for sample in samples
            if method.label in {pending_method.label for pending_method in pending[sample.id]}
        ]
        say(f"{plan.task.key}: BATCH_SIZE=auto: {method.label} in batches of {size}")
        while left:
            loop, done = _Loop(lm, replace(plan, batch_size=size), say), set[str]()
            with closing(prefetched(lm, loop.plan, left)) as batches:
                for batch in batches:
                    if cold and not turn and batch.inputs is not None:
                        run_uncounted(lm, batch.inputs, [method])
                    yield from loop.run(batch, {sample.id: [method] for sample in left}, turn)
                    turn += 1
                    done |= {sample.id for sample in (*batch.samples, *(failed for failed, _why in batch.failed))}
                    if loop.fits < size:
                        break
            left, size = [sample for sample in left if sample.id not in done], min(size, loop.fits)


@dataclass
class _Loop:
    """Runs batches of samples, each batch under the settings for which its samples have no record yet.

    `fits` is the largest number of samples to try in one batch; the number falls after a batch did not fit into memory.
    """

    lm: AudioLM
    plan: Plan
    say: Say
    tower: Tower = field(default_factory=Tower)
    fits: int = sys.maxsize

    def run(self, batch: Ready, pending: Mapping[str, Sequence[Method]], turn: int) -> Iterator[Labelled]:
        """Answer a batch; yield (label of the setting, record) for each sample.

        If the batch fails, answer its halves (out of memory), or its samples one by one (other errors). `turn` is the
        batch's number; it decides which setting goes first.
        """
        for sample, reason in batch.failed:
            for method in pending[sample.id]:
                yield method.label, error_record(self.plan, sample, reason)
        if not batch.samples:
            return
        methods, finished, size = list(pending[batch.samples[0].id]), list[Method](), 1
        # Run samples one by one if the batch cannot be prepared, or if its samples have different settings to run.
        if batch.inputs is not None and all(list(pending[sample.id]) == methods for sample in batch.samples):
            finished, size = yield from self._run_settings(batch, batch.inputs, methods, turn)
        for start in range(0, len(batch.samples) if size else 0, size or 1):
            part = batch.samples[start : start + size]
            missing = {
                sample.id: [method for method in pending[sample.id] if method not in finished] for sample in part
            }
            if any(missing.values()):
                yield from self.run(prepare(self.lm, self.plan, part), missing, turn)

    def _run_settings(
        self, batch: Ready, inputs: Inputs, methods: Sequence[Method], turn: int
    ) -> Generator[Labelled, None, tuple[list[Method], int]]:
        """Run a batch of samples under each setting; yield (label of the setting, record) for each sample.

        The audio tower runs once, or not at all if the previous batch had the same clips.

        Returns
        -------
        tuple of list and int
            The settings that finished; then, if the batch failed, how many samples to try at a time, else 0.
        """
        plan, finished, first = self.plan, list[Method](), turn % len(methods)
        held = list[Labelled]()  # records that wait for their busy seconds
        self.tower.turn_to(batch.samples)
        with encoder_shared(self.lm, self.tower):
            try:
                for method in [*methods[first:], *methods[:first]]:
                    warmed = self._warmed(inputs, method) if plan.warm else None
                    try:
                        generation = method.generate(self.lm, inputs, max_new_tokens=plan.max_new_tokens)
                        forced = forced_decode(self.lm, inputs, method, plan.decode_tokens)
                    except ANY_ERROR as error:  # one sample's failure is a record, not the end of the run
                        reason, memory_full = told(error), is_out_of_memory(error)
                    else:
                        ran, changes_tower = self._ran_in(method, generation), method.changes_tower
                        shared = not changes_tower and (len(methods) > 1 or ran is not generation)
                        together = self._together(inputs, method, generation, ran) if plan.batched else None
                        for row in range(len(batch.samples)):
                            record = _record(plan, batch, row, generation, forced, ran, shared=shared, warmed=warmed)
                            record = replace(record, batch=together)
                            if record.id in plan.profiled:
                                held.append((method.label, record))
                            else:
                                yield method.label, record
                        finished.append(method)
                        continue
                    # Free memory outside the handler: inside it, the traceback still holds the failed call's tensors.
                    if self.tower.ran_in is None:
                        self.tower.clear()  # no record holds the tower's time yet, so the next setting runs it again
                    free_memory()
                    if len(batch.samples) > 1:
                        if memory_full:
                            self.fits = min(self.fits, half(len(batch.samples)))
                            self.say(f"{plan.task.key}: BATCH_SIZE={plan.batch_size} does not fit into memory: halved")
                        return finished, half(len(batch.samples)) if memory_full else 1
                    if memory_full:
                        reason = f"{MEMORY_ADVICE} ({reason}"[:499] + ")"
                    yield method.label, error_record(plan, batch.samples[0], reason)
                busy = self._busy(inputs, finished) if held else {}
            except KeyboardInterrupt:
                yield from held
                raise
            for label, record in held:
                yield label, replace(record, busy=busy.get(label))
        return finished, 0

    def _ran_in(self, method: Method, generation: Generation) -> Generation:
        """Return the `generate` call in which the audio tower ran for this setting; only that call measured the tower.

        If the method changes the tower, this setting's own call (`generation`) is returned; else the first call, whose
        tower output the settings share.
        """
        if method.changes_tower:
            return generation
        self.tower.ran_in = self.tower.ran_in or generation
        return self.tower.ran_in

    def _together(self, inputs: Inputs, method: Method, generation: Generation, tower: Generation) -> dict[str, float]:
        """Return what the samples of a batch share, as {name: number}: seconds of each stage, sizes and peak memory.

        The result becomes the field `batch` of each sample's :class:`Record`.
        """
        tokens, stages, peak = inputs.prompt_tokens, generation.stages, peak_memory(generation, tower)
        return {
            "samples": len(tokens),
            "planned": self.plan.sizes.get(method.label, self.plan.batch_size or 1),
            "encoder": tower.stages.encoder,
            "llm_prefill": max(0.0, stages.llm_prefill),  # a difference, which rounding may send below 0
            "decode": stages.decode,
            "padding": 1 - sum(tokens) / (len(tokens) * max(tokens)),
            "devices": max(1, len(self.lm.clock.devices)),
            **_setup_of(stages),
            **({} if peak is None else {"peak_memory_bytes": peak}),
        }

    def _warmed(self, inputs: Inputs, method: Method) -> float:
        """Run the method once without a record, to warm the GPU up for this batch's lengths.

        Return the seconds that it took.
        """
        begin = time.perf_counter()
        run_uncounted(self.lm, inputs, [method], max_new_tokens=WARM_PASS_TOKENS, ignore_end=True)
        if self.tower.ran_in is None:
            self.tower.clear()  # a recorded call must run and time the tower
        return time.perf_counter() - begin

    def _busy(self, inputs: Inputs, methods: Iterable[Method]) -> dict[str, dict[str, float]]:
        """Return the GPU's busy seconds of each stage, as {label of the setting: {stage: seconds}}.

        The seconds are measured in one more call of each setting; a setting is missing if its call fails. The tower
        runs only in the first call; all settings get its seconds.
        """
        busy_times: dict[str, dict[str, float]] = {}
        encoder = 0.0
        self.tower.output.clear()
        for method in methods:
            runs = method.changes_tower or not self.tower.output
            try:
                with busy_seconds(self.lm):
                    most = min(self.plan.max_new_tokens, _BUSY_TOKENS)
                    generation = method.generate(self.lm, inputs, max_new_tokens=most)
            except ANY_ERROR as error:
                why = told(error)
            else:
                stages, steps = generation.stages, generation.replies[0].new_tokens - 1
                encoder_time = stages.encoder if runs else encoder
                encoder = encoder if method.changes_tower else encoder_time
                prefill = max(0.0, stages.llm_prefill)  # a difference, which rounding may send below 0
                busy = {"encoder": encoder_time, "llm_prefill": prefill, "decode": stages.decode, "steps": steps}
                busy_times[method.label] = busy
                continue
            free_memory()
            self.say(f"{self.plan.task.key}: busy seconds of the GPU are missing: {why}")
        return busy_times


def run_uncounted(lm: AudioLM, inputs: Inputs, methods: Iterable[Method], **options: Any) -> None:
    """Run every method once to warm up, and keep no result: the first call chooses kernels and claims memory."""
    options = {"max_new_tokens": _WARM_UP_TOKENS, **options}
    for method in methods:
        try:
            method.generate(lm, inputs, **options)
        except ANY_ERROR:  # the run itself will fail in the same way, and record why
            free_memory()


def forced_decode(lm: AudioLM, inputs: Inputs, method: Method, decode_tokens: int) -> dict[str, float] | None:
    """Decode exactly `decode_tokens` tokens, past end tokens; return the fields `tokens`, `seconds` and `per_token`.

    Return None if `decode_tokens` is 0.
    """
    if not decode_tokens:
        return None
    generation = method.generate(lm, inputs, max_new_tokens=decode_tokens, ignore_end=True)
    tokens, seconds = generation.replies[0].new_tokens, generation.stages.decode
    return {"tokens": tokens, "seconds": seconds, "per_token": seconds / (tokens - 1), **_setup_of(generation.stages)}


def _setup_of(stages: Stages) -> dict[str, float]:
    """Return {"decode_setup": seconds to prepare decode as a CUDA graph}; empty if decode ran eagerly."""
    return {} if stages.decode_setup is None else {"decode_setup": stages.decode_setup}


def _record(
    plan: Plan,
    batch: Ready,
    row: int,
    generation: Generation,
    forced: dict[str, float] | None,
    tower: Generation,
    *,
    shared: bool,
    warmed: float | None = None,
) -> Record:
    """Return the record of one sample (`row`) of a batch.

    The audio tower's time and peak memory come from `tower`, the one call in which the tower ran.
    """
    inputs = batch.inputs
    assert inputs is not None
    sample, reply, timed = batch.samples[row], generation.replies[row], plan.batch_size is None
    alone, kept, shares = len(batch.samples) == 1, generation.kept_positions, generation.kept_shares
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
        kept_audio_bits=(pack(kept[row], inputs.audio_mask[row]) or None) if kept else None,
        kept_audio_shares=pack_shares(shares[row], inputs.audio_mask[row]) or None if shares else None,
        redundancy=generation.redundancy[row] if generation.redundancy else None,
        kv_lengths=list(generation.kv_lengths) if alone else None,
        kv_bytes=generation.kv_bytes if alone else None,
        new_tokens=reply.new_tokens,
        peak_memory_bytes=peak_memory(generation, tower) if alone else None,
        time=_times(batch, generation, tower) if timed else None,
        session=plan.session if timed or plan.batched else None,
        warmed=warmed,
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
        **_setup_of(stages),
    }


def peak_memory(generation: Generation, tower: Generation) -> int | None:
    """Return the peak of GPU memory in bytes: that of the call, or of the call `tower` (which ran the audio tower) if
    higher.
    """
    peaks = generation.peak_memory_bytes, tower.encoder_peak_memory_bytes
    return max((peak for peak in peaks if peak is not None), default=None)


def asked(plan: Plan, sample: Sample) -> Record:
    """Return a sample's record before it is answered: the fields that do not depend on the model are filled, the rest
    empty.
    """
    return Record(
        sample.id,
        sample.cluster,
        plan.clips.get(sample.id),
        reference=plan.task.reference(sample),
        groups=plan.task.groups(sample),
        transcripts_read=reading.texts if (reading := plan.readings.get(sample.id)) and reading.records else None,
        control=plan.control,
    )


def error_record(plan: Plan, sample: Sample, reason: str) -> Record:
    """Return the record of a sample that failed, with the reason."""
    return replace(asked(plan, sample), error=reason, session=plan.session)
