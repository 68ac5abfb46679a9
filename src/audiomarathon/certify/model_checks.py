"""Checks of the model: its replies, its use of the audio, and that no hooks are left on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from audiomarathon.certify.bench import LONGER, STEPS, Bench, highest_floor, pruner, replies_of
from audiomarathon.certify.check_result import Finding
from audiomarathon.engine.stamp import PASS
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prompt import Inputs, Prompt

_SAMPLING = {"do_sample": True, "temperature": 5.0, "top_k": 0, "top_p": 1.0}


def noise_floor(bench: Bench) -> Finding:
    """Check that rounding errors in this precision are small enough for the other checks."""
    highest = highest_floor(bench.lm.model.dtype)
    figure = f"rounding moves base by {bench.floor:.1e}; at most {highest:.1e}; tolerance {bench.tolerance:.1e}"
    return Finding.of(bench.floor <= highest, figure)


def documented(bench: Bench) -> Finding:
    """Check that base (nothing removed) replies like the code in the model's documentation, at two clip lengths.

    The documented code gets the inputs that the family's own processor makes.
    """
    # Stay below 30 s: a processor that cuts there computes the last frame without zero padding. We never cut.
    short, longer = bench.clip(1, 0.9), bench.clip(3, 0.9 * LONGER)
    finding = _documented(bench, Prompt(bench.prompt.text, (short,), seed=1))
    if finding.verdict != PASS:
        return finding
    also = _documented(bench, Prompt(bench.prompt.text, (longer,), seed=3))
    return Finding(also.verdict, f"{finding.figure}; {0.9 * LONGER * bench.seconds:.0f} s: {also.figure}")


def _documented(bench: Bench, prompt: Prompt) -> Finding:
    prepared = bench.lm.prepare([prompt])
    processed = bench.lm.documented_inputs(bench.path, prompt)
    source, tensors = "our inputs, because the family's processor cannot be built here", prepared.tensors
    if processed is not None:
        source, tensors = "the processor's inputs", _on_device(processed, prepared)
        both = [inputs.get("input_ids", torch.empty(1, 0)).tolist() for inputs in (prepared.tensors, tensors)]
        ours, expected = both  # an encoder-decoder has no prompt tokens of audio
        if ours != expected:
            return Finding.fail(
                f"our prompt of {len(ours[0])} tokens is not the processor's, which has {len(expected[0])} tokens"
            )
    match = bench.match(bench.reply(prepared), bench.plain_reply(tensors))
    return Finding.of(match.within(bench.tolerance), f"{source}; {match.figure(bench.tolerance)}")


def _on_device(processed: Mapping[str, Any], prepared: Inputs) -> dict[str, torch.Tensor]:
    """Return a processor's tensors, as {name: tensor}, moved to the device and precision of our inputs."""
    precision = next(tensor.dtype for tensor in prepared.tensors.values() if tensor.is_floating_point())
    device = prepared.audio_mask.device
    tensors = {name: value for name, value in processed.items() if torch.is_tensor(value)}
    return {
        name: tensor.to(device, precision if tensor.is_floating_point() else None) for name, tensor in tensors.items()
    }


def greedy(bench: Bench) -> Finding:
    """Check that generation is greedy: two calls are bit-identical, and each token is the most likely one.

    A generation config that asks for sampling must change nothing.
    """
    again = bench.reply(bench.inputs)
    if again.tokens != bench.base.tokens or not torch.equal(again.logits, bench.base.logits):
        return Finding.fail("the same call twice gave two replies or other logits")
    best = bench.lm.allowed(again.logits).argmax(-1).tolist()
    if list(again.tokens) != best:
        return Finding.fail("a token is not the most likely one of its step: the reply is sampled")
    with patched_attribute(bench.lm.model, "generation_config", GenerationConfig(**_SAMPLING)):
        sampled = bench.reply(bench.inputs)
    if sampled.tokens != again.tokens:
        return Finding.fail("a sampling config changed the reply")
    return Finding.ok(
        f"two calls bit-identical over {STEPS} tokens; the same tokens under a sampling generation config"
    )


def hears(bench: Bench) -> Finding:
    """Check that silence, another clip, and a changed end of the longer clip each change the first token's logits."""
    silence = np.zeros_like(bench.clip(1))
    moved = {"silence": _moved(bench, bench.prompt, silence), "another": _moved(bench, bench.prompt, bench.clip(2))}
    figure = ", ".join(f"{name} {value:.2g}" for name, value in moved.items())
    # Silence must change the logits by more than the tolerance. Two voices may be similar, so any change above the
    # floor counts.
    good = moved["silence"] > bench.tolerance and moved["another"] > bench.floor
    if any(bench.lm.prepare([bench.long_prompt]).truncated):  # the model cuts clips, as some published models do
        return Finding.of(
            good, f"the first token's logits change by {figure}; the model cuts longer clips, and records say so"
        )
    ending = bench.long_prompt.clips[0].copy()
    tail = min(len(ending) // 4, bench.lm.sampling_rate)
    ending[-tail:] = bench.clip(4)[:tail]
    last = _moved(bench, bench.long_prompt, ending)
    figure += f", the last second of {bench.seconds * LONGER:.0f} s {last:.2g}"
    # For the end, any change counts: one second of many may move the logits less than rounding does.
    return Finding.of(good and last > 0, f"the first token's logits change by {figure}")


def _moved(bench: Bench, prompt: Prompt, clip: np.ndarray[Any, Any]) -> float:
    """Return how far the first token's logits move if `clip` replaces the prompt's clip, in standard deviations."""
    prompts = (prompt, Prompt(prompt.text, (clip,), prompt.seed))
    return _distance(*(bench.reply(bench.lm.prepare([asked]), steps=1).logits for asked in prompts))


def _distance(logits: torch.Tensor, changed: torch.Tensor) -> float:
    """Return the root mean square difference of two sets of logits, in units of their standard deviation."""
    return float((logits - changed).square().mean().sqrt() / logits.std())


def audio_mask(bench: Bench) -> Finding:
    """Check that other audio changes what enters the first layer at exactly the positions of the audio mask."""
    if bench.lm.cross:
        return Finding.not_applicable("the decoder's prompt holds no audio; states are counted from the clip's length")
    other = bench.lm.prepare([Prompt(bench.prompt.text, (bench.clip(2),))])
    if other.audio_mask.shape != bench.inputs.audio_mask.shape:
        return Finding.fail("two clips of the same length gave prompts of different lengths")
    first, second = (_entering(bench, inputs) for inputs in (bench.inputs, other))
    changed = (first != second).any(-1)[0].cpu()
    mask = bench.inputs.audio_mask[0].cpu()
    missed, extra = int((changed & ~mask).sum()), int((mask & ~changed).sum())
    counts = f"{int(mask.sum())} of {len(mask)} positions"
    # Padding of the last window may be equal for all clips (Gemma 3n uses one learnt vector).
    padding = sum(bench.inputs.window_padding)
    if missed or extra > padding:
        return Finding.fail(
            f"{counts} are in the mask; {missed} others change with the audio, {extra} in the mask do not change"
        )
    return Finding.ok(f"{counts} carry audio, exactly those of the mask")


def _entering(bench: Bench, inputs: Inputs) -> torch.Tensor:
    """Return the hidden states that enter the LLM's first layer, shape (B, S, D)."""
    seen: list[torch.Tensor] = []

    def record(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        seen.append(hidden if hidden.dim() == 3 else hidden[0])

    with bench.lm.decoder_layers[0].register_forward_pre_hook(record, with_kwargs=True):
        bench.reply(inputs, steps=1)
    return seen[0]


def batch(bench: Bench) -> Finding:
    """Check that clips of three lengths get the same replies in a batch as alone, with and without pruning."""
    short = Prompt("And here?", (bench.clip(5, 0.5),), seed=5)
    prompts = [bench.long_prompt, bench.prompt, short]
    together = bench.lm.prepare(prompts)
    matches = []
    for method in (None, pruner(bench.lm)):
        for prompt, in_batch in zip(prompts, replies_of(bench.generate(together, method)), strict=True):
            matches.append(bench.match(in_batch, bench.reply(bench.lm.prepare([prompt]), method)))
    furthest = max(matches, key=lambda match: match.distance)
    good = all(match.within(bench.tolerance) for match in matches)
    same = sum(not match.gap for match in matches)
    figure = f"batch of {len(prompts)}, with base and frame: {same} of {len(matches)} replies equal those alone"
    return Finding.of(good, f"{figure}; {furthest.figure(bench.tolerance)}")


def adapter(bench: Bench) -> Finding:
    """Check that the family's adapter is on: switching it off must change the logits."""
    off = bench.lm.without_adapter()
    if off is None:
        return Finding.not_applicable("this family has no adapter")
    with off:
        bare = bench.reply(bench.inputs, steps=1)
    back = bench.reply(bench.inputs, steps=1)
    on = bench.base.logits[:1]
    if not torch.equal(back.logits, on):
        return Finding.fail("switched off and on again, the adapter gives other logits")
    moved = _distance(on, bare.logits)
    return Finding.of(moved > bench.tolerance, f"without the adapter, the first token's logits change by {moved:.1e}")


def leftovers(bench: Bench) -> Finding:
    """Check that nothing is left on the model: no hooks, wrappers, replaced functions or changed generation config."""
    lm, leftovers_found = bench.lm, []
    for name, module in lm.model.named_modules():
        if module._forward_pre_hooks or module._forward_hooks:
            leftovers_found.append(f"a hook on {name or 'the model'}")
        if "forward" in module.__dict__ and not hasattr(module, "_hf_hook"):  # accelerate replaces forward too
            leftovers_found.append(f"a replaced forward of {name or 'the model'}")
    if ALL_ATTENTION_FUNCTIONS._local_mapping:
        leftovers_found.append("a wrapped attention function")
    if lm.model.generation_config.to_diff_dict() != GenerationConfig().to_diff_dict():
        leftovers_found.append("another generation config")
    if lm.model.training:
        leftovers_found.append("training mode")
    if leftovers_found:
        return Finding.fail(
            f"left behind: {'; '.join(leftovers_found[:3])}" + (" …" if len(leftovers_found) > 3 else "")
        )
    again = bench.reply(bench.inputs)
    if not torch.equal(again.logits, bench.base.logits):
        return Finding.fail("base is not bit-identical to what it was before the other checks")
    return Finding.ok(f"{sum(1 for _ in lm.model.modules())} modules clean; base bit-identical to the first call")
