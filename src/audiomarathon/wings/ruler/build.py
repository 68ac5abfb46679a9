"""Write a ruler into a data root: its clips, named by a hash of all that makes them, and the rows of each question."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
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
from audiomarathon.files import check_writable, write_bytes
from audiomarathon.records import LETTERS
from audiomarathon.wings.ruler import sounds
from audiomarathon.wings.ruler.grid import QUESTIONS, Grid, Item, items
from audiomarathon.wings.ruler.sounds import RATE, Background, Voice, level

FOLDER = "ruler"
LEVEL = 0.03  # root mean square of every background: leaves 30 dB to full scale
_LOUDEST = 0.99
_BLOCK = 1 << 20
_BYTES_A_SECOND = 22_000  # of a FLAC at this level, for the estimate


@dataclass(frozen=True)
class Planned:
    """A clip to write: its item (None: the background alone), length, place, loudness, and where its needles begin."""

    item: Item | None
    minutes: float
    place: float = 0.0
    snr: float = 0.0
    onset: int = 0  # in samples


@dataclass(frozen=True)
class Ruler:
    """A ruler to write: the grid, its items, the sounds of words and bell, and the backgrounds."""

    grid: Grid
    voice: Voice
    backgrounds: Sequence[Background]
    items: Sequence[Item]
    _groups: dict[tuple[object, ...], tuple[Signal, list[tuple[int, int]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, grid: Grid, voice: Voice, backgrounds: Sequence[Background]) -> Ruler:
        """Plan a ruler.

        Raises
        ------
        SettingsError
            The needles do not fit into the shortest clip, or there are too few words.
        """
        own = cls(grid, voice, backgrounds, items(grid, [one for one in voice if one != "bell"]))
        shortest = min(grid.minutes)
        for item in own.items:
            if (needed := len(own.group(item)[0]) / RATE) > shortest * 60:
                raise SettingsError(
                    f"--needles {item.needles}: needles and gaps of a clip last {needed:.1f} s, longer than "
                    f"--minutes {shortest:g} ({shortest * 60:g} s); use fewer needles, a smaller --gap or longer clips"
                )
        return own

    def planned(self, number: int) -> Iterator[Planned]:
        """Yield the clips of a background, by length."""
        grid = self.grid
        own = [one for one in self.items if one.number % len(self.backgrounds) == number]
        for minutes in grid.minutes:
            yield Planned(None, minutes)
            for item in own:
                free = round(minutes * 60 * RATE) - len(self.group(item)[0])
                for place in grid.places:
                    for snr in grid.snr:
                        yield Planned(item, minutes, place, snr, round(place * free))

    def group(self, item: Item) -> tuple[Signal, list[tuple[int, int]]]:
        """Return an item's needles, each with a root mean square of 1, and where each begins and how long it is.

        The needles are the same in every cell.
        """
        grid, gap = self.grid, round(self.grid.gap * RATE)
        if found := self._groups.get(key := (item.needles, item.number, item.sounds)):
            return found
        parts, spans, end = list[Signal](), list[tuple[int, int]](), 0
        for place, name in enumerate(item.sounds):
            rng = np.random.default_rng([grid.seed, item.needles, item.number, len(item.asked), place])
            made = self.voice[name].make(rng)
            spans.append((end, len(made)))
            parts += [made / level(made), np.zeros(gap, np.float32)]
            end += len(made) + gap
        self._groups[key] = np.concatenate(parts[:-1]), spans
        return self._groups[key]

    @property
    def size(self) -> tuple[int, float, float]:
        """Number of clips, their hours, and about how many GB they take."""
        clips = [one for number in range(len(self.backgrounds)) for one in self.planned(number)]
        seconds = sum(one.minutes for one in clips) * 60
        return len(clips), seconds / 3600, seconds * _BYTES_A_SECOND / 1e9

    def name(self, background: Background, clip: Planned) -> str:
        """Return a clip's file name: a hash of the code, of the sounds and of where they are."""
        own = {"sounds": [self.voice[one].mark for one in clip.item.sounds], "gap": self.grid.gap,
               "stream": [self.grid.seed, clip.item.needles, clip.item.number]} if clip.item else {}  # fmt: skip
        made_of = [_code(), background.mark, {**asdict(clip), "item": own}]
        return f"{hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:24]}.flac"


def _code() -> str:
    """Return a hash of the code that makes sound."""
    return code_hash([Path(str(one)) for one in (__file__, sounds.__file__, signals.__file__, synthesis.__file__)])


def write(ruler: Ruler, root: Path, step: Callable[[int], object] = lambda _: None) -> int:
    """Write a ruler into a data root; return how many clips were made. Clips that are there already are kept.

    The rows of each question are written last, so a killed call leaves whole clips and no wrong rows.

    Parameters
    ----------
    step
        Called with the number of clips done.

    Raises
    ------
    AudioMarathonError
        A recording cannot be decoded, or the disk is full.
    """
    check_writable(root)
    folder, made = root / FOLDER, 0
    rows: dict[str, list[dict[str, Any]]] = {one: [] for one in ruler.grid.questions}
    for number, background in enumerate(ruler.backgrounds):
        whole: Signal | None = None
        without = ""
        for clip in ruler.planned(number):
            name = f"clips/{ruler.name(background, clip)}"
            if not (folder / name).is_file():
                if whole is None:
                    whole = background.make(round(max(ruler.grid.minutes) * 60 * RATE))
                _write_clip(folder / name, ruler, clip, whole[: round(clip.minutes * 60 * RATE)])
                made += 1
            step(1)
            if clip.item is None:
                without = name
            else:
                for one in _rows(ruler, clip, background.name, name, without):
                    rows[one[0]].append(one[1])
    lengths = {"min_seconds": 60 * min(ruler.grid.minutes), "max_seconds": 60 * max(ruler.grid.minutes)}
    written = {question: sorted(own, key=lambda row: natural(row["uniq_id"])) for question, own in rows.items() if own}
    for question, own in written.items():
        write_ascii(folder / f"ruler_{question}.json", own)
    write_manifest(
        root, {}, {f"{FOLDER}/{question}": {"count": len(own), **lengths} for question, own in written.items()}
    )
    return made


def _write_clip(file: Path, ruler: Ruler, clip: Planned, background: Signal) -> None:
    """Write a clip; only its needles' stretch is copied, since an hour takes 230 MB."""
    scale, stretch = LEVEL / (level(background) or 1.0), slice(0, 0)
    if clip.item:
        group, _spans = ruler.group(clip.item)
        stretch = slice(clip.onset, clip.onset + len(group))
        kept = background[stretch].copy()
        background[stretch] += group * np.float32(10 ** (clip.snr / 20) * LEVEL / scale)
    peak = max(float(background.max()), -float(background.min())) * scale
    gain = np.float32(scale * min(1.0, _LOUDEST / max(peak, 1e-9)))
    stream = io.BytesIO()
    with soundfile.SoundFile(stream, "w", RATE, 1, "PCM_16", format="FLAC") as out:
        for start in range(0, len(background), _BLOCK):
            out.write(as_pcm(background[start : start + _BLOCK] * gain))
    if clip.item:
        background[stretch] = kept
    write_bytes(file, stream.getvalue())


def _rows(
    ruler: Ruler, clip: Planned, background: str, name: str, without: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (question, row) for each question about a clip.

    `needles` has the deciding needles' (start, length) in seconds after `event_onset`, so that a control that moves the
    event moves them too.
    """
    item = clip.item
    assert item is not None
    group, spans = ruler.group(item)
    cell = f"{clip.minutes:g}min-at{clip.place:g}-n{item.needles}-{clip.snr:+g}dB-{item.number:02d}"
    for asked in item.asked:
        yield (
            asked.question,
            {
                "path": name,
                "uniq_id": cell,
                "question": QUESTIONS[asked.question],
                **{f"choice_{letter.lower()}": text for letter, text in zip(LETTERS, asked.options, strict=False)},
                "answer_gt": asked.letter,
                "event_onset": clip.onset / RATE,
                "event_seconds": len(group) / RATE,
                "needles": [[spans[one][0] / RATE, spans[one][1] / RATE] for one in asked.deciding],
                "heard": list(item.sounds),
                "minutes": clip.minutes,
                "place": clip.place,
                "needle_count": item.needles,
                "snr_db": clip.snr,
                "background": background,
                "background_alone": without,
            },
        )
