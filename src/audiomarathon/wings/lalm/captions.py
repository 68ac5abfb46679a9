"""Captioning tasks: Clotho v2.1 and AudioCaps, which differ only in the columns and folders of their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from audiomarathon.benchmarks.captioning import Captioning, Item


class Clotho(Captioning):
    """Clotho v2.1: clips of 15 to 30 s with five captions each (arXiv 1910.09387).

    The captions are in `clotho_captions_<split>.csv`; clips are in `<split>/` next to it, or in the folders of Zenodo's
    archives.
    """

    key = "lalm/clotho"
    aliases = ("clotho",)
    title = "Audio captioning (Clotho)"
    download = ("2 GB a split", "captions not for commercial use; licence of each clip in clotho_metadata_*.csv")
    splits: ClassVar[Mapping[str, str]] = {
        split: f"clotho_captions_{split}.csv" for split in ("evaluation", "validation", "development")
    }
    metadata_file = splits["evaluation"]
    folders = ("{split}", "clotho_audio_{split}", "clotho_audio_{split}/{split}")
    columns = ("file_name", *(f"caption_{number}" for number in range(1, 6)))

    def items(self, rows: Sequence[Mapping[str, str]]) -> list[Item]:
        """Return (id, possible names of the clip's file, captions) for each row; the id is the clip's file name."""
        return [
            (row["file_name"], (row["file_name"],), tuple(filter(str.strip, map(row.__getitem__, self.columns[1:]))))
            for row in rows
        ]

    def rows(self, item: Item) -> list[dict[str, str]]:
        """Return a clip's rows of the table: a list with its only row, as {column: text}."""
        captions = [*item[2], *[""] * 5]
        return [{"file_name": item[0], **dict(zip(self.columns[1:], captions, strict=False))}]


class AudioCaps(Captioning):
    """AudioCaps: ten-second clips of YouTube; five captions each in test and val, one in train (NAACL 2019).

    The captions are in `<split>.csv`, one row per caption. Clips are next to it, or in `<split>/`, `audio/` or `wavs/`.
    A clip is named `<youtube_id>_<start_time>`, `<youtube_id>`, `Y<youtube_id>` or `<audiocap_id>`.
    """

    key = "lalm/audiocaps"
    aliases = ("audiocaps",)
    title = "Audio captioning (AudioCaps)"
    splits: ClassVar[Mapping[str, str]] = {split: f"{split}.csv" for split in ("test", "val", "train")}
    metadata_file = splits["test"]
    folders = ("", "{split}", "audio", "audio/{split}", "wavs")
    columns = ("audiocap_id", "youtube_id", "start_time", "caption")

    def items(self, rows: Sequence[Mapping[str, str]]) -> list[Item]:
        """Return (id, possible names of the clip's file, captions) for each clip.

        The id is `<youtube_id>_<start_time>`.
        """
        captioned: dict[str, Item] = {}
        for row in rows:
            video, start = row["youtube_id"], row["start_time"]
            id_ = f"{video}_{start}"
            first = (id_, (id_, video, f"Y{video}", row["audiocap_id"]), ())
            _, names, captions = captioned.get(id_, first)
            captioned[id_] = (id_, names, (*captions, *filter(str.strip, [row["caption"]])))
        return list(captioned.values())

    def rows(self, item: Item) -> list[dict[str, str]]:
        """Return a clip's rows of the table, one per caption, as {column: text}.

        All rows get the `audiocap_id` of the clip's first row, since the clip's file may be named after it.
        """
        video, _, start = item[0].rpartition("_")
        return [dict(zip(self.columns, (item[1][-1], video, start, text), strict=True)) for text in item[2]]
