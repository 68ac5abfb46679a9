"""Stage 1: train the audio encoder so that each of its tokens names the sound at that token."""

import logging
import time

import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2_5OmniThinkerForConditionalGeneration

from audiomarathon.embedded import world

from .windows import CUES, NOTHING, Windows

log = logging.getLogger(__name__)


def cue_tokens(tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Return the token id of each class: the audio placeholder for "nothing", then each cue's word as in an option."""
    tokens = [tokenizer.encode(f" {cue}") for cue in CUES]
    if not all(len(ids) == 1 for ids in tokens):
        raise ValueError("every cue must be a single token")
    return torch.tensor([tokenizer.convert_tokens_to_ids("<|AUDIO|>"), *(ids[0] for ids in tokens)])


def train_encoder(
    model: Qwen2_5OmniThinkerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    windows: Windows,
    *,
    steps: int,
    generator: torch.Generator,
    batch: int = 48,
) -> None:
    """Train the encoder: pull each of its tokens towards the embedding of the word for the sound at that token."""
    tower = model.model.audio_tower
    targets = model.get_input_embeddings().weight[cue_tokens(tokenizer)].detach()
    scale = targets.square().sum(1).mean()
    optimizer = torch.optim.AdamW(tower.parameters(), lr=2e-3, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    # Windows without an event outnumber the others and are easy: see them half as often.
    weights = torch.where((windows.heard == NOTHING).all(1), 0.4, 1.0)
    tower.train()
    begin = time.perf_counter()
    for step in range(steps):
        chosen = torch.multinomial(weights, batch, generator=generator)
        encoded = encode(model, windows.mels[chosen]).flatten(0, 1)
        heard = windows.heard[chosen].flatten()
        # Two losses: near in the space that the decoder reads, and distinct from every other class.
        near = (encoded - targets[heard]).square().sum(1).mean() / scale
        told = functional.cross_entropy(10 / scale * encoded @ targets.T, heard)
        optimizer.zero_grad()
        (near + told).backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            log.info("encoder %d: near %.3f told %.3f (%.0f s)", step + 1, near, told, time.perf_counter() - begin)
    tower.eval()


def encode(model: Qwen2_5OmniThinkerForConditionalGeneration, mels: torch.Tensor) -> torch.Tensor:
    """Encode mel features, shape (windows, 128, 200), to tokens, shape (windows, 50, width)."""
    count = len(mels)
    flat = mels.float().transpose(0, 1).flatten(1)
    lengths = torch.full((count,), 200)
    out = model.model.audio_tower(flat, feature_lens=lengths).last_hidden_state
    return out.reshape(count, -1, out.shape[-1])


@torch.no_grad()
def encode_all(model: Qwen2_5OmniThinkerForConditionalGeneration, windows: Windows) -> torch.Tensor:
    """Encode all windows to tokens, shape (windows, 50, width), on which the decoder is trained."""
    return torch.cat([encode(model, mels) for mels in windows.mels.split(256)])


@torch.no_grad()
def token_accuracy(
    model: Qwen2_5OmniThinkerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    windows: Windows,
    encoded: torch.Tensor,
) -> dict[str, float]:
    """Return, for each task, the share of the encoder's tokens whose nearest word is the right word."""
    targets = model.get_input_embeddings().weight[cue_tokens(tokenizer)]
    right = ((encoded @ targets.T).argmax(-1) == windows.heard).float().mean(1)
    return {task: round(right[windows.task == i].mean().item(), 3) for i, task in enumerate(world.TASKS)}
