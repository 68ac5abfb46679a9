"""Write a ruler (words and bells planted into long audio, with questions about them) into a data root.

A clip's file name is a hash of everything that determines its sound, so existing clips can be reused.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from audiomarathon.audio.decode import as_pcm
from audiomarathon.benchmarks.manifest import write_manifest
from audiomarathon.benchmarks.rows import natural, write_ascii
from audiomarathon.code_hash import code_hash
from audiomarathon.embedded import signals, synthesis
from audiomarathon.embedded.signals import Signal
from audiomarathon.errors import SettingsError
from audiomarathon.files import write_bytes, writing
from audiomarathon.lock import holding
from audiomarathon.records import LETTERS
from audiomarathon.wings.ruler import sounds
from audiomarathon.wings.ruler.grid import BELL, QUESTIONS, RATE, Asked, Grid, Item, items
from audiomarathon.wings.ruler.sounds import Sound, Voice, level

FOLDER = "ruler"
LEVEL = 0.03  # root mean square of every background; it leaves 30 dB to full scale
_LOUDEST = 0.99
_BLOCK = 1 << 20
_BYTES_A_SECOND = 22_000  # bytes per sample of a FLAC at this level, to estimate sizes
Group = tuple[Signal, list[tuple[int, int]]]
"""Needles (planted words and bells) joined as audio, each with a root mean square of 1, and (start, length) of each."""


@dataclass(frozen=True)
class Clip:
    """A clip to write: its item (None: background only), its length, and the position and loudness of its needles.

    Needles are the words and bells planted into the background. `place` is their position from 0 (start of the clip) to
    1 (end), `snr` their loudness against the background in dB, `onset` their start in audio samples.
    """

    item: Item | None
    minutes: float
    place: float = 0.0
    snr: float = 0.0
    onset: int = 0  # in samples


@dataclass(frozen=True)
class Ruler:
    """A ruler to write: the plan of its items, the sounds of words and bells, and the backgrounds.

    Creation fails if the needles (planted words and bells) do not fit into the shortest clip, or if there are too few
    words.
    """

    grid: Grid
    voice: Voice
    backgrounds: Sequence[Sound]
    groups: dict[Item, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the sound of each item's needles (its words and bells), the same at every length, place and loudness.

        Raises
        ------
        SettingsError
            The needles do not fit into the shortest clip, or there are too few words.
        """
        grid, shortest = self.grid, 60 * min(self.grid.minutes)
        silence = np.zeros(round(grid.gap * RATE), np.float32)
        for item in items(grid, [word for word in self.voice if word != BELL]):
            parts, spans, end = list[Signal](), list[tuple[int, int]](), 0
            for place, name in enumerate(item.sounds):
                made = self.voice[name].make(np.random.default_rng([grid.seed, item.needles, item.number, place]))
                spans.append((end, len(made)))
                parts += [made / level(made), silence]
                end += len(made) + len(silence)
            if (needed := sum(spans[-1]) / RATE) > shortest:
                raise SettingsError(
                    f"--needles {item.needles}: needles and gaps of a clip last {needed:.1f} s, longer than "
                    f"--minutes {shortest / 60:g} ({shortest:g} s); use fewer needles, a smaller --gap or longer clips"
                )
            self.groups[item] = np.concatenate(parts[:-1]), spans

    def clips(self, number: int) -> Iterator[Clip]:
        """Yield the clips to write for the background with the given index, grouped by length and loudness.

        For each length and loudness, the clip with the background alone comes first.
        """
        group_items = [member for member in self.groups if member.number % len(self.backgrounds) == number]
        for minutes, snr in itertools.product(self.grid.minutes, self.grid.snr):
            yield Clip(None, minutes, snr=snr)
            for item, place in itertools.product(group_items, self.grid.places):
                onset = round(place * (_frames(minutes) - len(self.groups[item][0])))
                yield Clip(item, minutes, place, snr, onset)

    @cached_property
    def peak(self) -> int:
        """Largest absolute sample value of all needles, rounded up; it sets the gain of all clips of a background."""
        return math.ceil(max(float(np.abs(group).max()) for group, _spans in self.groups.values()))

    @property
    def size(self) -> tuple[int, float, float]:
        """(number of clips, their total hours, their approximate size in GB)."""
        minutes = [clip.minutes for number in range(len(self.backgrounds)) for clip in self.clips(number)]
        return len(minutes), sum(minutes) / 60, 60 * sum(minutes) * _BYTES_A_SECOND / 1e9

    def name(self, background: Sound, clip: Clip) -> str:
        """Return a clip's file name: a hash of the code that makes sound, the clip's sounds, and their positions."""
        marks = [self.voice[sound].mark for sound in clip.item.sounds] if clip.item else []
        stream = [self.grid.seed, self.grid.gap, *((clip.item.needles, clip.item.number) if clip.item else ())]
        what = [_code(), self.peak, background.mark, {**asdict(clip), "item": [marks, stream]}]
        return f"clips/{hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]}.flac"


@cache
def _code() -> str:
    """Return a hash of the source files that make sound, so that a changed file changes the clips' file names."""
    return code_hash(map(Path, (__file__, sounds.__file__, signals.__file__, synthesis.__file__)))


def _frames(minutes: float) -> int:
    return round(minutes * 60 * RATE)


def write(ruler: Ruler, root: Path, step: Callable[[int], object] = lambda _: None) -> int:
    """Write a ruler's clips and rows into a data root; return the number of new clips. Existing clips are kept.

    The files with rows (one per question) are written last, so a killed call leaves only complete clips.

    Parameters
    ----------
    step
        Called with the number of clips done.

    Raises
    ------
    AudioMarathonError
        A recording cannot be decoded, or the disk is full.
    """
    folder, minutes, made = root / FOLDER, ruler.grid.minutes, 0
    rows: dict[str, list[dict[str, Any]]] = {}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with holding(folder / ".lock", "another process is writing this ruler"):
        for number, background in enumerate(ruler.backgrounds):
            whole, without = np.empty(0, np.float32), ""
            for clip in ruler.clips(number):
                name = ruler.name(background, clip)
                if not (folder / name).is_file():
                    whole = whole if len(whole) else background.make(_frames(max(minutes)))
                    _write_clip(folder / name, ruler, clip, whole[: _frames(clip.minutes)])
                    made += 1
                step(1)
                without = without if clip.item else name
                for asked in clip.item.asked if clip.item else ():
                    facts = {"path": name, "background": background.mark, "background_alone": without}
                    rows.setdefault(asked.question, []).append(facts | _row(ruler, clip, asked))
        for question, question_rows in rows.items():
            write_ascii(
                folder / f"ruler_{question}.json", sorted(question_rows, key=lambda row: natural(row["uniq_id"]))
            )
        lengths = {"min_seconds": 60 * min(minutes), "max_seconds": 60 * max(minutes)}
        write_manifest(root, {}, {f"ruler/{name}": {"count": len(group), **lengths} for name, group in rows.items()})
    return made


def _write_clip(file: Path, ruler: Ruler, clip: Clip, background: Signal) -> None:
    """Write a clip as FLAC: the background, with the needles added where the clip has any.

    The needles are added in place and then taken out again, since a copy of an hour of background takes 230 MB.
    """
    loudness = level(background)
    peak = max(float(background.max()), -float(background.min())) + ruler.peak * 10 ** (clip.snr / 20) * loudness
    gain, stream = np.float32(min(LEVEL / loudness, _LOUDEST / peak)), io.BytesIO()
    group = ruler.groups[clip.item][0] if clip.item else np.empty(0, np.float32)
    stretch = background[clip.onset : clip.onset + len(group)]
    kept = stretch.copy()
    stretch += group * np.float32(10 ** (clip.snr / 20) * loudness)
    with soundfile.SoundFile(stream, "w", RATE, 1, "PCM_16", format="FLAC") as out:
        for start in range(0, len(background), _BLOCK):
            out.write(as_pcm(background[start : start + _BLOCK] * gain))
    stretch[:] = kept
    write_bytes(file, stream.getvalue())


def _row(ruler: Ruler, clip: Clip, asked: Asked) -> dict[str, Any]:
    """Return the metadata row of a question about a clip.

    The row's `needles` has [start, length] in seconds of each word or bell that decides the answer, counted from
    `event_onset`, so that a control that moves the event moves them too.
    """
    item = clip.item
    assert item is not None
    group, spans = ruler.groups[item]
    parts = (clip.minutes, "min-at", clip.place, "-n", item.needles, "-", clip.snr, f"dB-{item.number:02d}")
    return {
        "uniq_id": "".join(part if isinstance(part, str) else f"{part:.12g}" for part in parts),
        "question": QUESTIONS[asked.question],
        **{f"choice_{letter.lower()}": text for letter, text in zip(LETTERS, asked.options, strict=False)},
        "answer_gt": asked.letter, "heard": list(item.sounds),
        "event_onset": clip.onset / RATE, "event_seconds": len(group) / RATE,
        "needles": [[end / RATE for end in spans[number]] for number in asked.deciding],
        "minutes": clip.minutes, "place": clip.place, "needle_count": item.needles, "snr_db": clip.snr,
    }  # fmt: skip
