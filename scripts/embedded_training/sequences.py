"""Build training sequences of any length for the decoder, from encoded windows and the tasks' prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from audiomarathon.embedded import world

from .encoder import cue_tokens
from .tokenizer import PROMPT_END, PROMPT_START, TRANSCRIBE, choice_prompt
from .windows import CUE_INDEX, NOTHING, TOKENS, Windows


@dataclass(frozen=True)
class Example:
    """One clip with a question, before it is cut to the length of a batch.

    `windows` are the indices of its encoded windows. `question` and `answer` are token ids. `options` holds, for each
    option, the position of its cue in `question` and whether it is the right option.
    """

    windows: list[int]
    question: list[int]
    answer: list[int]
    options: list[tuple[int, bool]]
    heard: int = NOTHING  # class of the right option


@dataclass(frozen=True)
class Batch:
    """Sequences of equal length, without padding: token ids, positions, windows of audio, and targets of the losses.

    Attributes
    ----------
    audio, after, blind
        Masks: audio tokens; text after the audio; and the part of this text that belongs to multiple-choice examples,
        without the options' cues.
    previous
        In transcriptions, at a token where a word is heard: the class of the word before it (0: none). Else -100.
    answer_at, answer
        (row, position) of each token that is followed by a token of the answer, and that next token.
    option_at, option_right, option_letter
        (row, position) of each option's cue, whether the option is right, and its letter (0: A).
    letter_at, letter_heard, letter
        (row, position) of each token that is followed by the answer's letter, the class heard, and the letter (0: A).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    windows: torch.Tensor
    audio: torch.Tensor
    after: torch.Tensor
    blind: torch.Tensor
    previous: torch.Tensor
    answer_at: tuple[torch.Tensor, torch.Tensor]
    answer: torch.Tensor
    option_at: tuple[torch.Tensor, torch.Tensor]
    option_right: torch.Tensor
    option_letter: torch.Tensor
    letter_at: tuple[torch.Tensor, torch.Tensor]
    letter_heard: torch.Tensor
    letter: torch.Tensor


class Sequences:
    """Draws random examples and batches from the windows of the training split."""

    def __init__(self, windows: Windows, tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator) -> None:
        self.windows, self.tokenizer, self.rng = windows, tokenizer, rng
        self.start = tokenizer.encode(PROMPT_START)
        self.cue_of_token = {int(token): i for i, token in enumerate(cue_tokens(tokenizer)) if i}
        self.real = tokenizer.encode(" Real")[0]
        self.audio, self.audio_end, self.end = tokenizer.convert_tokens_to_ids(
            ["<|AUDIO|>", "<|audio_eos|>", "<|im_end|>"]
        )
        self._encode = cache(tokenizer.encode)

    def batch(self, size: int, length: int, transcripts: float, reach: int) -> Batch:
        """Draw `size` examples of `length` tokens, at positions up to `reach`.

        `transcripts` is the share of transcriptions among the examples.
        """
        tasks = [task for task in world.TASKS if task != "librispeech"]
        examples = []
        for _ in range(size):
            # Leave room for the longest text; the rest is audio: whole windows, and the start of another.
            if self.rng.random() < transcripts:
                examples.append(self._transcription((length - 60) // TOKENS))
            else:
                examples.append(self._choice(tasks[self.rng.integers(len(tasks))], (length - 90) // TOKENS))
        return self._collate(examples, length, reach)

    def _choice(self, task: str, count: int) -> Example:
        rng, pool = self.rng, world.labels_of(task)
        question = world.QUESTIONS[task]
        if task == "race":
            category = list(world.FACTS)[rng.integers(len(world.FACTS))]
            pool, question = world.FACTS[category], question.format(category=category)
        label = pool[rng.integers(len(pool))]
        options = world.options_for(label, pool, min(len(pool), 5 if task == "vox_age" else 4), rng)
        if task in world.NEEDLES:
            placed = [] if label.name == "real" else [label.cue]
            if task == "race":  # the passage's other facts
                placed += [
                    labels[rng.integers(len(labels))].cue for name, labels in world.FACTS.items() if name != category
                ]
            windows = self._arrange(task, placed[: max(1, (count - 1) // 3)], count)
        else:
            source = self.windows.texture[label.cue]
            windows = [source[i] for i in rng.integers(len(source), size=count + 2)]
        ids = self._encode(choice_prompt(question, [option.option for option in options]))
        cues = [self._encode(f" {option.cue}")[0] for option in options]
        # Take the last occurrence, because words of the question come before the options.
        at = [len(ids) - 1 - ids[::-1].index(cue) for cue in cues]
        marks = [(position, option == label) for position, option in zip(at, options, strict=True)]
        letter = self._encode("ABCDE"[options.index(label)])
        return Example(windows, ids, [*letter, self.end], marks, CUE_INDEX.get(label.cue, NOTHING))

    def _transcription(self, count: int) -> Example:
        most = min(20, count // 2)
        words = [world.WORDS[i] for i in self.rng.permutation(len(world.WORDS))]
        words = words[: int(self.rng.integers(max(1, most // 2), most + 1))]
        windows = self._arrange("librispeech", words, count)
        answer = [token for word in words for token in self._encode(f" {word}")]
        return Example(windows, self._encode(TRANSCRIBE), [*answer, self.end], [])

    def _arrange(self, task: str, cues: Sequence[str], count: int) -> list[int]:
        """Return the indices of about `count` windows: the events of `cues` in order, randomly placed in background."""
        rng, background = self.rng, self.windows.background[task]
        chunks = []
        for cue in cues:
            windows = self.windows.events[task, cue]
            chunks.append(windows[rng.integers(len(windows))])
        quiet = max(0, count - sum(map(len, chunks)))
        if task == "librispeech":  # words come at a steady pace
            shares = rng.uniform(0.6, 1.4, len(chunks) + 1) * np.r_[0.5, np.ones(len(chunks) - 1), 0.5]
            gaps = np.diff(np.round(np.cumsum(np.r_[0, shares / shares.sum()]) * quiet)).astype(int)
        else:
            gaps = np.bincount(rng.integers(len(chunks) + 1, size=quiet), minlength=len(chunks) + 1)
        out: list[int] = []
        for number, gap in enumerate(gaps):
            out += [background[i] for i in rng.integers(len(background), size=gap)]
            out += chunks[number] if number < len(chunks) else []
        # A few extra windows, which the batch's length may cut.
        return out + [background[i] for i in rng.integers(len(background), size=2)]

    def _collate(self, examples: list[Example], length: int, reach: int) -> Batch:
        ids, positions, used, previous = [], [], [], []
        answers: list[tuple[int, int, int]] = []
        options: list[tuple[int, int, bool, int]] = []
        letters: list[tuple[int, int, int, int]] = []
        for row, example in enumerate(examples):
            tail = [self.audio_end, *example.question, *self._encode(PROMPT_END)]
            audio = length - len(self.start) - len(tail) - len(example.answer) + 1
            needed = -(-audio // TOKENS)
            if needed > len(example.windows):
                filler = [example.windows[-1]] * (needed - len(example.windows))
                example.windows.extend(filler)
            used.append(torch.tensor(example.windows[:needed]))
            # The last token of the answer is only predicted, never read.
            ids.append([*self.start, *[self.audio] * audio, *tail, *example.answer[:-1]])
            positions.append(self._positions(audio, length, reach))
            previous.append(self._previous(example, used[-1], audio, length))
            begin = length - len(example.answer)
            answers += [(row, begin + i, token) for i, token in enumerate(example.answer)]
            offset = len(self.start) + audio + 1
            options += [(row, offset + at, right, i) for i, (at, right) in enumerate(example.options)]
            if example.options:
                letters.append((row, begin, example.heard, [right for _, right in example.options].index(True)))
        tokens = torch.tensor(ids)
        audio_mask = tokens == self.audio
        after = (torch.cumsum(audio_mask, 1) == audio_mask.sum(1, keepdim=True)) & ~audio_mask
        rows, places, wanted = torch.tensor(answers).T
        option_rows, option_places, right, option_letter = torch.tensor(options).reshape(-1, 4).long().T
        letter_rows, letter_places, heard, letter = torch.tensor(letters).reshape(-1, 4).long().T
        blind = after & torch.tensor([bool(example.options) for example in examples])[:, None]
        blind[option_rows, option_places] = False
        return Batch(
            tokens,
            torch.stack(positions),
            pad_sequence(used, batch_first=True, padding_value=0),
            audio_mask,
            after,
            blind,
            torch.stack(previous),
            (rows, places),
            wanted,
            (option_rows, option_places),
            right.float(),
            option_letter,
            (letter_rows, letter_places),
            heard,
            letter,
        )

    def _positions(self, audio: int, length: int, reach: int) -> torch.Tensor:
        """Return the tokens' positions; half of the examples have gaps, as if there were more background in between.

        So the model is trained on a long clip's distances already in the first stage, whose sequences are short (cf.
        PoSE, arXiv 2309.10400).
        """
        steps = np.ones(length, np.int64)
        spare = reach - length
        if spare > 0 and self.rng.random() < 0.5:
            borders = len(self.start) + TOKENS * np.arange(1, audio // TOKENS)
            inside = self.rng.integers(0, 1 + min(200, spare // (len(borders) + 1)), size=len(borders))
            steps[borders] += inside
            before = self.rng.integers(0, 1 + spare - inside.sum())
            steps[len(self.start)] += before
            steps[len(self.start) + audio] += self.rng.integers(0, 1 + spare - inside.sum() - before)
        return torch.from_numpy(np.cumsum(steps) - 1)

    def _previous(self, example: Example, windows: torch.Tensor, audio: int, length: int) -> torch.Tensor:
        out = torch.full((length,), -100)
        if example.options:
            return out
        heard = self.windows.heard[windows].flatten()[:audio].tolist()
        words = [NOTHING, *(self.cue_of_token[token] for token in example.answer[:-1])]
        before = dict(zip(words[1:], words[:-1], strict=True))
        start = len(self.start)
        for position, cue in enumerate(heard):
            if cue != NOTHING:
                out[start + position] = before[cue]
        return out


CLASSES = len(CUE_INDEX) + 1
