"""Run an LLM layer by layer on embeddings: no cache, no hooks, none of the engine's code."""

from __future__ import annotations

import torch

from audiomarathon.models.audio_lm import AudioLM


def greedy_logits(lm: AudioLM, states: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the logits of greedy decoding after a prompt of embeddings, shape (steps, vocabulary).

    `states` has shape (1, S, D).
    """
    logits = []
    with torch.inference_mode():
        for _ in range(steps):
            length = states.shape[1]
            mask = torch.full((1, 1, length, length), torch.finfo(states.dtype).min).triu(1)
            turn = tuple(part[None] for part in lm.rotation(0, length))
            x = states
            for layer in lm.decoder_layers:
                x = layer(x, attention_mask=mask, position_ids=torch.arange(length)[None], position_embeddings=turn)
                x = x[0] if isinstance(x, tuple) else x
            logits.append(lm.lm_head(lm.decoder.norm(x)[:, -1])[0])  # type: ignore[operator]
            said = lm.decoder.embed_tokens(logits[-1].argmax(-1))[None, None]  # type: ignore[operator]
            states = torch.cat([states, said], dim=1)
    return torch.stack(logits)
