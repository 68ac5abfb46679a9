"""Checks of token pruners at the LLM's input and inside the audio tower: dropping equals a shorter prompt."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from audiomarathon.certify.bench import Bench, applicable, replies_of
from audiomarathon.certify.check_result import Finding
from audiomarathon.certify.method_checks import RATIO, compared, wrong_positions
from audiomarathon.certify.oracles import Shorter, merged
from audiomarathon.compression.method import Base, Method, at_stride, kept_count
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.models.generation import Generation
from audiomarathon.models.kernels import attention_kernels
from audiomarathon.models.layers import call_of
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.merge import Merge


def dropping_at_input(bench: Bench, method: TokenPruner) -> Finding:
    """Check that dropping at the LLM's input gives the reply to a prompt that never held the dropped audio tokens."""
    method = dataclasses.replace(method, ratio=RATIO, at="input")
    if why_not := applicable(bench.lm, [method])[1] or bench.lm.cross:
        why = why_not[method.key] if isinstance(why_not, dict) else "no prompt holds audio; see the check without place"
        return Finding.not_applicable(why)
    done = bench.generate(bench.inputs, method)
    _base, (call,) = _watched(bench, Base(), bench.lm.decoder_layers[0])
    (kept,), (merge,), whole = done.kept_positions or (), done.merges or (None,), call["hidden_states"]
    audio = bench.inputs.audio_mask[0].nonzero().flatten()
    heard = audio[torch.isin(audio.cpu(), kept).to(audio.device)].to(whole.device)
    if wrong := wrong_positions(bench.inputs, kept):
        return Finding.fail(wrong)
    states = whole[0, heard] if merge is None else merged(whole, audio, merge)[0]
    oracle = bench.reply(bench.inputs, Shorter(kept=kept, states=states))
    return compared(bench, replies_of(done)[0], oracle)


def dropping_in_tower(bench: Bench, method: TokenPruner) -> Finding:
    """Check that dropping inside the audio tower gives the output of its layers called one by one, for each window
    alone.

    Also check that the LLM then replies as to a prompt with only these audio tokens. The method's choice itself is not
    repeated, since rounding decides between similar states; instead, check that the method got the right states.
    """
    lm = bench.lm
    method = dataclasses.replace(method, ratio=RATIO, at="tower")
    if why_not := applicable(lm, [method])[1]:
        return Finding.not_applicable(why_not[method.key])
    first, *_later = steps = dict(method.steps(len(lm.tower_layers)))
    _base, (call,) = _watched(bench, Base(), lm.tower_layers[first])
    made: dict[tuple[int, int], tuple[torch.Tensor | None, torch.Tensor | Merge]] = {}
    seen, select = list[float](), type(method).select

    def noting(pruner: TokenPruner, evidence: Evidence) -> torch.Tensor | Merge:
        made[evidence.seed, len(evidence.positions)] = evidence.states, select(pruner, evidence)
        return made[evidence.seed, len(evidence.positions)][1]

    def chosen(evidence: Evidence) -> torch.Tensor | Merge:
        states, choice = made[evidence.seed, len(evidence.positions)]
        if states is not None and evidence.states is not None:
            seen.append(_apart(states, evidence.states))
        return choice

    with patched_attribute(type(method), "select", noting):
        done, (call_of_llm, _last) = _watched(bench, method, lm.decoder_layers[0], lm.tower_layers[-1])
    last_states = _last["output"].flatten(0, -2)
    with torch.inference_mode(), attention_kernels(lm.sdpa_backends):
        expected = _by_hand(bench, method, chosen, call, steps)
    if last_states.shape != expected.shape:
        return Finding.fail(f"the tower's last layer has {len(last_states)} states, but {len(expected)} were planned")
    apart = max(_apart(last_states, expected), *seen, 0.0)
    figure = f"the tower's states differ by {apart:.1e} of at most {bench.tolerance:.1e}"
    if lm.cross or apart > bench.tolerance:
        return Finding.of(apart <= bench.tolerance, figure)
    (kept,) = done.kept_positions or ()
    audio = bench.inputs.audio_mask[0].nonzero().flatten().cpu()
    states = call_of_llm["hidden_states"][0, torch.isin(kept, audio).to(lm.device)]
    found_reply = compared(bench, replies_of(done)[0], bench.reply(bench.inputs, Shorter(kept=kept, states=states)))
    return Finding(found_reply.verdict, f"{figure}; the reply {found_reply.figure}")


def _apart(states: torch.Tensor, expected: torch.Tensor) -> float:
    return float((states.float() - expected.float()).square().mean().sqrt() / expected.float().std())


def _watched(bench: Bench, method: Method, *layers: Any) -> tuple[Generation, list[dict[str, Any]]]:
    """Generate with a method; return (generation, list with a dict for each of `layers`).

    The dict has the layer's arguments in prefill after all hooks have run, as {name: value}, and its `output`.
    """
    calls: list[dict[str, Any]] = [{} for _ in layers]

    def record(index: int) -> Callable[..., None]:
        signature = inspect.signature(layers[index].forward)

        def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            calls[index] = calls[index] or {**call_of(signature, args, kwargs), "output": states}

        return hook

    with ExitStack() as stack:
        for index, layer in enumerate(layers):
            stack.enter_context(layer.register_forward_hook(record(index), with_kwargs=True))
        return bench.generate(bench.inputs, method), calls


def _by_hand(
    bench: Bench,
    method: TokenPruner,
    choose: Callable[[Evidence], torch.Tensor | Merge],
    call: Mapping[str, Any],
    steps: Mapping[int, float],
) -> torch.Tensor:
    """Run each window alone through the tower's layers; return the last layer's output, all windows flattened.

    `call` has the arguments of base's call of the layer at which the method drops first. `choose` returns the indices
    of the states to keep, or a rule to merge states.
    """
    shape, given, windows, begun = bench.lm.tower_states(bench.inputs), call.get("attention_mask"), [], 0
    each, wide = shape.pooling, shape.width
    least = each * kept_count(wide // each, RATIO)
    for window, (count, tokens) in enumerate(shape.windows):
        whole, sound = call["hidden_states"], each * tokens
        states = whole[window] if wide else whole[begun : begun + count]
        keep, places, rest = sound, torch.arange(len(states)), len(states) - sound
        begun += count
        for index in range(min(steps), len(bench.lm.tower_layers)):
            layer: Any = bench.lm.tower_layers[index]
            if (share := steps.get(index)) is not None:
                before, keep = keep, sound - round(share * (sound - each * kept_count(tokens, RATIO)))
                seen = layer.self_attn.k_proj(layer.self_attn_layer_norm(states)) if method.sees_keys else states
                seed = bench.inputs.seeds[0] + window
                evidence = Evidence(torch.arange(before, device=states.device), keep, seed, states=seen[:before])
                choice: Any = choose(evidence) if keep < before else torch.arange(keep)
                merge = choice.to(states.device) if isinstance(choice, Merge) else None
                picked = merge.kept if merge else choice.sort().values.to(states.device)
                left = wide - round(share * (wide - least)) - keep if wide else 0
                thinned = (before + at_stride(rest, left)).to(states.device)
                sounding = states[picked]
                if merge:
                    sounding = merged(states[None], torch.arange(before), merge)[0]
                states, rest = torch.cat([sounding, states[thinned]]), left
                places = places[torch.cat([picked, thinned]).cpu()]
            if wide:
                mask = given if given is None else given[window, ..., places.to(given.device)][None]
                mask = mask[:, :, :1] if mask is not None and mask.dim() == 4 else mask
                output = layer.forward(hidden_states=states[None], attention_mask=mask)
                states = (output[0] if isinstance(output, tuple) else output).view(len(states), -1)
            else:
                ends = torch.tensor([0, len(states)], dtype=torch.int32, device=states.device)
                states = layer.forward(hidden_states=states, cu_seqlens=ends, max_seqlen=len(states))[0]
        windows.append(states)
    return torch.cat(windows)
