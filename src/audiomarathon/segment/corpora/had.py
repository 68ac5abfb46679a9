"""HAD, half-truth audio detection: Chinese speech; some clips contain a few synthetic words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from audiomarathon.benchmarks.rows import read_text
from audiomarathon.errors import DataError
from audiomarathon.files import write_json
from audiomarathon.segment.corpus import Corpus, Group, Row, Source, below


class HadCorpus(Corpus):
    """Join genuine clips with genuine clips, and half-truth clips (with some synthetic words) with half-truth clips.

    Clips are joined whole: a piece of a half-truth clip might contain only genuine speech and yet be labelled fake.
    """

    task = "had"
    title = "HAD"
    layout = """\
  HAD_train/HAD_train_label.txt    one line per clip: name  start-end-T/start-end-F/…  1 (genuine) or 0 (half-truth)
  HAD_train/train/conbine/*.wav    the clips, named as in the label file"""
    example = "HAD/HAD_train -o data/HAD"
    seconds = (180.0, 300.0)
    shuffled = True
    clip = "{name}/HAD_{name}_{index:05d}.wav"

    def groups(self) -> list[Group]:
        """Return two groups: the genuine clips and the half-truth clips."""
        sources: dict[str, list[Source]] = {"real": [], "fake": []}
        for root in self.roots:
            audio = {path.stem: path for path in below(root, [".wav", ".flac"])}
            files = [file for file in below(root, [".txt"]) if "label" in file.name.lower()]
            for file in files or [self.the_one([], "label file")]:
                for name, fakes, genuine in sorted(_labels(file), key=lambda label: label[0]):
                    path = audio.get(name)
                    if path is None:
                        self.left_out.append((name, f"is in {file.name}, but the clip is missing"))
                    elif genuine == bool(fakes):
                        flaw = "genuine, but has" if genuine else "half-truth, but has no"
                        self.left_out.append((self.name(path), f"is labelled {flaw} fake segments"))
                    else:
                        source = Source(path, self.name(path), {"fakes": fakes})
                        sources["real" if genuine else "fake"].append(source)
        both = {source.name for source in sources["real"]} & {source.name for source in sources["fake"]}
        self.left_out += [(name, "is labelled genuine and half-truth") for name in sorted(both)]
        kept = {kind: [source for source in some if source.name not in both] for kind, some in sources.items()}
        return [Group(kind, some) for kind, some in kept.items() if some]

    def write(self, folder: Path, clips: Iterable[Row]) -> list[tuple[str, str]]:
        """Write `events.json`, with the first fake segment of each joined clip.

        Return [], since a question can be asked about every clip.
        """
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


def _labels(file: Path) -> Iterator[tuple[str, list[tuple[float, float]], bool]]:
    """Yield (clip's name, its fake segments as (start, end) in seconds, whether it is labelled genuine)."""
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        if not (words := line.split()):
            continue
        try:
            name, segments, flag = words
            parsed = [segment.rsplit("-", 2) for segment in segments.split("/")]
            times = [(float(start), float(end), {"T": False, "F": True}[fake]) for start, end, fake in parsed]
            genuine = {"0": False, "1": True}[flag]
            if not all(0 <= start <= end < math.inf for start, end, _ in times):
                raise ValueError
        except (ValueError, KeyError):
            raise DataError(
                f"{file}, line {number}: expected 'name start-end-T/start-end-F/… 0|1', found {line[:80]!r}"
            ) from None
        yield name, [(start, end) for start, end, fake in times if fake], genuine
