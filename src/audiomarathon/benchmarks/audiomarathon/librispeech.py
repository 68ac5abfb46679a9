"""LibriSpeech: transcribe long read speech."""

from __future__ import annotations

from pathlib import Path

from audiomarathon.benchmarks.locate import Folder, the_one, walk
from audiomarathon.benchmarks.rows import RowError, clean, natural, read_text, shortened, shown
from audiomarathon.benchmarks.task import BadRow, Filters, Loaded, Part, Sample, Task, name_id
from audiomarathon.errors import DataError
from audiomarathon.files import write_text
from audiomarathon.scoring.transcript import Transcript

INSTRUCTION = "Transcribe the speech in the audio exactly. Output the transcript only, nothing else."


class LibriSpeech(Task):
    """Task: transcribe read speech. Samples of one speaker share a cluster.

    There is no metadata file: clips are `<split>/<speaker>/<chapter>/*.flac`. Their texts are in the chapter's
    `.trans.txt` (lines of clip and text), or in one `.txt` per clip. A sample's id is `speaker/chapter/clip`, whether
    the data folder is one split or the folder of all splits.
    """

    key = "librispeech"
    aliases = ("ASR",)
    title = "Automatic speech recognition"
    max_new_tokens = 1100
    scorer = Transcript()
    transcribes = True
    cuttable = False  # the words in a part of a clip are unknown

    def find(self, root: Path) -> Path:
        """Return the folder of a split, which holds `<speaker>/<chapter>/`, or the folder that holds several splits."""
        chapters = [folder for folder in walk(root) if folder.depth >= 2 and _is_chapter(folder)]
        depth = min((chapter.depth for chapter in chapters), default=0)
        splits = sorted({chapter.path.parents[1] for chapter in chapters if chapter.depth == depth})
        parents = sorted({split.parent for split in splits})
        shared = depth > 2 and len(splits) > 1  # at depth 2 the root itself is the only split
        folders = parents if shared else splits
        return the_one(self, root, folders, "<speaker>/<chapter>/ folders of FLAC with transcripts")

    def load(self, folder: Path, filters: Filters = Filters()) -> Loaded:
        """Pair clips with transcripts as samples.

        A clip without a transcript, or a transcript without a clip, becomes a bad row (one that gives no sample).
        """
        del filters  # no filter applies to this task
        folder = folder.absolute()
        samples: dict[str, Sample] = {}
        bad: list[BadRow] = []
        for chapter in _chapters(folder):
            texts, faults = _transcripts(chapter)
            bad += faults
            speaker = name_id(chapter.path.parent.name)
            for clip in _files(chapter, ".flac"):
                id_ = name_id(f"{speaker}/{chapter.path.name}/{clip.stem}")
                text = texts.pop(name_id(clip.stem), None)
                if text is None:
                    bad.append(BadRow(clip, 0, "has no transcript"))
                elif id_ in samples:
                    bad.append(BadRow(clip, 0, f"duplicate id {shown(id_)}, first used by {samples[id_].clips[0]}"))
                else:
                    samples[id_] = Sample(id_, (clip,), INSTRUCTION, text, speaker)
            missing = (f"clip {shortened(f'{name}.flac')} is missing" for name in sorted(texts))
            bad += [BadRow(chapter.path, 0, reason) for reason in missing]
        if not samples and not bad:
            raise DataError(f"{folder}: no <speaker>/<chapter>/ folders of FLAC with transcripts")
        return Loaded(folder, tuple(sorted(samples.values(), key=lambda s: natural(s.id))), tuple(bad))

    def write_rows(self, part: Part, target: Path) -> None:
        """Write the samples' transcripts: one file per clip if the source has such files, else one per chapter."""
        chapters: dict[Path, list[str]] = {}
        for sample in part.kept:
            clip, text = Path(part.path(sample)), " ".join(sample.answer.split())
            if sample.clips[0].with_suffix(".txt").is_file():
                write_text((target / clip).with_suffix(".txt"), f"{text}\n")
            else:
                chapters.setdefault(clip.parent, []).append(f"{clip.stem} {text}\n")
        for chapter, lines in chapters.items():
            write_text(target / chapter / f"{chapter.parent.name}-{chapter.name}.trans.txt", "".join(sorted(lines)))

    def prompt(self, sample: Sample) -> str:
        """Return the instruction to transcribe, which is the same for every clip."""
        return sample.question


def _chapters(folder: Path) -> list[Folder]:
    """Return the folders of LibriSpeech chapters: those with clips or transcripts, two or three levels below `folder`.

    A folder that lost its transcripts or its clips is included, so that the loss is reported. A split in which no
    folder is certainly a chapter (:func:`_is_chapter`) is skipped.
    """
    near = [
        subfolder for subfolder in walk(folder) if subfolder.depth in (2, 3) and _files(subfolder, (".flac", ".txt"))
    ]
    splits = {subfolder.path.parents[1] for subfolder in near if _is_chapter(subfolder)}
    return [subfolder for subfolder in near if subfolder.path.parents[1] in splits]


def _is_chapter(folder: Folder) -> bool:
    """Tell whether a folder is certainly a chapter of LibriSpeech.

    Such a folder has FLAC files, and also text files or files named `<speaker>-<chapter>-…`.
    """
    prefix = f"{folder.path.parent.name}-{folder.path.name}-"
    named = any(name.startswith(prefix) for name in folder.files)
    return bool(_files(folder, ".flac") and (named or _files(folder, ".txt")))


def _files(folder: Folder, suffix: str | tuple[str, ...]) -> list[Path]:
    return [folder.path / name for name in sorted(folder.files) if name.lower().endswith(suffix)]


def _transcripts(chapter: Folder) -> tuple[dict[str, str], list[BadRow]]:
    """Read a chapter's transcript files; return (texts, bad rows).

    The texts are {name of the clip: text}; an error in a file is a bad row.
    """
    texts: dict[str, str] = {}
    bad: list[BadRow] = []
    for file in _files(chapter, ".txt"):
        try:
            lines = _lines(file, chapter)
        except DataError as error:
            bad.append(BadRow(file, 0, f"transcript: {str(error).removeprefix(f'{file}: ')}"))
            continue
        for number, written, text in lines:
            name = name_id(written)
            try:
                if name in texts:
                    raise RowError(f"second transcript of {shown(name)}")
                texts[name] = clean(text, f"transcript of {shown(name)}")
            except RowError as error:
                bad.append(BadRow(file, number, str(error)))
    return texts, bad


def _lines(file: Path, chapter: Folder) -> list[tuple[int, str, str]]:
    """Return (line number, name of the clip, text) of every line of a transcript file.

    A file named after one clip counts as one line.
    """
    content = read_text(file)
    stem = file.name[: -len(".trans.txt")] if file.name.lower().endswith(".trans.txt") else file.stem
    if f"{stem}.flac" in chapter.files:
        text = " ".join(content.split())
        return [(1, stem, text.removeprefix(f"{stem} ") if text != stem else "")]
    lines = enumerate(map(str.strip, content.splitlines()), start=1)
    return [(number, *line.partition(" ")[::2]) for number, line in lines if line]
