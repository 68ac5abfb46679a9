"""The checks' workbench: a model, synthetic clips, replies with logits, and the effect of rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from audiomarathon.certify.oracles import Hidden
from audiomarathon.compression.method import Base, Method
from audiomarathon.embedded.signals import noise, voice
from audiomarathon.errors import MethodError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs, Prompt, Waveform

QUESTION = "What is said in this recording? Answer in one sentence."
STEPS = 8
LONGER = 3.0
"""Length of the longer clip, relative to the others."""
_FACTOR = 4.0
_EPSILONS = {torch.float32: 128}
_FEW_EPSILONS = 4  # for coarser precisions, which sum in float32


@dataclass(frozen=True)
class Replied:
    """One sample's greedy tokens, and the raw logits of each step, float32, shape (steps, vocabulary)."""

    tokens: tuple[int, ...]
    logits: torch.Tensor


@dataclass(frozen=True)
class Match:
    """Difference of two replies to the same question.

    Attributes
    ----------
    distance
        Root mean square difference of the logits, in units of their standard deviation, at the worst step; at the
        median step if rounding makes jumps.
    steps
        Number of compared steps: all, or up to the first different token. Later steps continue different texts.
    gap
        If a token differs, how far the reference preferred its token, in the same units; else 0.
    jump
        If rounding makes jumps (:attr:`Bench.jumps`) and a token differs, the distance at that step; else 0.
    """

    distance: float
    steps: int
    gap: float = 0.0
    jump: float = 0.0

    def within(self, tolerance: float) -> bool:
        """Whether rounding explains the difference; a token may differ if the runner-up was close enough."""
        return self.distance <= tolerance and self.gap <= 8 * max(tolerance, self.jump)

    def figure(self, tolerance: float) -> str:
        """Return the comparison in words."""
        sign = "≤" if self.distance <= tolerance else ">"
        ending = f", then another token, {self.gap:.1e} apart" if self.gap else ""
        return f"differs by {self.distance:.1e} {sign} {tolerance:.1e} in {self.steps} tokens{ending}"


def replies_of(generation: Generation) -> list[Replied]:
    """Return each sample's reply."""
    assert generation.logits is not None
    logits = generation.logits.float().unbind(1)
    return [Replied(reply.token_ids, steps) for reply, steps in zip(generation.replies, logits, strict=True)]


def match(reply: Replied, reference: Replied, *, jumps: bool = False) -> Match:
    """Compare two replies, logits and tokens."""
    pairs = enumerate(zip(reply.tokens, reference.tokens, strict=True))
    differs = next((step for step, (token, expected) in pairs if token != expected), None)
    steps = len(reference.tokens) if differs is None else differs + 1
    spread = reference.logits[:steps].std(-1)
    apart = (reply.logits[:steps] - reference.logits[:steps]).square().mean(-1).sqrt() / spread
    distance = float(apart.median() if jumps else apart.max())
    if differs is None:
        return Match(distance, steps)
    row = reference.logits[differs]
    gap = (row[reference.tokens[differs]] - row[reply.tokens[differs]]) / spread[differs]
    return Match(distance, steps, float(gap), float(apart[-1]) if jumps else 0.0)


@dataclass(frozen=True)
class Bench:
    """A loaded model to check.

    Attributes
    ----------
    path
        The checkpoint's folder.
    seconds
        Length of the clips; one clip is :data:`LONGER` times as long.
    """

    lm: AudioLM
    path: Path
    seconds: float

    def clip(self, seed: int, lengths: float = 1.0) -> Waveform:
        """Return a synthetic voice; equal for equal seeds."""
        return speech_like(seed, self.seconds * lengths, self.lm.sampling_rate)

    @cached_property
    def prompt(self) -> Prompt:
        """The question about the first clip."""
        return Prompt(QUESTION, (self.clip(1),), seed=1)

    @cached_property
    def long_prompt(self) -> Prompt:
        """The question about the longer clip."""
        return Prompt(QUESTION, (self.clip(3, LONGER),), seed=3)

    @cached_property
    def inputs(self) -> Inputs:
        """The first prompt, prepared."""
        return self.lm.prepare([self.prompt])

    @cached_property
    def base(self) -> Replied:
        """The reply to the first prompt with nothing removed."""
        return self.reply(self.inputs)

    def generate(self, inputs: Inputs, method: Method | None = None, steps: int = STEPS, **options: Any) -> Generation:
        """Generate `steps` tokens, past any end token, and keep the logits; without a method, at base."""
        options |= {"max_new_tokens": steps, "ignore_end": True, "keep_logits": True}
        return (method or Base()).generate(self.lm, inputs, **options)

    def reply(self, inputs: Inputs, method: Method | None = None, steps: int = STEPS) -> Replied:
        """Generate for one sample."""
        (only,) = replies_of(self.generate(inputs, method, steps))
        return only

    def match(self, reply: Replied, reference: Replied) -> Match:
        """Compare two replies that should be equal."""
        return match(reply, reference, jumps=self.jumps)

    @cached_property
    def jumps(self) -> bool:
        """Whether rounding may route a token to other experts, which moves one step far; a fault moves all steps."""
        coarse = self.lm.model.dtype != torch.float32
        return coarse and bool(getattr(self.lm.decoder.config, "num_experts", 0))

    def plain_reply(self, tensors: Mapping[str, torch.Tensor], steps: int = STEPS) -> Replied:
        """Reply with the model's own greedy `generate`: no hooks, no timer, no method, no penalties."""
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=steps,
            eos_token_id=None,
            pad_token_id=self.lm.tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        with torch.inference_mode():
            done = self.lm.model.generate(**tensors, generation_config=config)
        new = done.sequences[0, tensors["input_ids"].shape[1] :].tolist()
        return Replied(tuple(new), torch.stack(done.logits)[:, 0].float().cpu())

    @cached_property
    def floor(self) -> float:
        """Distance between equivalent computations of base on this machine: the effect of rounding.

        One uses a mask that hides nothing, which selects other kernels; one runs two equal rows in a batch.
        """
        everything = torch.arange(self.inputs.audio_mask.shape[1])
        masked = self.reply(self.inputs, Hidden(kept=everything))
        row = replies_of(self.generate(self.lm.prepare([self.prompt, self.prompt])))[1]
        return max(self.match(masked, self.base).distance, self.match(row, self.base).distance)

    @cached_property
    def tolerance(self) -> float:
        """Largest distance of two results that count as equal.

        Four times the floor, and at least some epsilons of the precision: kernels may agree to the bit when the floor
        is measured (as bfloat16 on a CPU does), but not after tokens were removed.
        """
        dtype = self.lm.model.dtype
        return max(_FACTOR * self.floor, _EPSILONS.get(dtype, _FEW_EPSILONS) * torch.finfo(dtype).eps)


def highest_floor(dtype: torch.dtype) -> float:
    """Return the highest usable noise floor: twice the square root of the precision's epsilon."""
    return float(2 * torch.finfo(dtype).eps ** 0.5)


def speech_like(seed: int, seconds: float, rate: int) -> Waveform:
    """Return phrases of one to two seconds in different voices, with pauses, over faint noise."""
    rng = np.random.default_rng(seed)
    samples = 0.01 * noise(rng, round(seconds * rate), rate, (200, 1.5))
    at = 0
    while at < len(samples):
        size = min(round(rng.uniform(1, 2) * rate), len(samples) - at)
        formants = (rng.uniform(300, 800), rng.uniform(900, 2200), rng.uniform(2300, 3200))
        pitch, pace = rng.uniform(90, 240), rng.uniform(3, 6)
        phrase = voice(rng, size, rate, f0=pitch, formants=formants, syllables=pace, melody=(0.7, 0.1))
        samples[at : at + size] += 0.1 * phrase
        at += size + round(rng.uniform(0.1, 0.4) * rate)
    return np.clip(samples, -1, 1).astype(np.float32)


def applicable(lm: AudioLM, methods: Sequence[Method]) -> tuple[list[Method], dict[str, str]]:
    """Return the methods that apply to a model, and the reason for each method that does not."""
    able, why_not = [], {}
    for method in methods:
        try:
            method.check(lm)
        except MethodError as error:
            why_not[method.key] = str(error)
        else:
            able.append(method)
    return able, why_not
