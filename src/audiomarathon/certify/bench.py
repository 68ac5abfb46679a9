"""Tools for the checks of `certify`: a model, synthetic clips, replies with logits, the size of rounding errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from audiomarathon.certify.oracles import Hidden
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.embedded.signals import noise, voice
from audiomarathon.errors import MethodError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.kernels import attention_kernels
from audiomarathon.models.prompt import Inputs, Prompt, Waveform

_Method = TypeVar("_Method", bound=Method)
QUESTION = "What is said in this recording? Answer in one sentence."
STEPS = 8
LONGER = 3.0
"""Length of the longer clip, as a multiple of the usual length."""
_FACTOR = 4.0
_EPSILONS = {torch.float32: 128}
_FEW_EPSILONS = 4  # for half precisions: their kernels sum in float32


@dataclass(frozen=True)
class Replied:
    """One sample's reply: its greedy tokens, and the raw logits of each step, float32, shape (steps, vocabulary)."""

    tokens: tuple[int, ...]
    logits: torch.Tensor


@dataclass(frozen=True)
class Match:
    """How far a reply differs from a reference reply to the same question.

    Attributes
    ----------
    distance
        Root mean square difference of the logits, in units of their standard deviation: the maximum over the steps, or
        the median if rounding makes jumps (:attr:`Bench.jumps`).
    steps
        Number of compared steps: up to and including the first token that differs, else all. Later steps would continue
        different texts.
    gap
        At the first token that differs, in the reference's logits: the logit of the reference's token − the logit of
        the reply's token, in the same units. 0 if no token differs.
    jump
        If rounding makes jumps (:attr:`Bench.jumps`) and a token differs, the distance at that step; else 0.
    """

    distance: float
    steps: int
    gap: float = 0.0
    jump: float = 0.0

    def within(self, tolerance: float) -> bool:
        """Tell whether rounding explains the difference, with distances up to `tolerance`.

        Different tokens are accepted if :attr:`gap` is small.
        """
        return self.distance <= tolerance and self.gap <= 8 * max(tolerance, self.jump)

    def figure(self, tolerance: float) -> str:
        """Return how far the two replies differ, as text, such as `differs by 1.2e-06 ≤ 4.0e-06 in 8 tokens`."""
        sign = "≤" if self.distance <= tolerance else ">"
        ending = f", then the tokens differ (their logits: {self.gap:.1e} apart)" if self.gap else ""
        return f"differs by {self.distance:.1e} {sign} {tolerance:.1e} in {self.steps} tokens{ending}"


def replies_of(generation: Generation) -> list[Replied]:
    """Return each sample's reply (tokens and logits), as a list, from a `generate` call that kept logits."""
    assert generation.logits is not None
    logits = generation.logits.float().unbind(1)
    replies = zip(generation.replies, logits, strict=True)
    return [Replied(reply.token_ids, steps[: len(reply.token_ids)]) for reply, steps in replies]


def pruner(lm: AudioLM, ratio: float = 0.5) -> Frame:
    """Return a token pruner that works with any model: at layer 2, or at the input of an encoder-decoder."""
    return Frame(ratio, at="input") if lm.cross else Frame(ratio, layer=min(2, len(lm.decoder_layers) - 1))


def placed(lm: AudioLM, method: _Method) -> _Method:
    """Return a method that can work with this model: for an encoder-decoder, a token pruner that drops at the input.

    All other methods, and pruners for other models, are returned unchanged.
    """
    return replace(method, at="input") if lm.cross and isinstance(method, TokenPruner) else method


def match(reply: Replied, reference: Replied, *, jumps: bool = False) -> Match:
    """Compare two replies: return how far their logits differ, and where their tokens first differ."""
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
    """A loaded model to check, with prompts about synthetic clips.

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
        """Return a synthetic voice of `lengths` × the usual length; the same seed gives the same voice."""
        return speech_like(seed, self.seconds * lengths, self.lm.sampling_rate)

    @cached_property
    def prompt(self) -> Prompt:
        """A prompt with one clip of the usual length."""
        return Prompt(QUESTION, (self.clip(1),), seed=1)

    @cached_property
    def long_prompt(self) -> Prompt:
        """A prompt with one clip that is :data:`LONGER` times as long."""
        return Prompt(QUESTION, (self.clip(3, LONGER),), seed=3)

    @cached_property
    def inputs(self) -> Inputs:
        """The tensors that the model gets for :attr:`prompt`."""
        return self.lm.prepare([self.prompt])

    @cached_property
    def base(self) -> Replied:
        """The model's reply to :attr:`prompt` with nothing removed."""
        return self.reply(self.inputs)

    def generate(self, inputs: Inputs, method: Method | None = None, steps: int = STEPS, **options: Any) -> Generation:
        """Generate `steps` tokens, even past end tokens; return the replies with their logits. Without a method,
        nothing is removed.
        """
        options |= {"max_new_tokens": steps, "ignore_end": True, "keep_logits": True}
        return (method or Base()).generate(self.lm, inputs, **options)

    def reply(self, inputs: Inputs, method: Method | None = None, steps: int = STEPS) -> Replied:
        """Generate `steps` tokens for a batch of one sample, and return its tokens and logits."""
        (only,) = replies_of(self.generate(inputs, method, steps))
        return only

    def match(self, reply: Replied, reference: Replied) -> Match:
        """Return how far two replies differ; only rounding should make them differ."""
        return match(reply, reference, jumps=self.jumps)

    @cached_property
    def jumps(self) -> bool:
        """Whether rounding may send a token to other experts: True for a mixture of experts in half precision.

        Such a jump changes the logits of one step strongly; a fault changes those of all steps.
        """
        coarse = self.lm.model.dtype != torch.float32
        return coarse and bool(getattr(self.lm.decoder.config, "num_experts", 0))

    def plain_reply(self, tensors: Mapping[str, torch.Tensor], steps: int = STEPS) -> Replied:
        """Return the reply of the model's own greedy `generate`: no hooks, no timer, no method, no penalties."""
        with torch.inference_mode(), attention_kernels(self.lm.sdpa_backends):
            tokens, logits = self.lm.plainly(tensors, steps)
        return Replied(tuple(tokens.tolist()), logits.float().cpu())

    @cached_property
    def floor(self) -> float:
        """The noise floor: how far rounding alone moves the logits of base (nothing removed) on this machine.

        Base is computed again with a mask that hides nothing (which selects other kernels), and in a batch of two equal
        samples. The floor is the larger distance.
        """
        everything = torch.arange(self.inputs.audio_mask.shape[1])
        masked = self.reply(self.inputs, Hidden(kept=everything))
        row = replies_of(self.generate(self.lm.prepare([self.prompt, self.prompt])))[1]
        return max(self.match(masked, self.base).distance, self.match(row, self.base).distance)

    @cached_property
    def tolerance(self) -> float:
        """Largest distance between two replies' logits that still counts as equal.

        It is four times the noise floor, and at least a few machine epsilons: kernels may be bit-identical when the
        floor is measured (as in bfloat16 on a CPU), but not after tokens were removed.
        """
        dtype = self.lm.model.dtype
        return max(_FACTOR * self.floor, _EPSILONS.get(dtype, _FEW_EPSILONS) * torch.finfo(dtype).eps)


def highest_floor(dtype: torch.dtype) -> float:
    """Return the highest noise floor at which the checks still work: twice the square root of the dtype's epsilon."""
    return float(2 * torch.finfo(dtype).eps ** 0.5)


def speech_like(seed: int, seconds: float, rate: int) -> Waveform:
    """Return synthetic speech: phrases of one to two seconds in different voices, with pauses, over faint noise."""
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
    """Return (the methods that apply to a model, {key of a method that does not: reason})."""
    able, why_not = [], {}
    for method in methods:
        try:
            method.check(lm)
        except MethodError as error:
            why_not[method.key] = str(error)
        else:
            able.append(method)
    return able, why_not
