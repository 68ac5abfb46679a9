"""The command `audiomarathon ruler`: plant words and bells into long audio, and write questions about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from audiomarathon.cli.options import argument, check_folder, listed, option
from audiomarathon.cli.output import say
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.settings import SEED
from audiomarathon.terminal import progress_of
from audiomarathon.text import counted

_TEXT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")


def ruler(
    folder: Annotated[Path, argument("Data root to write; the clips that it holds are used again.")],
    minutes: Annotated[str, option("Lengths of clips in minutes, up to 60.")] = "1,5,15",
    places: Annotated[str, option("Where the needles begin: 0 (start) to 1 (end).")] = "0,0.25,0.5,0.75,1",
    needles: Annotated[str, option("Numbers of needles: words that are said, or bells at least.")] = "1,3",
    snr: Annotated[str, option("Loudness of needles in dB against their background.")] = "10",
    questions: Annotated[str, option("What to ask: word, count, order, after.")] = "word,count,order,after",
    items: Annotated[int, option("Items of each cell and question, a multiple of 4.")] = 8,
    gap: Annotated[float, option("Seconds between two needles.")] = 1.0,
    words: Annotated[Path | None, option("Folder with a recording for each word, named after it.")] = None,
    bell: Annotated[Path | None, option("Recording of a bell.")] = None,
    background: Annotated[Path | None, option("Folder of recordings to plant the needles in.")] = None,
    backgrounds: Annotated[int, option("Number of backgrounds: the clusters of intervals.", min=2)] = 8,
    seed: Annotated[int, option("The same seed and sounds make the same bytes.", min=0)] = SEED,
    dry_run: Annotated[bool, option("Only show what would be made.", "--dry-run")] = False,
) -> None:
    """Plant words and bells into long audio, for the tasks ruler/word, ruler/count, ruler/order and ruler/after.

    Example: audiomarathon ruler data --minutes 1,5,15 --places 0,.5,1 --background recordings
    """
    from audiomarathon.wings.ruler import build, sounds
    from audiomarathon.wings.ruler.grid import RATE, Grid

    folder = check_folder(folder)
    grid = Grid(
        _numbers("--minutes", minutes), _numbers("--places", places), _numbers("--needles", needles),
        _numbers("--snr", snr), tuple(dict.fromkeys(listed(questions))), items, gap, seed,
    )  # fmt: skip
    longest = round(max(grid.minutes) * 60 * RATE)
    around = sounds.synthetic_backgrounds(count := min(backgrounds, items), seed)
    if background:
        around = sounds.recorded_backgrounds(background, count, seed, longest)
    made_of = build.Ruler(grid, sounds.voice(words, bell), around)
    clips, hours, size = made_of.size
    say(f"{counted(clips, 'clip')}, {hours:.1f} h, about {size:.1f} GB, on {counted(len(around), 'background')}")
    if dry_run:
        return
    for sound in around if background else ():  # this finds damage before the first clip is written
        if not sounds.level(sound.make(longest)[: round(min(grid.minutes) * 60 * RATE)]):
            raise DataError(f"--background {background}: {sound.mark} begins with digital silence, longer than a clip")
    with progress_of(clips, "ruler", "clip") as step:
        made = build.write(made_of, folder, step)
    say(f"{folder}: made {counted(made, 'clip')}, {clips - made} were there")
    asked = dict.fromkeys(f"ruler/{query.question}" for item in made_of.groups for query in item.asked)
    say(f"next: audiomarathon run {' '.join(asked)} --data {folder}")


def _numbers(flag: str, text: str) -> tuple[Any, ...]:
    if odd := [text_part for text_part in listed(text) if not _TEXT.fullmatch(text_part)]:
        raise SettingsError(f"{flag} {odd[0]}: not a number; allowed: numbers separated by commas, such as 1,5,15")
    return tuple(int(text_part) if text_part.isdecimal() else float(text_part) for text_part in listed(text))
