"""LibriSpeech: audiobooks, one FLAC per utterance, one folder per chapter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from audiomarathon.benchmarks.rows import read_text
from audiomarathon.files import write_text
from audiomarathon.segment.corpus import Corpus, Group, Row, Source, audio_files, below


class LibriSpeechCorpus(Corpus):
    """Join consecutive utterances of one chapter, and their transcripts."""

    task = "librispeech"
    title = "LibriSpeech"
    layout = """\
  test-clean/<speaker>/<chapter>/<speaker>-<chapter>-0000.flac
  test-clean/<speaker>/<chapter>/<speaker>-<chapter>.trans.txt    one line per utterance: name, text
Name the folder of a split, or LibriSpeech/ for all splits."""
    example = "LibriSpeech/test-clean -o data/LibriSpeech"
    seconds = (60.0, 240.0)
    container = "FLAC"

    def groups(self) -> list[Group]:
        """Return one group of utterances per chapter."""
        groups = []
        for root in self.roots:
            for transcript in below(root, [".trans.txt"]):
                chapter = transcript.parent
                split = chapter.parents[1].name
                name = f"{split}/{chapter.parent.name}/{chapter.name}"
                groups.append(Group(name, self._utterances(transcript)))
        if not groups:
            self.the_one([], "<speaker>/<chapter>/*.trans.txt")
        return sorted(groups, key=lambda group: group.name)

    def _utterances(self, transcript: Path) -> list[Source]:
        lines = (line.partition(" ") for line in read_text(transcript).splitlines())
        texts = {name: text.strip() for name, _, text in lines if text.strip()}
        sources = []
        for path in audio_files(transcript.parent):
            if text := texts.pop(path.stem, ""):
                sources.append(Source(path, self.name(path), {"text": text}))
            else:
                self.left_out.append((self.name(path), "has no transcript"))
        self.left_out += [(self.name(transcript), f"utterance {name} is missing") for name in sorted(texts)]
        return sources

    def place(self, group: Group, index: int) -> str:
        """Return a joined clip's path, named like those in the corpus, such as
        `test-clean/1089/134686/1089-134686-0000.flac`.
        """
        _, speaker, chapter = group.name.split("/")
        return f"{group.name}/{speaker}-{chapter}-{index:04d}.flac"

    def write(self, folder: Path, clips: Iterable[Row]) -> list[tuple[str, str]]:
        """Write each chapter's `.trans.txt`, one line per joined clip; return [], since every clip is usable."""
        chapters: dict[str, list[str]] = {}
        for clip in clips:
            place = PurePosixPath(clip["path"])
            text = " ".join(source["facts"]["text"] for source in clip["sources"])
            chapters.setdefault(str(place.parent), []).append(f"{place.stem} {text}\n")
        for chapter, lines in chapters.items():
            speaker, number = PurePosixPath(chapter).parts[-2:]
            write_text(folder / chapter / f"{speaker}-{number}.trans.txt", "".join(lines))
        return []
