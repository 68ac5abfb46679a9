"""Turn samples into batches for the model: decode the clips, word the prompts, and make tensors.

A timed run prepares one sample at a time, so that nothing else runs while the model is timed. An untimed run prepares
the next batches in threads while the model works.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from audiomarathon.audio import decode as audio
from audiomarathon.benchmarks.clip_limits import longest_clips
from audiomarathon.benchmarks.fingerprint import clip_hash
from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.engine.stopping import Stopping
from audiomarathon.engine.transcripts import Reading
from audiomarathon.errors import ANY_ERROR, AudioError, DataError, told
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Inputs, Prompt

WARM_PASS_TOKENS = 3  # prefill and two decode steps
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Plan:
    """How to run a task under all of its settings.

    Attributes
    ----------
    max_new_tokens
        Token limit of a reply.
    decode_tokens
        Length of the forced decode run: a second call that decodes exactly this many tokens, to time them; 0 for none.
    seed
        Seed of the run; each sample's seed is derived from it.
    batch_size
        Samples per batch of an untimed run; None for a timed run, which has batches of one sample.
    sizes
        With `BATCH_SIZE=auto`: samples per batch that fit into memory, as {label of the setting: number}; else empty.
    warm_up
        Whether a timed run starts with an uncounted pass over its first sample (not if `warm` is set).
    warm
        Whether an uncounted call of the same sample and setting precedes each timed call, since a GPU is slow at
        lengths that it has not run before.
    profiled
        Ids of samples for which the GPU's busy seconds are measured too, in one more call of each setting.
    language
        Language of the speech, for models that transcribe.
    session
        Start time and process of the run. Two records of one sample with the same session were measured side by side.
    clips
        Hash of each sample's clips, as {sample id: hash}. A sample whose record has another hash runs again. If empty,
        no hashes are compared.
    control
        Kind of audio control (`silence`, …), written into each answered record; None for the real audio.
    readings
        Transcripts that a text LLM reads instead of a sample's clips, as {sample id: transcripts}; empty for models
        that take audio.
    stopping
        Rule that stops a setting before all samples are run; None to run all samples.
    turn
        Number of samples in earlier rounds of this run (a run that may stop early works in rounds). It decides which
        setting goes first on a sample.
    """

    task: Task
    samples: tuple[Sample, ...]
    max_new_tokens: int
    decode_tokens: int = 0
    seed: int = 42
    batch_size: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    warm_up: bool = True
    warm: bool = False
    profiled: frozenset[str] = frozenset()
    language: str = "en"
    session: str | None = None
    clips: Mapping[str, str] = field(default_factory=dict)
    control: str | None = None
    readings: Mapping[str, Reading] = field(default_factory=dict)
    stopping: Stopping | None = None
    turn: int = 0

    @property
    def batched(self) -> bool:
        """Whether samples run in batches of more than one; then each record holds the times of its batch."""
        return bool(self.sizes) or (self.batch_size or 1) > 1


@dataclass
class Ready:
    """A batch of samples, prepared for the model: decoded, and turned into tensors.

    `inputs` has the tensors. `failed` holds each sample that could not be prepared, with the reason. `clip_seconds`
    has, for each sample, the seconds of audio that the model takes in; speeds and FLOPs are computed from it. `load`
    has the seconds that decoding took, and `preprocess` the seconds that making the tensors took.
    """

    samples: list[Sample]
    inputs: Inputs | None
    clip_seconds: list[float]
    load: float
    preprocess: float
    failed: list[tuple[Sample, str]]


def sample_seed(seed: int, sample_id: str) -> int:
    """Return the seed of one sample: the same on every machine and in every order of samples."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{sample_id}".encode()).digest()[:4], "big")


def heard(plan: Plan, sample: Sample, sampling_rate: int) -> Prompt:
    """Return a sample's prompt with its decoded clips, after checking that the clips have not changed since the run
    began.

    The prompt of a text LLM has transcripts instead of clips.

    The check hashes clips that this process has not hashed yet, or whose file changed since: a worker on another
    machine can only compare content, since file times differ there. A clip that is replaced between decoding and
    hashing is noticed by its file's size and time.

    Raises
    ------
    AudioError
        A clip cannot be decoded, or has changed since the run began; the message names it.
    """
    seed = sample_seed(plan.seed, sample.id)
    if (reading := plan.readings.get(sample.id)) is not None:
        return Prompt(reading.worded(plan.task.prompt(sample)), (), seed)
    before = [_file_facts(clip) for clip in sample.clips]
    clips = tuple(audio.decode(path, sampling_rate) for path in sample.clips)
    if plan.clips:
        try:
            same = clip_hash(sample) == plan.clips[sample.id]
        except DataError:
            same = False  # the clip is gone
        if not same or [_file_facts(clip) for clip in sample.clips] != before:
            names = ", ".join(str(clip) for clip in sample.clips)
            raise AudioError(names, "changed since the run began; run the same command again to use it as it is now")
    return Prompt(plan.task.prompt(sample), clips, seed, plan.task.transcribes, plan.language)


def _file_facts(clip: Path) -> tuple[int, ...]:
    try:
        facts = clip.stat()
    except OSError:
        return ()  # decoding reports the reason
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def by_length(plan: Plan, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of a batched run sorted by the length of their audio, so that batches have little padding.

    The longest come first: a batch that does not fit into memory then fails at the start. Samples of one bundle
    (samples that always run together) stay together. A run that is not batched keeps its order.
    """
    if not plan.batched:
        return list(samples)
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(f"b{sample.bundle}" if sample.bundle else f"s{sample.id}", []).append(sample)
    heard = longest_clips(samples, together=True)
    longest = {name: max(heard.get(sample.id, 0.0) for sample in members) for name, members in groups.items()}
    return [sample for name in sorted(groups, key=lambda name: -longest[name]) for sample in groups[name]]


def in_batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Return lists of at most `size` samples. Samples about one clip (a bundle) stay together if they fit."""
    batches: list[list[Sample]] = [[]]
    for _bundle, members in itertools.groupby(samples, key=lambda sample: sample.bundle or sample.id):
        group = list(members)
        if len(group) > size - len(batches[-1]) and len(group) <= size:
            batches.append([])
        for sample in group:
            if len(batches[-1]) == size:
                batches.append([])
            batches[-1].append(sample)
    return [batch for batch in batches if batch]


def prefetched(lm: AudioLM, plan: Plan, samples: Sequence[Sample]) -> Generator[Ready]:
    """Yield prepared batches of samples, each prepared in a thread while the model works on an earlier batch.

    At most two batches are prepared ahead, since more would take memory.
    """
    batches = deque(in_batches(samples, plan.batch_size or 1))
    waiting: deque[Future[Ready]] = deque()
    # With a GPU, one torch thread per preparing thread is fastest. On a CPU, this setting would also slow the model.
    quick = functools.partial(torch.set_num_threads, 1) if lm.device.type == "cuda" else None
    with ThreadPoolExecutor(_BATCHES_AHEAD, thread_name_prefix="prefetch", initializer=quick) as pool:
        try:
            while batches or waiting:
                while batches and len(waiting) < _BATCHES_AHEAD:
                    waiting.append(pool.submit(prepare, lm, plan, batches.popleft()))
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def prepare(lm: AudioLM, plan: Plan, samples: list[Sample]) -> Ready:
    """Decode samples, word their prompts, and turn them into tensors; return them as a batch (:class:`Ready`).

    A sample that fails goes to the batch's `failed`. If the batch as a whole cannot become tensors, its `inputs` is
    None, and the caller prepares the samples one by one.
    """
    ready = Ready([], None, [], 0.0, 0.0, [])
    prompts: list[Prompt] = []
    for sample in samples:
        begin = time.perf_counter()
        try:
            prompts.append(heard(plan, sample, lm.sampling_rate))
        except ANY_ERROR as error:  # one sample's failure is a record, not the end of the run
            ready.failed.append((sample, told(error)))
            continue
        ready.load += time.perf_counter() - begin
        ready.samples.append(sample)
        ready.clip_seconds.append(sum(map(len, prompts[-1].clips)) / lm.sampling_rate)
    if not prompts:
        return ready
    begin = time.perf_counter()
    try:
        ready.inputs = lm.prepare(prompts)
        ready.clip_seconds = list(ready.inputs.heard_seconds or ready.clip_seconds)
    except ANY_ERROR as error:
        if len(samples) == 1:
            return Ready([], None, [], 0.0, 0.0, [(samples[0], told(error))])
        ready.inputs = None  # the caller prepares the samples one by one, to find the sample that fails
    ready.preprocess = time.perf_counter() - begin
    return ready
