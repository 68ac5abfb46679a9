"""Probes of speech recognition: a linear layer trained by CTC, and X-ARES' adapter into a frozen causal LM.

CTC (A. Graves et al., ICML 2006) tests whether single frames contain the letters. In X-ARES' probe a language model can
guess words, so the score measures the language model too; it is slow without a GPU.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from audiomarathon.errors import ModelError
from audiomarathon.metrics.wer import letter_errors, transcript_errors
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.kernels import attention_kernels
from audiomarathon.models.loading import causal_lm
from audiomarathon.terminal import progress_of
from audiomarathon.wings.encoders.probing.probe_input import Predicted, Problem, Step
from audiomarathon.wings.encoders.probing.published_probes import learning_rate
from audiomarathon.wings.encoders.xares.spoken import SpokenTask
from audiomarathon.wings.encoders.xares.task import Recipe

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"
LETTER_MS = 40.0  # if the hop between frames is longer, each frame predicts several letters
RATES = (1e-3, 3e-3, 1e-2)
EPOCHS, STEPS, BATCH = 20, 1000, 16  # least number of epochs, least number of steps, clips per step
SEED = 42
_SEPARATOR = "<|vision_end|>"  # separator between audio and text; a token of Qwen's vocabulary
_MOST_TOKENS, _REPETITION_PENALTY = 200, 1.1  # settings for generating a transcript
_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner")  # names of a layer's inner width in configs
_IGNORED = -100  # torch's cross-entropy ignores this label

Frames = Sequence[Any]
"""The frames of each clip, an array of shape (frames, dim)."""


def spelled(text: str) -> list[int]:
    """Turn a text into class numbers, one per letter, from 1 on; 0 is the class "blank" of CTC."""
    plain = re.sub(f"[^{LETTERS}]+", " ", text.lower()).strip()
    return [1 + LETTERS.index(letter) for letter in plain]


def read_off(classes: Sequence[int]) -> str:
    """Turn the best class of each frame (a CTC path) into text: merge repeats of a class, then drop blanks."""
    before = [0, *classes]
    text = "".join(
        LETTERS[current - 1] for was, current in zip(before, classes, strict=False) if current not in (was, 0)
    )
    return " ".join(text.split())


def padded(frames: Frames, rows: Sequence[int], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (frames of the clips `rows`, zero-padded to shape (clips, frames, dim); each clip's number of frames)."""
    each = [torch.as_tensor(np.asarray(frames[row], dtype=np.float32)) for row in rows]
    return nn.utils.rnn.pad_sequence(each, True).to(device), torch.tensor(
        [len(sequence) for sequence in each], device=device
    )


def _batches(rows: Sequence[int], size: int, order: torch.Generator | None = None) -> Iterator[list[int]]:
    drawn = torch.randperm(len(rows), generator=order).tolist() if order else range(len(rows))
    for start in range(0, len(rows), size):
        yield [rows[place] for place in drawn[start : start + size]]


def ctc_epochs(clips: int) -> int:
    """Return the number of training epochs for this many clips: 20, or more to reach about 1,000 steps."""
    return max(EPOCHS, STEPS // -(-clips // BATCH))


def ctc(
    frames: Frames, texts: Sequence[str], rows: Sequence[Sequence[int]], hop: float, device: str = "cpu",
    step: Step = lambda _n: None
) -> dict[int, str]:  # fmt: skip
    """Train LayerNorm and a linear layer by CTC; return {row number of a test clip: its predicted transcript}.

    Adam trains at each of three learning rates. The rate and epoch with the lowest letter error rate on the validation
    clips are kept; if several are equal, the first. With few clips there are more epochs.

    Parameters
    ----------
    rows
        Row numbers of the clips to train on, to validate on and to test on.
    hop
        Milliseconds between frames.
    """
    train, valid, test = rows
    several = math.ceil(hop / LETTER_MS)
    letters = [torch.tensor(spelled(text), device=device) for text in texts]
    best, lowest, epochs = dict[str, torch.Tensor](), math.inf, ctc_epochs(len(train))

    def scores(head: nn.Module, some: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, counts = padded(frames, some, device)
        return head(inputs).unflatten(-1, (several, -1)).flatten(1, 2).log_softmax(-1), counts * several

    @torch.no_grad()
    def transcripts(head: nn.Module, some: Sequence[int]) -> dict[int, str]:
        spelt = {}
        for batch in _batches(some, BATCH):
            likely, counts = scores(head, batch)
            for row, path, count in zip(batch, likely.argmax(-1).tolist(), counts.tolist(), strict=True):
                spelt[row] = read_off(path[:count])
        return spelt

    for rate in RATES:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(SEED)
            dim = frames[train[0]].shape[1]
            head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, several * (1 + len(LETTERS)))).to(device)
        adam, order = torch.optim.Adam(head.parameters(), lr=rate), torch.Generator().manual_seed(SEED)
        for epoch in range(epochs):
            adam.param_groups[0]["lr"] = learning_rate(rate, epoch, epochs)
            for batch in _batches(train, BATCH, order):
                likely, counts = scores(head, batch)
                wanted = [letters[row] for row in batch]
                sizes = torch.tensor([len(target) for target in wanted], device=device)
                adam.zero_grad()
                likely = likely.transpose(0, 1)
                loss = functional.ctc_loss(likely, torch.cat(wanted), counts, sizes, zero_infinity=True)
                torch.autograd.backward(loss)
                adam.step()
            step(1)
            spelt = transcripts(head, valid)
            if (wrong := sum(letter_errors(texts[row], text)[0] for row, text in spelt.items())) < lowest:
                lowest, best = wrong, {name: value.clone() for name, value in head.state_dict().items()}
    head.load_state_dict(best)
    return transcripts(head, test)


class Adapter(nn.Module):
    """A gated layer that turns frames into inputs of a language model.

    The layer's initial weights are drawn in the same order as in X-ARES.
    """

    def __init__(self, dim: int, inner: int, outer: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(dim, inner), nn.Linear(dim, inner), nn.Linear(inner, outer)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Turn frames into embeddings, shape (clips, frames, width of the language model's embeddings)."""
        output: torch.Tensor = self.down(functional.silu(self.gate(frames)) * self.up(frames))
        return output


@dataclass(frozen=True)
class Writer:
    """A frozen causal LM that continues a sequence of adapted frames and a separator with text.

    The separator is Qwen's `<|vision_end|>`; for a model without that token, it is the model's EOS token.
    """

    model: Any
    tokenizer: Any

    def joined(self, audio: torch.Tensor, counts: torch.Tensor, texts: Sequence[str | None]) -> dict[str, torch.Tensor]:
        """Return the model's inputs, as {name: tensor}, for sequences of adapted frames, separator, text and EOS token.

        The names are `inputs_embeds`, `attention_mask` and `labels`.

        Where a text is None, the sequence ends after the separator, so that the model can continue it.

        Parameters
        ----------
        audio, counts
            Adapted frames, zero-padded to shape (clips, frames, width), and the number of frames of each clip.
        """
        end = self.tokenizer.eos_token_id
        separator = self.tokenizer.get_vocab().get(_SEPARATOR, end)
        ids = [
            [separator] if text is None else [separator, *self.tokenizer(text, add_special_tokens=False).input_ids, end]
            for text in texts
        ]
        tokens = nn.utils.rnn.pad_sequence([torch.tensor(sequence) for sequence in ids], True, end).to(audio.device)
        lengths = torch.tensor([len(sequence) for sequence in ids], device=audio.device)
        there = torch.arange(tokens.shape[1], device=audio.device) < lengths[:, None]
        heard = torch.arange(audio.shape[1], device=audio.device) < counts[:, None]
        labels = torch.full_like(heard, _IGNORED, dtype=torch.long)
        return {
            "inputs_embeds": torch.cat([audio, self.model.get_input_embeddings()(tokens)], dim=1),
            "attention_mask": torch.cat([heard, there], dim=1).long(),
            "labels": torch.cat([labels, tokens.masked_fill(~there, _IGNORED)], dim=1),
        }


def adapted(
    frames: Frames, texts: Sequence[str], rows: Sequence[Sequence[int]], writer: Writer, recipe: Recipe, seed: int,
    device: str = "cpu", step: Step = lambda _n: None
) -> dict[int, str]:  # fmt: skip
    """Train X-ARES' adapter; return {row number of a test clip: its predicted transcript}.

    As in X-ARES, the epoch is chosen by teacher forcing: the model predicts each token from the true tokens before it,
    and each predicted text is cut to the true text's length. If no epoch has a right word, the first epoch is kept.
    """
    train, valid, test = rows
    config = writer.model.config.get_text_config()
    named = (getattr(config, name, None) for name in _WIDTHS)
    inner = next(filter(None, named), 4 * config.hidden_size)  # GPT-2's default
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        adapter = Adapter(frames[train[0]].shape[1], inner, config.hidden_size).to(device)
    adam, order = torch.optim.Adam(adapter.parameters(), lr=recipe.lr), torch.Generator().manual_seed(seed)
    kept, highest = dict[str, torch.Tensor](), -1.0
    half = partial(torch.autocast, device.partition(":")[0], enabled=device.startswith("cuda"))

    def inputs(batch: Sequence[int], *, told: bool) -> tuple[dict[str, torch.Tensor], int]:
        """Return (the model's inputs, number of audio positions); with `told`, the inputs include the true texts.

        The adapter always runs in single precision.
        """
        audio, counts = padded(frames, batch, device)
        given = writer.joined(adapter(audio), counts, [texts[row] if told else None for row in batch])
        return given, audio.shape[1]

    def guessed(batch: Sequence[int]) -> list[str]:
        given, heard = inputs(batch, told=True)
        with half():
            best = writer.model(**given).logits[:, heard:].argmax(-1)
        said = writer.tokenizer.batch_decode(best, skip_special_tokens=True)
        return [guess[: len(texts[row])] for row, guess in zip(batch, said, strict=True)]

    def written(batch: Sequence[int]) -> list[str]:
        given, _ = inputs(batch, told=False)
        del given["labels"]
        with warnings.catch_warnings(), half(), attention_kernels():
            warnings.filterwarnings("ignore", "Passing `repetition_penalty`")  # audio has no tokens to repeat
            made = writer.model.generate(
                **given, max_new_tokens=_MOST_TOKENS, do_sample=False, repetition_penalty=_REPETITION_PENALTY,
                pad_token_id=writer.tokenizer.eos_token_id,
            )  # fmt: skip
        said: list[str] = writer.tokenizer.batch_decode(made, skip_special_tokens=True)
        return said

    @torch.no_grad()
    def transcripts(some: Sequence[int], how: Callable[[Sequence[int]], list[str]]) -> dict[int, str]:
        return {
            row: text for batch in _batches(some, recipe.batch) for row, text in zip(batch, how(batch), strict=True)
        }

    for epoch in range(recipe.epochs):
        adam.param_groups[0]["lr"] = learning_rate(recipe.lr, epoch, recipe.epochs)
        for batch in _batches(train, recipe.batch, order):
            adam.zero_grad()
            given, _ = inputs(batch, told=True)
            with half():
                loss = writer.model(**given).loss
            torch.autograd.backward(loss)
            adam.step()
            step(1)
        counts = [
            transcript_errors(texts[row], transcript, str.lower)
            for row, transcript in transcripts(valid, guessed).items()
        ]
        score = max(0.0, 1 - sum(errors.errors for errors in counts) / sum(errors.words for errors in counts))
        if score > highest:
            highest, kept = score, {name: value.clone() for name, value in adapter.state_dict().items()}
    adapter.load_state_dict(kept)
    return transcripts(test, written)


def predict_transcripts(problem: Problem) -> list[Predicted]:
    """Predict the transcript of each test clip, by CTC or by X-ARES' probe (only with the first seed).

    Return (clip, predicted transcript, reference with the true transcript) for each test clip.
    """
    encoded, clips, frames = problem.encoded, problem.clips, problem.embeddings
    task, device, texts = encoded.task, encoded.device, [clip.facts[0] for clip in clips]
    assert isinstance(task, SpokenTask)
    transcripts = dict[int, str]()
    for split in problem.splits:
        rows = [problem.rows(*parts) for parts in (split.train, (split.valid,), (split.test,))]
        batches = task.recipe.epochs * -(-len(rows[0]) // task.recipe.batch)
        steps, unit = (batches, "step") if problem.released else (len(RATES) * ctc_epochs(len(rows[0])), "epoch")
        with progress_of(steps, f"{task.name} ({problem.setting})", unit) as step:
            if problem.released:
                model, tokenizer = causal_lm(find_checkpoint(task.llm).path, dtype="float32")
                if tokenizer.eos_token_id is None:
                    raise ModelError(f"{task.llm}: its tokenizer has no end mark (eos_token); name another causal LM")
                writer = Writer(model.requires_grad_(False).to(device), tokenizer)
                transcripts |= adapted(frames, texts, rows, writer, task.recipe, problem.seeds[0], device, step)
            else:
                transcripts |= ctc(frames, texts, rows, encoded.hop, device, step)
    return [(clips[row], " ".join(text.split()), {"answer": texts[row]}) for row, text in transcripts.items()]
