"""Make two-second windows of the training clips: mel features, and the sound at each of their 50 tokens.

The audio encoder attends only within its two-second windows, so the encoding of a long clip is the sequence of its
windows' encodings. Windows cut from short clips are therefore enough to train for any length.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import WhisperFeatureExtractor

from audiomarathon.embedded import synthesis, world

RATE = 16000
SECONDS = 2
TOKENS = 50
NOTHING = 0  # class of a token at which no sound decides an answer; the cues are classes from 1 on

CUES = world.cues()
CUE_INDEX = {cue: i + 1 for i, cue in enumerate(CUES)}


@dataclass
class Windows:
    """All windows of the training clips, and the indices of windows of the same kind.

    Attributes
    ----------
    mels
        Mel features, shape (windows, 128, 200), float16.
    heard
        Class of each token, shape (windows, 50).
    texture
        {cue: its windows}, for classes whose sound fills a clip.
    background
        {task: its windows without any event}.
    events
        {(task, cue): for each event, the one or two successive windows that contain it}.
    task
        Task of each window, as an index into `world.TASKS`.
    """

    mels: torch.Tensor
    heard: torch.Tensor
    task: torch.Tensor
    texture: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    background: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    events: dict[tuple[str, str], list[list[int]]] = field(default_factory=lambda: defaultdict(list))


def make_windows(seed: int, scale: float = 1.0) -> Windows:
    """Synthesise the training clips and cut them into windows; `scale` multiplies the number of clips."""
    extractor = WhisperFeatureExtractor(feature_size=128)

    def features(item: tuple[str, synthesis.Clip]) -> tuple[str, synthesis.Clip, torch.Tensor]:
        task, clip = item
        mel = extractor(
            clip.samples, sampling_rate=RATE, padding="do_not_pad", truncation=False, return_tensors="pt"
        ).input_features[0]
        return task, clip, mel.to(torch.float16)

    jobs = list(_jobs(scale))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(lambda job: features(_clip(seed, *job)), jobs))
    mels, heard, tasks = [], [], []
    windows = Windows(torch.empty(0), torch.empty(0), torch.empty(0))
    for task, clip, mel in made:
        count = mel.shape[1] // (100 * SECONDS)
        first = sum(len(chunk) for chunk in mels)
        mels.append(mel[:, : count * 200].reshape(128, count, 200).transpose(0, 1))
        heard.append(_heard(clip, count))
        tasks.append(torch.full((count,), world.TASKS.index(task)))
        _sort_into(windows, task, clip, first, count)
    windows.mels, windows.heard, windows.task = torch.cat(mels), torch.cat(heard), torch.cat(tasks)
    return windows


def _jobs(scale: float) -> Iterator[tuple[str, int, int]]:
    """Yield (task, class or variant, number of the repeat) of each training clip to synthesise."""
    for task in ("tau", "gtzan", "vesus", "vox", "vox_age"):
        for which in range(len(world.labels_of(task))):
            yield from ((task, which, repeat) for repeat in range(round(24 * scale)))
    for task, repeats in {"desed": 120, "slue": 100, "race": 200, "had": 100, "librispeech": 250}.items():
        yield from ((task, 0, repeat) for repeat in range(round(repeats * scale)))


def _clip(seed: int, task: str, which: int, repeat: int) -> tuple[str, synthesis.Clip]:
    rng = world.stream(seed, "training", world.TASKS.index(task), which, repeat)
    if task == "librispeech":
        count = int(rng.integers(3, 8))
        words = [world.WORDS[i] for i in rng.permutation(len(world.WORDS))[:count]]
        return task, synthesis.speech(list(zip(words, _word_onsets(rng, 24.0, count), strict=True)), rng, 24.0, RATE)
    labels = world.labels_of(task)
    if task not in world.NEEDLES:
        return task, synthesis.texture(task, labels[which], rng, 16.0, RATE)
    if task == "had":
        placed = [(labels[1], 2.0 + rng.uniform(0, 18))] if repeat % 2 else []
        return task, synthesis.needle(task, placed, rng, 24.0, RATE)
    # Three events, each with windows of its own.
    placed = [(labels[int(rng.integers(len(labels)))], 8.0 * i + rng.uniform(0, 4)) for i in range(3)]
    return task, synthesis.needle(task, placed, rng, 24.0, RATE)


def _word_onsets(rng: np.random.Generator, seconds: float, count: int) -> list[float]:
    """Return sorted random times at which words begin, at most one per window and none at the end."""
    slack = seconds - 2.0 - 2.5 * count
    return [float(gap + 1.0 + 2.5 * i) for i, gap in enumerate(np.sort(rng.uniform(0, slack, count)))]


def _heard(clip: synthesis.Clip, count: int) -> torch.Tensor:
    """Return each token's class, shape (count, 50): an event's if the middle of the token's 40 ms lies inside it."""
    middle = (np.arange(count * TOKENS) + 0.5) * SECONDS / TOKENS
    heard = np.full(count * TOKENS, NOTHING)
    for event in clip.events:
        heard[(middle >= event.onset) & (middle < event.onset + event.seconds)] = CUE_INDEX[event.cue]
    return torch.from_numpy(heard).reshape(count, TOKENS)


def _sort_into(windows: Windows, task: str, clip: synthesis.Clip, first: int, count: int) -> None:
    if task not in (*world.NEEDLES, "librispeech"):
        windows.texture[clip.events[0].cue].extend(range(first, first + count))
        return
    owners: dict[int, list[int]] = defaultdict(list)
    spans = []
    for number, event in enumerate(clip.events):
        start, stop = int(event.onset // SECONDS), int(np.ceil((event.onset + event.seconds) / SECONDS))
        spans.append(range(start, min(stop, count)))
        for window in spans[-1]:
            owners[window].append(number)
    windows.background[task].extend(first + window for window in range(count) if window not in owners)
    for event, span in zip(clip.events, spans, strict=True):
        if all(len(owners[window]) == 1 for window in span):  # a window shared by two words belongs to neither
            windows.events[task, event.cue].append([first + window for window in span])
