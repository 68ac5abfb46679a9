"""Measure which moments of the audio a reply depends on: silence each, and see how much less likely the reply becomes.

Zeiler & Fergus, "Visualizing and Understanding Convolutional Networks", arXiv 1311.2901, section 4.2, hide squares of a
picture; here a moment of the waveform becomes silence. Only the reply's probability is needed, so this evidence is
independent of attention. Content that two moments repeat is missed: hiding only one of them changes little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from audiomarathon.errors import ModelError
from audiomarathon.models.kernels import attention_kernels

if TYPE_CHECKING:
    from audiomarathon.metrics.statistics import Floats
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.prompt import Prompt


def losses_when_hidden(
    lm: AudioLM,
    prompt: Prompt,
    reply: Sequence[int],
    seconds: float,
    step: Callable[[int], object] = lambda _done: None,
) -> tuple[Floats, ...]:
    """For each moment of each clip, return how many nats the reply's log-probability loses when the moment is silenced.

    Parameters
    ----------
    reply
        The tokens of the model's reply to the whole audio.
    seconds
        Length of a moment; the last moment of a clip may be shorter.
    step
        Called with 1 after each moment. Each moment takes one prefill and one run of the audio tower.

    Returns
    -------
    tuple
        For each clip an array with one number per moment; above 0, the moment supports the reply.

    Raises
    ------
    ModelError
        The model is an encoder-decoder, which replies window by window, or the reply is empty.
    """
    if lm.cross:
        raise ModelError(f"{lm.title} replies window by window, so no reply can be followed while a moment is hidden")
    if not reply:
        raise ModelError("the reply is empty, so nothing can be lost by hiding audio")
    whole, size = log_probability(lm, prompt, reply), round(seconds * lm.sampling_rate)
    losses = []
    for index, clip in enumerate(prompt.clips):
        clip_losses = []
        for start in range(0, len(clip), size):
            hidden = clip.copy()
            hidden[start : start + size] = 0
            clips = (*prompt.clips[:index], hidden, *prompt.clips[index + 1 :])
            clip_losses.append(whole - log_probability(lm, replace(prompt, clips=clips), reply))
            step(1)
        losses.append(np.array(clip_losses))
    return tuple(losses)


def log_probability(lm: AudioLM, prompt: Prompt, reply: Sequence[int]) -> float:
    """Return the log-probability (in nats) of a reply's tokens after a prompt, from one forward pass of the model."""
    inputs = lm.prepare([prompt])
    tokens = torch.tensor([list(reply)], device=lm.device)
    tensors = dict(inputs.tensors)
    tensors["input_ids"] = torch.cat([tensors["input_ids"], tokens.to(tensors["input_ids"])], dim=1)
    mask = tensors["attention_mask"]
    tensors["attention_mask"] = torch.cat([mask, torch.ones_like(tokens).to(mask)], dim=1)

    def last_only(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (args[0][:, -tokens.shape[1] - 1 : -1], *args[1:])

    with (
        torch.inference_mode(),
        lm.lm_head.register_forward_pre_hook(last_only),
        lm.generating(inputs, tokens.shape[1]),
        attention_kernels(lm.sdpa_backends),
    ):
        logits = lm.model(**tensors, use_cache=False).logits[0, -tokens.shape[1] :]
    told = logits.float().log_softmax(-1).gather(-1, tokens[0, :, None].to(logits.device))
    return float(told.double().sum())
