"""The synthetic world of the mini benchmark: its classes and questions, and its random generators (streams).

The benchmark and the training of the embedded model use different streams.

A *cue* is the word in an answer option that distinguishes its class from the others (`station` in "Metro station"). It
is a single token of the embedded tokenizer; the audio encoder is trained to output it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Split = Literal["benchmark", "training"]

#: The ten tasks. A task's position in this list seeds its random streams, so append new tasks at the end.
TASKS = ("librispeech", "race", "slue", "tau", "gtzan", "desed", "vesus", "had", "vox", "vox_age")

#: Tasks whose answer depends on a short event; in the other tasks the evidence lasts as long as the clip.
NEEDLES = ("race", "slue", "desed", "had")


@dataclass(frozen=True)
class Label:
    """One class: its name in the metadata, its text as an answer option, and its cue.

    The cue is the word of the option's text that identifies the class.
    """

    name: str
    option: str
    cue: str


def _plain(*names: str) -> tuple[Label, ...]:
    return tuple(Label(name.lower(), name, name) for name in names)


SCENES = (
    Label("airport", "Airport", "Airport"),
    Label("bus", "Bus", "Bus"),
    Label("metro", "Metro", "Metro"),
    Label("metro_station", "Metro station", "station"),
    Label("park", "Park", "Park"),
    Label("public_square", "Public square", "square"),
    Label("shopping_mall", "Shopping mall", "mall"),
    Label("street_pedestrian", "Street pedestrian", "pedestrian"),
    Label("street_traffic", "Street traffic", "traffic"),
    Label("tram", "Tram", "Tram"),
)
GENRES = _plain("Blues", "Classical", "Country", "Disco", "Hiphop", "Jazz", "Metal", "Pop", "Reggae", "Rock")
EVENTS = (
    Label("Alarm_bell_ringing", "Alarm", "Alarm"),
    Label("Blender", "Blender", "Blender"),
    Label("Cat", "Cat", "Cat"),
    Label("Dishes", "Dishes", "Dishes"),
    Label("Dog", "Dog", "Dog"),
    Label("Electric_shaver_toothbrush", "Shaver", "Shaver"),
    Label("Frying", "Frying", "Frying"),
    Label("Running_water", "Water", "Water"),
    Label("Speech", "Speech", "Speech"),
    Label("Vacuum_cleaner", "Vacuum", "Vacuum"),
)
EMOTIONS = _plain("Angry", "Happy", "Sad", "Fearful", "Monotone")
GENDERS = _plain("Male", "Female")
AGES = (
    Label("Young Adult (18-30)", "Young Adult (18-30)", "Young"),
    Label("Early Career (31-40)", "Early Career (31-40)", "Early"),
    Label("Mid Career (41-50)", "Mid Career (41-50)", "Mid"),
    Label("Senior (51-70)", "Senior (51-70)", "Senior"),
    Label("Elderly (71+)", "Elderly (71+)", "Elderly"),
)
VERACITY = _plain("Real", "Fake")
PLACES = _plain("Athens", "Berlin", "Lisbon", "London", "Madrid", "Paris", "Prague", "Vienna")
FACTS = {
    "animal": _plain("Goat", "Horse", "Lion", "Rabbit", "Tiger", "Whale"),
    "colour": _plain("Black", "Blue", "Green", "Red", "White", "Yellow"),
    "food": _plain("Apple", "Bread", "Cheese", "Honey", "Rice", "Soup"),
}
#: The vocabulary of the transcription task; a clip never says a word twice.
WORDS = (
    "basket",
    "bridge",
    "button",
    "candle",
    "engine",
    "forest",
    "garden",
    "golden",
    "island",
    "kettle",
    "ladder",
    "marble",
    "market",
    "mirror",
    "needle",
    "ocean",
    "pencil",
    "river",
    "rocket",
    "silver",
    "stone",
    "summer",
    "thunder",
    "violin",
    "window",
    "winter",
)

QUESTIONS = {
    "race": "Which {category} is mentioned in the passage?",
    "slue": "Which place is named in the recording?",
    "tau": "What is the acoustic scene of this recording?",
    "gtzan": "What is the genre of this music?",
    "desed": "Which sound event occurs in this recording?",
    "vesus": "Which emotion does the speaker express?",
    "had": "Is the speech in this audio real, or does it contain fake parts?",
    "vox": "What is the gender of the speaker?",
    "vox_age": "Which age group does the speaker belong to?",
}

#: All words that are spoken as tones; their order decides each word's tones.
SPOKEN = (*WORDS, *(label.cue for label in PLACES), *(label.cue for labels in FACTS.values() for label in labels))


def labels_of(task: str) -> tuple[Label, ...]:
    """Return the answer classes of a multiple-choice task.

    For `race`, which has no fixed classes, return every fact that its questions can ask about.
    """
    facts = tuple(label for labels in FACTS.values() for label in labels)
    return {
        "race": facts,
        "slue": PLACES,
        "tau": SCENES,
        "gtzan": GENRES,
        "desed": EVENTS,
        "vesus": EMOTIONS,
        "had": VERACITY,
        "vox": GENDERS,
        "vox_age": AGES,
    }[task]


def cues() -> tuple[str, ...]:
    """Return all cues (the words that identify options' classes), each once.

    The words of the transcription task (`WORDS`) come first. "Real" is left out, since no sound identifies it: it means
    that no part is fake.
    """
    choice = (label.cue for task in QUESTIONS for label in labels_of(task) if label.cue != "Real")
    return (*WORDS, *choice)


def stream(seed: int, split: Split, *keys: int) -> np.random.Generator:
    """Return the random generator of one item, such as a clip; `keys` are the numbers that identify the item.

    The split is part of the spawn key of NumPy's `SeedSequence`, so generators of different splits never give the same
    stream, whatever the seeds.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(get_args(Split).index(split), *keys)))


def options_for(label: Label, pool: tuple[Label, ...], count: int, rng: np.random.Generator) -> list[Label]:
    """Return `count` answer options in random order: the right class (`label`) and wrong classes from `pool`."""
    others = [other for other in pool if other != label]
    chosen = [label, *(others[i] for i in rng.permutation(len(others))[: count - 1])]
    return [chosen[i] for i in rng.permutation(len(chosen))]
