"""Let a person check randomly chosen samples of a task, as AudioMarathon's authors did, and store the verdicts."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import Loaded, Sample, select
from audiomarathon.errors import DataError
from audiomarathon.files import append_line, read_plain
from audiomarathon.records import LETTERS
from audiomarathon.settings import SEED

SHARE = 0.1
PLAYERS: Mapping[str, tuple[str, ...]] = {
    "ffplay": ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error"),
    "aplay": ("aplay", "-q"),
    "paplay": ("paplay",),
    "afplay": ("afplay",),
}
_VERDICTS = {"y": "accept", "n": "reject"}


def review(
    loaded: Loaded,
    verdicts: Path,
    *,
    seed: int = SEED,
    share: float = SHARE,
    ask: Callable[[str], str] = input,
    show: Callable[[str], None] = print,
    play: bool = True,
) -> Counter[str]:
    """Show and play samples one by one to a person, and append each verdict to a JSONL file.

    Parameters
    ----------
    verdicts
        JSONL file. Samples with a verdict in it are not shown again, but skipped samples are.
    seed, share
        Seed, and share of the samples to review. The first samples in a run's order with this seed are taken, so a
        larger share extends a smaller one.
    ask, show
        Functions that read an answer (`y`, `n` with a note, `s`, `q`) and print a text.
    play
        Whether to play clips; their paths are always shown.

    Returns
    -------
    Counter
        Number of accepted and of rejected samples (earlier verdicts included), and of samples left to review.

    Raises
    ------
    DataError
        The file holds something other than verdicts, or cannot be read.
    RecordError
        A verdict cannot be written.
    """
    chosen = select(loaded.samples, math.ceil(share * len(loaded.samples)), seed)
    known = _read(verdicts)
    unjudged = [sample for sample in chosen if sample.id not in known]
    for number, sample in enumerate(unjudged, start=len(chosen) - len(unjudged) + 1):
        show(f"\n[{number} of {len(chosen)}] {described(sample)}")
        with _playing(sample, show) if play else nullcontext():
            answer = _asked(ask)
        if answer == "q":
            break
        if answer[0] in _VERDICTS:
            verdict = {"id": sample.id, "verdict": _VERDICTS[answer[0]], "note": answer[1:].strip(), "seed": seed}
            append_line(verdicts, verdict)
            known[sample.id] = verdict
    count = Counter(str(known[sample.id]["verdict"]) for sample in chosen if sample.id in known)
    count["left"] = sum(sample.id not in known for sample in chosen)
    return count


def described(sample: Sample) -> str:
    """Describe a sample as text: its question and its options (the right one marked), or its transcript."""
    lines = [sample.id, *(str(clip) for clip in sample.clips), sample.question]
    if not sample.options:
        return "\n".join([*lines, f"transcript: {sample.answer}"])
    marked = [
        f"{'*' if letter == sample.answer else ' '} {letter}. {text}"
        for letter, text in zip(LETTERS, sample.options, strict=False)
    ]
    return "\n".join([*lines, *marked])


def _asked(ask: Callable[[str], str]) -> str:
    """Ask the person until the answer is valid; return `y` or `n` with a note, `s` or `q`.

    The end of input means `q`.
    """
    while True:
        try:
            answer = ask("right? y(es), n(o) [why], s(kip), q(uit): ").strip()
        except EOFError:
            return "q"
        word = answer.partition(" ")[0].lower()
        if word in ("y", "yes", "n", "no", "s", "skip", "q", "quit"):
            return f"{word[0]} {answer.partition(' ')[2]}" if word[0] in _VERDICTS else word[0]


@contextmanager
def _playing(sample: Sample, show: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, play a sample's clips; the sound ends with the block. The function `show` prints problems."""
    command = next((command for name, command in PLAYERS.items() if shutil.which(name)), None)
    if command is None:
        show(f"(no player: install one of {', '.join(PLAYERS)}; the clip's path is above)")
        yield
        return
    quiet = subprocess.DEVNULL
    playing = subprocess.Popen([*command, *map(str, sample.clips)], stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        playing.terminate()
        playing.wait()


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Read a file of verdicts; return the last one on each sample, as {sample's id: row of the file}.

    An incomplete last line, which a killed review leaves, is skipped.
    """
    try:
        lines = read_plain(file).splitlines(keepends=True) if file.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return {row["id"]: {**row, "verdict": row["verdict"]} for row in rows}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"{file}: is not a file of verdicts ({error}); name another file") from error
