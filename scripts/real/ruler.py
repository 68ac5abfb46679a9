"""Write recordings of words for the ruler, and score transcripts of it: `python scripts/real/ruler.py OUT`.

The script writes `words/` into OUT: Asterisk's voice says the months and the days of the week, one recording per word
(Debian package, CC-BY-SA-3.0, see speech.py). It prints the command that plants the words. With `--read RESULTS` it
prints tables of transcripts in Markdown instead: by setting and length, how often the first option that a transcript
names is right, without any LLM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speech import SHARE, VOICES, packages

from audiomarathon.benchmarks.rows import read_rows, words_of
from audiomarathon.errors import AudioMarathonError, DataError
from audiomarathon.files import link
from audiomarathon.metrics.statistics import Resampler, means_of_items
from audiomarathon.records import LETTERS
from audiomarathon.results.systems import System, read_systems

BACKGROUND = Path(__file__).parent.parent.parent / "tests" / "data" / "ambience"
#: {beginning of the recordings' names: the words that they say, in the order of their numbers}.
SAID: Mapping[str, tuple[str, ...]] = {
    "day": ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "mon": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
        "December",
    ),
}  # fmt: skip


def write(out: Path) -> Path:
    """Link one recording per word into the folder `words` of `out`; return this folder.

    Raises
    ------
    DataError
        The recordings are not installed.
    """
    place = SHARE / "asterisk" / "sounds" / VOICES["en"][0] / "digits"
    if not (place / "mon-0.wav").is_file():
        raise DataError(f"no recordings of Asterisk on this machine: apt-get install {packages('en')}")
    for kind, words in SAID.items():
        for number, word in enumerate(words):
            link(place / f"{kind}-{number}.wav", out / "words" / f"{word}.wav")
    return out / "words"


def first_named(transcript: str, options: Sequence[str]) -> str:
    """Return the letter of the option that comes first in a transcript; "" if it contains none."""
    said = words_of(transcript)
    places = {letter: said.index(words_of(option)[0]) for letter, option in zip(LETTERS, options, strict=False)
              if words_of(option)[0] in said}  # fmt: skip
    return min(places, key=lambda letter: places[letter], default="")


def tables(systems: Sequence[System], question: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table: how often the first option in a transcript is right, by setting and clip length."""
    key = f"transcripts/ruler/{question}"
    runs = {system.method: system.runs[key] for system in systems if key in system.runs}
    lengths = sorted({float(row["minutes"]) for row in rows})
    lines = [
        f"| setting | {' | '.join(f'{minutes:g} min' for minutes in lengths)} | n |",
        "|---|" + "---|" * (len(lengths) + 1),
    ]
    for label, run in runs.items():
        cells, count = [], 0
        for length in lengths:
            part_rows = [row for row in rows if float(row["minutes"]) == length and row["path"] in run.records]
            options = [[row[f"choice_{letter.lower()}"] for letter in LETTERS[:4]] for row in part_rows]
            texts = [run.records[row["path"]].text for row in part_rows]
            right: list[float | None] = [
                float(first_named(text, told) == row["answer_gt"])
                for text, told, row in zip(texts, options, part_rows, strict=True)
            ]
            sums = means_of_items({"right": right}, [str(row["background"]) for row in part_rows])
            estimate = Resampler(0).of_sums(sums)["right"]
            cells.append(f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]" if part_rows else "–")
            count += len(part_rows)
        lines.append(f"| `{label}` | {' | '.join(cells)} | {count} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the recordings of words, or print the tables of transcripts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="data folder to write, or to read")
    parser.add_argument("--read", type=Path, metavar="RESULTS", help="folder with runs of audiomarathon transcribe")
    given = parser.parse_args(arguments)
    try:
        if given.read is None:
            words = write(given.out)
            print(f"audiomarathon ruler {given.out} --words {words} --background {BACKGROUND}")
            return 0
        systems = read_systems([given.read])
        for question in ("word", "order"):
            if any(f"transcripts/ruler/{question}" in system.runs for system in systems):
                rows = read_rows(given.out / "ruler" / f"ruler_{question}.json")
                print(f"ruler/{question}\n", *tables(systems, question, rows), "", sep="\n")
    except (AudioMarathonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
