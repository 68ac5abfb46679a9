"""Store each sample's attention in `attention/<sample>.npz`, with a line in `attention/index.jsonl`.

Whole attention maps of L layers and S tokens take 4·L·S² bytes (6.5 GB for 300 s of audio). So only summary statistics
are stored, the "reduced" attention; it takes 1 MB.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import RecordError
from audiomarathon.files import json_object, read_plain, write_bytes, write_text
from audiomarathon.fingerprint import same
from audiomarathon.runs.folder import RunFolder
from audiomarathon.settings import RunSettings

FOLDER = "attention"
INDEX = "index.jsonl"
WHOLE = ".whole"  # suffix of the folder with a sample's whole maps

#: Kinds of rows, by the tokens that attend: the prompt's last token, the question (mean), the generated tokens (mean).
ROWS = ("last", "question", "generated")
BLOCKS = 64
TOP = 16

Array = npt.NDArray[Any]
_TYPES = {"id": str, "file": str, "bytes": int, "layers": list, "all": bool, "full": bool}  # fields of an index line
_ARRAYS = ("mass", "profile", "top_index", "top_mass", "entropy", "blocks", "edges")


@dataclass(frozen=True)
class Attention:
    """A sample's reduced attention: R kinds of attending tokens (:data:`ROWS`), L layers, H heads, A audio tokens.

    A row without attending tokens is NaN: a reply of one token has no row "generated", and dropped tokens attend to
    nothing.

    Attributes
    ----------
    mass
        How much attention each of G groups of positions gets, shape (R, L, H, G), float32; the sum over groups is 1.
        `meta["groups"]` names the groups: first token, template before the audio, each clip, question, rest of the
        template, generated.
    profile
        Attention to each audio token, mean over heads, times A, shape (R, L, A), float16. A value of 1 means 1 / A of
        all attention.
    top_index, top_mass
        The 16 audio tokens with the most attention (all, if there are fewer), and their attention; shape (R, L, H, 16
        or A), int32 and float16.
    entropy
        Entropy of the attention among the audio tokens, in nats, shape (R, L, H), float32.
    blocks, edges
        The whole map, mean over heads, in at most 64 × 64 blocks: summed over a block's columns, averaged over its
        rows, shape (L, 64, 64), float16. Block i covers positions edges[i] to edges[i + 1].
    tokens
        The prompt's tokens as text.
    meta
        `layers` (captured layers), `model_layers` (number of the model's layers), `groups`, `clips` (number of audio
        tokens of each clip), `parts` (a list of group, first position and position after the last), `kept_audio_bits`
        (see :func:`.unpack`; None if nothing was dropped), `reply`, and the fields of LALM Bench's `meta.json`.
    """

    mass: Array
    profile: Array
    top_index: Array
    top_mass: Array
    entropy: Array
    blocks: Array
    edges: Array
    tokens: tuple[str, ...]
    meta: Mapping[str, Any]

    def save(self, file: Path) -> int:
        """Write the attention to a file atomically; return the file's size in bytes."""
        texts = {"tokens": list(self.tokens), "meta": dict(self.meta)}
        coded = {name: np.frombuffer(json.dumps(one).encode(), np.uint8) for name, one in texts.items()}
        stream = io.BytesIO()
        np.savez_compressed(stream, **{name: getattr(self, name) for name in _ARRAYS}, **coded)  # type: ignore[arg-type]
        write_bytes(file, content := stream.getvalue())
        return len(content)

    def write_texts(self, folder: Path) -> None:
        """Write `tokens.json` and `meta.json` in LALM Bench's format."""
        write_text(folder / "tokens.json", json.dumps(list(self.tokens), ensure_ascii=False, indent=2))
        write_text(folder / "meta.json", json.dumps(dict(self.meta), ensure_ascii=False, indent=2))

    @classmethod
    def read(cls, file: Path) -> Attention:
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        RecordError
            The file cannot be read, or is damaged.
        """
        try:
            with np.load(io.BytesIO(read_plain(file)), allow_pickle=False) as found:
                arrays = {name: found[name] for name in _ARRAYS}
                tokens, meta = (json.loads(found[name].tobytes()) for name in ("tokens", "meta"))
        except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
            raise RecordError(
                f"{file}: not a valid attention file ({error}); delete it and run `audiomarathon attention capture`"
            ) from error
        return cls(**arrays, tokens=tuple(tokens), meta=meta)


def index_of(run: Path) -> dict[str, dict[str, Any]]:
    """Return the index of a run's stored attention: each sample's last line, by the sample's id.

    Lines whose file is missing, or has another size than the line says, are left out.
    """
    index = run / FOLDER / INDEX
    lines = read_plain(index).splitlines() if index.is_file() else []
    found = {}
    for row in filter(None, map(json_object, lines)):
        if all(isinstance(row.get(name), kind) for name, kind in _TYPES.items()):
            file = index.parent / row["file"]
            if file.is_file() and file.stat().st_size == row["bytes"]:
                found[row["id"]] = row
    return found


def captured(folder: RunFolder, clips: Mapping[str, str], settings: RunSettings) -> set[str]:
    """Return the ids of samples whose stored attention can be kept: it fits the settings and the current clips.

    `clips` is the current hash of each sample's clips.
    """
    found = set()
    for id_, row in index_of(folder.path).items():
        layers = {*settings.attn_layers} <= {*row["layers"]} if settings.attn_layers else row["all"]
        if layers and row["full"] >= bool(settings.attn_full) and same(row.get("clips"), clips.get(id_)):
            found.add(id_)
    return found
