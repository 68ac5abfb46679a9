"""Training sequences of any length, put together from encoded windows and the tasks' own prompts."""

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
    """One clip and question, before it is cut to the batch's length.

    `windows` are indices of encoded windows; `options` holds the token offset in `question` of each option's cue and
    whether it is the right one.
    """

    windows: list[int]
    question: list[int]
    answer: list[int]
    options: list[tuple[int, bool]]


@dataclass(frozen=True)
class Batch:
    """Equal lengths, so no padding: ids, what to put in the audio's place, and what the auxiliary losses ask for.

    `previous` is, for each position, the class of the word spoken before the one heard there (0: none), or -100.
    `answer_at` are (row, position) whose next token is `answer`; `option_at` likewise with `option_right`.
    """

    ids: torch.Tensor
    windows: torch.Tensor
    audio: torch.Tensor
    after: torch.Tensor
    previous: torch.Tensor
    answer_at: tuple[torch.Tensor, torch.Tensor]
    answer: torch.Tensor
    option_at: tuple[torch.Tensor, torch.Tensor]
    option_right: torch.Tensor


class Sequences:
    """Draws examples and batches from the windows of the training split."""

    def __init__(self, windows: Windows, tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator) -> None:
        self.windows, self.tokenizer, self.rng = windows, tokenizer, rng
        self.start = tokenizer.encode(PROMPT_START)
        self.cue_of_token = {int(token): i for i, token in enumerate(cue_tokens(tokenizer)) if i}
        self.real = tokenizer.encode(" Real")[0]
        self.audio, self.audio_end, self.end = tokenizer.convert_tokens_to_ids(
            ["<|AUDIO|>", "<|audio_eos|>", "<|im_end|>"]
        )
        self._encode = cache(tokenizer.encode)

    def batch(self, size: int, length: int, transcripts: float) -> Batch:
        """Return `size` examples of `length` tokens each; a share of them transcriptions."""
        tasks = [task for task in world.TASKS if task != "librispeech"]
        examples = []
        for _ in range(size):
            # What the text may take at most: the rest is audio, in whole windows and the start of one more.
            if self.rng.random() < transcripts:
                examples.append(self._transcription((length - 60) // TOKENS))
            else:
                examples.append(self._choice(tasks[self.rng.integers(len(tasks))], (length - 90) // TOKENS))
        return self._collate(examples, length)

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
        # The last occurrence: words of the question come before the options.
        at = [len(ids) - 1 - ids[::-1].index(cue) for cue in cues]
        marks = [(position, option == label) for position, option in zip(at, options, strict=True)]
        letter = self._encode("ABCDE"[options.index(label)])
        return Example(windows, ids, [*letter, self.end], marks)

    def _transcription(self, count: int) -> Example:
        most = min(20, (count - 1) // 2)
        words = [world.WORDS[i] for i in self.rng.permutation(len(world.WORDS))]
        words = words[: int(self.rng.integers(max(1, most // 2), most + 1))]
        windows = self._arrange("librispeech", words, count)
        answer = [token for word in words for token in self._encode(f" {word}")]
        return Example(windows, self._encode(TRANSCRIBE), [*answer, self.end], [])

    def _arrange(self, task: str, cues: Sequence[str], count: int) -> list[int]:
        """Return about `count` windows: the events in order, at random places between background."""
        rng, background = self.rng, self.windows.background[task]
        chunks = []
        for cue in cues:
            found = self.windows.events[task, cue]
            chunks.append(found[rng.integers(len(found))])
        quiet = max(0, count - sum(map(len, chunks)))
        gaps = np.bincount(rng.integers(len(chunks) + 1, size=quiet), minlength=len(chunks) + 1)
        out: list[int] = []
        for number, gap in enumerate(gaps):
            out += [background[i] for i in rng.integers(len(background), size=gap)]
            out += chunks[number] if number < len(chunks) else []
        # Some to spare, which the batch's length may cut.
        return out + [background[i] for i in rng.integers(len(background), size=2)]

    def _collate(self, examples: list[Example], length: int) -> Batch:
        ids, used, previous = [], [], []
        answers: list[tuple[int, int, int]] = []
        options: list[tuple[int, int, bool]] = []
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
            previous.append(self._previous(example, used[-1], audio, length))
            begin = length - len(example.answer)
            answers += [(row, begin + i, token) for i, token in enumerate(example.answer)]
            offset = len(self.start) + audio + 1
            options += [(row, offset + position, right) for position, right in example.options]
        tokens = torch.tensor(ids)
        audio_mask = tokens == self.audio
        after = (torch.cumsum(audio_mask, 1) == audio_mask.sum(1, keepdim=True)) & ~audio_mask
        rows, places, wanted = torch.tensor(answers).T
        if options:
            option_rows, option_places, right = torch.tensor(options).T
        else:
            option_rows = option_places = right = torch.empty(0, dtype=torch.long)
        return Batch(
            tokens,
            pad_sequence(used, batch_first=True, padding_value=0),
            audio_mask,
            after,
            torch.stack(previous),
            (rows, places),
            wanted,
            (option_rows, option_places),
            right.float(),
        )

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
