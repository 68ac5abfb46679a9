"""Stage 2: train the decoder to use the encoder's tokens: to choose the option that was heard, and to transcribe."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen2_5OmniThinkerForConditionalGeneration

from .sequences import CLASSES, Batch, Sequences
from .windows import TOKENS

log = logging.getLogger(__name__)

# In most batches, text attends to audio only from this layer on. Pruning drops audio tokens at layer 2 by default. If
# the text read the answer in earlier layers, which see all tokens, dropping the wrong tokens would cost nothing.
FIRST_READING_LAYER = 2


@dataclass(frozen=True)
class Stage:
    """A step of the curriculum: tokens per sequence, sequences per batch, number of batches, peak learning rate.

    With a `reach` above the length, positions have gaps (see `Sequences`). `blinkers` is the share of batches in which
    masks limit which text tokens attend to audio tokens; with `early_too`, also in the layers below the first that
    pruning shortens. `transcripts` is the share of transcription examples.
    """

    length: int
    batch: int
    steps: int
    rate: float
    reach: int = 0
    bfloat16: bool = True
    transcripts: float = 0.35
    blinkers: float = 0.7
    early_too: bool = False

    def scaled(self, factor: float) -> "Stage":
        """Return this stage with its number of steps multiplied by `factor`."""
        return replace(self, steps=max(20, round(self.steps * factor)))


class Hints(nn.Module):
    """Linear heads that supervise intermediate results, for training only.

    Each one predicts an intermediate result from the hidden state at the position where the decoder must know it.
    Without them, both kinds of task stay at chance for a long time, because the loss on a letter says little about why
    it is right.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.previous = nn.Linear(width, CLASSES)  # after layer 1, at a heard word: which word came before?
        self.letter = nn.Linear(
            width, 5
        )  # after layer 1, at an option, and after layer 3, where the letter follows: which letter?
        self.matched = nn.Linear(width, 1)  # after layer 2, at an option: was it heard?
        self.heard = nn.Linear(width, CLASSES)  # after layer 3, where the letter follows: what was heard?


def train_decoder(
    model: Qwen2_5OmniThinkerForConditionalGeneration,
    hints: Hints,
    sequences: Sequences,
    encoded: torch.Tensor,
    stage: Stage,
    *,
    hint_weight: float = 0.5,
) -> None:
    """Train the decoder and the hints on the batches of one stage."""
    parameters = [*model.model.language_model.parameters(), *hints.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=stage.rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, stage.rate, total_steps=stage.steps, pct_start=0.1)
    begin, means = time.perf_counter(), {}
    for step in range(stage.steps):
        batch = sequences.batch(stage.batch, stage.length, transcripts=stage.transcripts, reach=stage.reach)
        # A third faster, and precise enough once the model has learned to read; before, rounding would hide weak
        # signals.
        with torch.autocast("cpu", torch.bfloat16, enabled=stage.bfloat16):
            losses = _losses(
                model, hints, batch, encoded, bool(sequences.rng.random() < stage.blinkers), stage.early_too
            )
        hinted = sum(losses[name] for name in ("previous", "letter", "matched", "heard", "picked"))
        loss = losses["answer"] + hint_weight * hinted
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        for name, value in losses.items():
            if value.detach() == value.detach():  # no transcription in the batch: nothing to average
                means[name] = 0.95 * means.get(name, value.item()) + 0.05 * value.item()
        if (step + 1) % 50 == 0:
            figures = " ".join(f"{name} {value:.3f}" for name, value in means.items())
            log.info("decoder %d, %d: %s (%.0f s)", stage.length, step + 1, figures, time.perf_counter() - begin)


def _losses(
    model: Qwen2_5OmniThinkerForConditionalGeneration,
    hints: Hints,
    batch: Batch,
    encoded: torch.Tensor,
    blinkered: bool,
    early_too: bool,
) -> dict[str, torch.Tensor]:
    decoder = model.model.language_model
    hidden = decoder.embed_tokens(batch.ids)
    audio = [
        tokens.flatten(0, 1)[:count]
        for tokens, count in zip(encoded[batch.windows], batch.audio.sum(1).tolist(), strict=True)
    ]
    hidden = hidden.masked_scatter(batch.audio[..., None], torch.cat(audio))
    length = batch.ids.shape[1]
    rotary = decoder.rotary_emb(hidden, batch.positions.expand(3, -1, -1))
    early = late = None
    if blinkered:
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        listening = batch.audio[:, None, :]
        early = causal & ~(batch.after[:, :, None] & listening)
        # An event must not spread over the audio after it, or it could be read there once its own tokens are dropped.
        far = torch.ones(length, length, dtype=torch.bool).tril(-TOKENS)
        choice = batch.blind.any(1)[:, None, None]
        early = (early & ~(choice & far & batch.audio[:, :, None] & listening))[:, None] if early_too else None
        # Only options attend to the audio, and the reply attends to the options: to know the word, it must find the
        # letter.
        late = (causal & ~(batch.blind[:, :, None] & listening))[:, None]
    losses = {}
    for number, layer in enumerate(decoder.layers):
        reads = number >= FIRST_READING_LAYER
        hidden = layer(hidden, attention_mask=late if reads else early, position_embeddings=rotary)
        if number == FIRST_READING_LAYER - 1:
            known = batch.previous != -100
            losses["previous"] = _hint(functional.cross_entropy, hints.previous(hidden[known]), batch.previous[known])
            losses["letter"] = _hint(
                functional.cross_entropy, hints.letter(hidden[batch.option_at]), batch.option_letter
            )
        elif number == FIRST_READING_LAYER:
            losses["matched"] = _hint(
                functional.binary_cross_entropy_with_logits,
                hints.matched(hidden[batch.option_at])[:, 0],
                batch.option_right,
            )
        elif number == FIRST_READING_LAYER + 1:
            deciding = hidden[batch.letter_at]
            losses["heard"] = _hint(functional.cross_entropy, hints.heard(deciding), batch.letter_heard)
            # The same probe as at the options: the letter itself is copied from there.
            losses["picked"] = _hint(functional.cross_entropy, hints.letter(deciding), batch.letter)
    out = decoder.norm(hidden[batch.answer_at])
    logits = model.lm_head(out)
    losses["answer"] = functional.cross_entropy(logits, batch.answer)
    with torch.no_grad():
        right = (logits.argmax(-1) == batch.answer).float()
        letters = torch.isin(batch.answer_at[0], batch.option_at[0])
        losses["choice"] = right[letters][::2].mean()  # the letter, not the end token after it
        losses["words"] = right[~letters].mean()
    return losses


def _hint(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], predicted: torch.Tensor, wanted: torch.Tensor
) -> torch.Tensor:
    """Compute a hint's loss; return a differentiable zero if the batch has no targets for it."""
    return loss(predicted, wanted) if len(wanted) else predicted.sum()
