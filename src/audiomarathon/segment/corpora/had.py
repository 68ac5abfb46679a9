"""HAD, half-truth audio detection: Chinese speech; some clips contain a few synthetic words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from audiomarathon.errors import DataError
from audiomarathon.files import write_json
from audiomarathon.segment.corpus import Corpus, Group, Row, Source, below


@dataclass(frozen=True)
class _Label:
    """A line of the label file: clip name, fake segments in seconds, and the flag "genuine"."""

    name: str
    fakes: tuple[tuple[float, float], ...]
    genuine: bool


class HadCorpus(Corpus):
    """Join genuine clips with genuine clips, and half-truth clips with half-truth clips.

    Clips are joined whole: the genuine segments of a half-truth clip alone would make a "fake" clip without a fake.
    """

    task = "had"
    title = "HAD"
    layout = """\
  HAD_train/HAD_train_label.txt    one line per clip: name  start-end-T/start-end-F/…  1 (genuine) or 0 (half-truth)
  HAD_train/train/conbine/*.wav    the clips, named as in the label file"""
    example = "HAD/HAD_train -o data/HAD"
    seconds = (180.0, 300.0)
    shuffled = True

    def groups(self) -> list[Group]:
        """Return the genuine clips and the half-truths."""
        sources: dict[bool, list[Source]] = {True: [], False: []}
        for root in self.roots:
            audio = {path.stem: path for path in below(root, [".wav", ".flac"])}
            files = [file for file in below(root, [".txt"]) if "label" in file.name.lower()]
            for file in files or [self.the_one([], "label file")]:
                self._read(file, audio, sources)
        for both in sorted({source.name for source in sources[True]} & {source.name for source in sources[False]}):
            self.left_out.append((both, "is labelled genuine and half-truth"))
            sources = {genuine: [s for s in some if s.name != both] for genuine, some in sources.items()}
        names = {True: "real", False: "fake"}
        return [Group(names[genuine], sources[genuine]) for genuine in (True, False) if sources[genuine]]

    def _read(self, file: Path, audio: Mapping[str, Path], sources: Mapping[bool, list[Source]]) -> None:
        for label in sorted(_labels(file), key=lambda label: label.name):
            path = audio.get(label.name)
            if path is None:
                self.left_out.append((label.name, f"is in {file.name}, but the clip is missing"))
            elif label.genuine == bool(label.fakes):
                told = "genuine, but has" if label.genuine else "half-truth, but has no"
                self.left_out.append((self.name(path), f"is flagged {told} fake segments"))
            else:
                sources[label.genuine].append(Source(path, self.name(path), {"fakes": label.fakes}))

    def place(self, group: Group, index: int) -> str:
        """Return a name under `real/` or `fake/`; the folder is the class."""
        return f"{group.name}/HAD_{group.name}_{index:05d}.wav"

    def write(self, folder: Path, clips: Iterable[Row]) -> list[tuple[str, str]]:
        """Write `events.json`, with the first fake segment of each clip. The task needs no other metadata."""
        rows = []
        for clip in clips:
            fakes = [
                (source["offset"] / clip["rate"] + start, end - start)
                for source in clip["sources"]
                for start, end in source["facts"]["fakes"]
            ]
            onset, seconds = fakes[0] if fakes else (None, None)
            rows.append({"path": clip["path"], "event_onset": onset, "event_seconds": seconds})
        write_json(folder / "events.json", rows)
        return []


def _labels(file: Path) -> Iterator[_Label]:
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if not (words := line.split()):
            continue
        try:
            name, segments, flag = words
            parsed = [segment.rsplit("-", 2) for segment in segments.split("/")]
            times = [(float(start), float(end), mark) for start, end, mark in parsed]
            if flag not in ("0", "1") or any(mark not in ("T", "F") or not _in_order(a, b) for a, b, mark in times):
                raise ValueError
        except ValueError:
            raise DataError(
                f"{file}, line {number}: expected 'name start-end-T/start-end-F/… 0|1', found {line[:80]!r}"
            ) from None
        yield _Label(name, tuple((start, end) for start, end, mark in times if mark == "F"), flag == "1")


def _in_order(start: float, end: float) -> bool:
    return math.isfinite(end) and 0 <= start <= end
