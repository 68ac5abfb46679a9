"""Measure every setting at one duration next to base (no compression), with two yardsticks.

The ideal follows from FLOPs and bytes; the control is a prompt that really is as short as the pruned one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.costs.cost import Cost, Drops, tower_speed_up
from audiomarathon.costs.flops import drops_of
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.timing import Clock

TEXT = (
    "Which sound event occurs in this recording?\n\nA. Alarm\nB. Dog\nC. Frying\nD. Speech\n\nAnswer with the letter."
)


class CpuTimeClock(Clock):
    """A clock of this process's CPU time, which excludes time spent waiting for other processes."""

    def mark(self) -> float:
        """Return the CPU seconds of this process so far."""
        return time.process_time()


def bandwidth(device: str, repeats: int = 5) -> float:
    """Measure how many bytes per second the device reads and writes to copy memory: the fastest of several copies."""
    source = torch.empty(2**30 if device.startswith("cuda") else 2**26, dtype=torch.uint8, device=device)
    target, clock, seconds = torch.empty_like(source), Clock([source.device] * source.is_cuda), list[float]()
    for _ in range(repeats + 1):
        begin = clock.mark()
        target.copy_(source)
        seconds.append(clock.seconds(begin, clock.mark()))
    return 2 * len(source) / min(seconds[1:])


@dataclass(frozen=True)
class Row:
    """Figures of one setting at one duration: medians of seconds over repeats, and of speed-ups (base ÷ setting)."""

    seconds: float
    batch: int
    setting: str
    audio_tokens: int
    kept: int
    kv_bytes: int
    peak_memory_bytes: int | None
    encoder_s: float
    llm_prefill_s: float
    scoring_share: float
    decode_per_token_s: float
    prefill_speed_up: float
    prefill_ideal: float | None
    prefill_control: float | None
    first_token_speed_up: float
    first_token_ideal: float | None
    decode_speed_up: float
    decode_ideal: float | None
    decode_bytes: float | None
    decode_setup_s: float | None
    tower_speed_up: float
    tower_ideal: float


def noise_of(tokens: int) -> np.ndarray:
    """Return noise of a length that gives exactly this many audio tokens (25 a second)."""
    return (0.1 * np.random.default_rng(0).standard_normal(tokens * 640)).astype(np.float32)


def prepare(lm: AudioLM, tokens: int, batch: int = 1) -> Inputs:
    """Prepare a batch of prompts with this many audio tokens each."""
    inputs = lm.prepare([Prompt(TEXT, (noise_of(tokens),), seed=1)] * batch)
    assert inputs.audio_tokens == [tokens] * batch, inputs.audio_tokens
    return inputs


def forced(lm: AudioLM, inputs: Inputs, method: Method, tokens: int) -> Generation:
    """Generate exactly `tokens` tokens, even after an end token."""
    return method.generate(lm, inputs, max_new_tokens=tokens, ignore_end=True)


def measure(
    lm: AudioLM,
    cost: Cost,
    seconds: float,
    methods: Sequence[Method],
    *,
    repeats: int,
    decode_tokens: int,
    control: bool,
    batch: int = 1,
) -> Iterator[Row]:
    """Measure every method at one duration with one batch size; yield a row per method.

    The control is measured for single samples only.
    """
    total = round(seconds * 25)
    inputs = prepare(lm, total, batch)
    generations: dict[str, list[Generation]] = {method.label: [] for method in methods}
    with encoder_shared(lm) as memory:
        for method in methods:
            forced(lm, inputs, method, 2)  # the first call chooses kernels and claims memory
        for repeat in range(repeats):
            memory.clear()  # the tower runs once a repeat
            turn = repeat % len(methods)
            for method in [*methods[turn:], *methods[:turn]]:
                generations[method.label].append(forced(lm, inputs, method, decode_tokens))
    sharing = [method.label for method in methods if not method.changes_tower]
    encoders = [max(generations[label][repeat].stages.encoder for label in sharing) for repeat in range(repeats)]
    shorter = {
        kept: short_prefill(lm, kept, repeats)
        for kept in {
            kept_count(total, drops.ratio) for drops in map(drops_of, methods) if drops and drops.layer is not None
        }
        if control and batch == 1
    }
    tower_peak = max(
        (generation.encoder_peak_memory_bytes or 0 for each in generations.values() for generation in each), default=0
    )
    for method in methods:
        yield row(method, seconds, inputs, generations, encoders, tower_peak, cost, shorter)


def short_prefill(lm: AudioLM, tokens: int, repeats: int) -> float:
    """Return the LLM prefill time of a prompt that really has only `tokens` audio tokens, without compression."""
    inputs = prepare(lm, tokens)
    with encoder_shared(lm):
        forced(lm, inputs, Base(), 1)
        return statistics.median(forced(lm, inputs, Base(), 1).stages.llm_prefill for _ in range(repeats))


def row(
    method: Method,
    seconds: float,
    inputs: Inputs,
    generations: dict[str, list[Generation]],
    encoders: Sequence[float],
    tower_peak: int,
    cost: Cost,
    shorter: dict[int, float],
) -> Row:
    """Make the row of one method, from its generations and those of base (no compression).

    All settings that do not change the audio tower share its times; all share its peak memory.
    """
    method_runs, base = generations[method.label], generations[Base().label]
    audio, prompt, batch = inputs.audio_tokens[0], inputs.prompt_tokens[0], len(inputs.prompt_tokens)
    drops, layers = drops_of(method, cost.tower_layers), len(cost.flops_per_token_per_layer)
    towers = [generation.stages.encoder for generation in method_runs] if method.changes_tower else encoders
    prefills = [generation.stages.llm_prefill for generation in method_runs]
    bases = [generation.stages.llm_prefill for generation in base]
    per_token = [generation.stages.decode / (generation.replies[0].new_tokens - 1) for generation in method_runs]
    base_per_token = [generation.stages.decode / (generation.replies[0].new_tokens - 1) for generation in base]
    caches = [repeats[0].kv_bytes / batch for repeats in (base, method_runs)]
    step = [cost.step_bytes(cache, batch) for cache in caches] if cost.weight_bytes is not None else []
    setups = [
        generation.stages.decode_setup for generation in method_runs if generation.stages.decode_setup is not None
    ]
    ideal = first_ideal = controlled = None
    if drops is not None:
        whole, spared = (cost.llm_prefill(drop.tokens(layers, prompt, audio)) for drop in (Drops(), drops))
        known = bool(cost.encoder_flops_per_second)
        encoder, less = (cost.encoder(seconds, drop) if known else 0.0 for drop in (None, drops))
        ideal, first_ideal = whole / spared, (encoder + whole) / (less + spared)
        if drops.layer is not None and (short := shorter.get(kept_count(audio, drops.ratio))):
            below = drops.layer / layers
            full = statistics.median(bases)
            controlled = full / (below * full + (1 - below) * short)
    return Row(
        seconds=seconds,
        batch=batch,
        setting=method.label,
        audio_tokens=audio,
        kept=method_runs[0].kept_audio_tokens[0],
        kv_bytes=method_runs[0].kv_bytes,
        peak_memory_bytes=max([tower_peak, *(generation.peak_memory_bytes or 0 for generation in method_runs)]) or None,
        encoder_s=statistics.median(towers),
        llm_prefill_s=statistics.median(prefills),
        scoring_share=statistics.median(
            generation.scoring / b for generation, b in zip(method_runs, bases, strict=True)
        ),
        decode_per_token_s=statistics.median(per_token),
        prefill_speed_up=statistics.median(b / p for b, p in zip(bases, prefills, strict=True)),
        prefill_ideal=ideal,
        prefill_control=controlled,
        first_token_speed_up=statistics.median(
            (e + b) / (t + p) for e, t, b, p in zip(encoders, towers, bases, prefills, strict=True)
        ),
        first_token_ideal=first_ideal,
        decode_speed_up=statistics.median(b / p for b, p in zip(base_per_token, per_token, strict=True)),
        decode_ideal=step[0] / step[1] if step else None,
        decode_bytes=step[1] if step else None,
        decode_setup_s=statistics.median(setups) if setups else None,
        tower_speed_up=statistics.median(e / t for e, t in zip(encoders, towers, strict=True)),
        tower_ideal=tower_speed_up(cost, drops or Drops()),
    )
