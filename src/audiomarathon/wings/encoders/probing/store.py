"""Store embeddings on disk, so that no clip is encoded twice and no outdated embedding is used.

Each encoder has a folder, named by the hash of :attr:`Encoder.identity`. The key of an embedding is the hash of its
clip's audio, so a changed file has none, and tasks that share a clip share its embedding. Embeddings are written in
parts, one file each. A part is written under another name and then renamed, so a killed run loses at most the
embeddings not yet written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from audiomarathon.files import MAX_RECORD_BYTES, open_plain, read_plain, write_bytes
from audiomarathon.untrusted import array_of

Rows = dict[str, npt.NDArray[np.float32]]
FRAMES = 1  # version of the frame files: raise it when their content changes
_HALF = 6e4  # larger values are kept in single precision
_CHANGED = "its content does not match its checksum"
_VERSION = 1  # version of how clips are decoded, cut, batched and pooled: raise it when one of these changes


class Store:
    """The stored embeddings of one encoder.

    Parameters
    ----------
    cache
        The cache folder; the encoder's folder is in its subfolder `embeddings`.
    identity
        Everything on which the encoder's embeddings depend, JSON-compatible.

    Attributes
    ----------
    rows
        {key: embedding}, float32, shape (dim,) each. The key of an embedding made in our way is the hash of its clip's
        audio; of one made as in X-ARES, "<hash of the batch>:<position in the batch>".
    """

    def __init__(self, cache: Path, identity: Mapping[str, Any]) -> None:
        content = json.dumps({"version": _VERSION, **identity}, sort_keys=True)
        self.folder = cache / "embeddings" / hashlib.sha256(content.encode()).hexdigest()[:12]
        self.rows: Rows = {}
        for file in sorted(self.folder.glob("part-*.safetensors")):
            self.rows |= read_part(file)

    def has(self, row: str) -> bool:
        """Return whether the store has an embedding with this key; :attr:`rows` explains the keys."""
        return row in self.rows

    def add(self, rows: Rows) -> None:
        """Write embeddings, {key: embedding}, to disk as one file."""
        self.rows |= rows
        content = save({"mean": np.stack([*rows.values()])}, {"keys": json.dumps([*rows])})
        write_bytes(self.folder / f"part-{_hash(content)}.safetensors", content)


class FrameStore(Store):
    """The stored frames of clips, shape (frames, dim) each: one memory-mapped file per clip.

    Values are kept in half precision; if a clip has one that is too large for that, all its values are kept in single
    precision.
    """

    def __init__(self, store: Store) -> None:
        self.folder = store.folder / f"frames-{FRAMES}"
        self.rows: Rows = {}
        self._files = {file.stem.rpartition("-")[0]: file for file in self.folder.glob("*.npy")}

    def has(self, row: str) -> bool:
        """Return whether frames are stored under this key; at first use, check their file and map it into memory."""
        file = self._files.get(row.replace(":", "_"))
        if row not in self.rows and file:
            try:
                self.rows[row] = _mapped(file)
            except (OSError, ValueError) as error:
                warnings.warn(f"{file}: damaged ({error}); its clips are encoded again", stacklevel=3)
                del self._files[row.replace(":", "_")]
        return row in self.rows

    def add(self, rows: Rows) -> None:
        """Write the frames of each clip, {key: frames}, to a file of their own."""
        for row, frames in rows.items():
            stream, half = io.BytesIO(), np.abs(frames).max(initial=0) <= _HALF
            np.save(stream, frames.astype(np.float16 if half else np.float32))
            name, content = row.replace(":", "_"), stream.getvalue()
            self._files[name] = self.folder / f"{name}-{_hash(content)}.npy"
            write_bytes(self._files[name], content)
            self.has(row)


def _mapped(file: Path) -> npt.NDArray[np.float32]:
    """Map an array's file into memory and close the file.

    `np.load` would keep it open, and the number of open files is limited.

    Raises
    ------
    OSError, ValueError
        The file is not a plain file, does not match its checksum, or holds no frames.
    """
    import torch

    with open_plain(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        if not size or not file.stem.endswith(f"-{digest[:16]}"):
            raise ValueError(_CHANGED)
    content = torch.from_file(str(file), size=size, dtype=torch.uint8).numpy()
    array = array_of(content)
    if array.ndim not in (1, 2) or array.dtype not in (np.float16, np.float32):
        raise ValueError(f"an array of {array.dtype} with {array.ndim} axes")
    return array  # type: ignore[return-value]  # checked above


def read_part(file: Path) -> Rows:
    """Return the embeddings in a file of the store, as {key: embedding}; if it is damaged, warn and return {}.

    The clips of a damaged file are encoded again.
    """
    try:
        content = read_plain(file, MAX_RECORD_BYTES)
        if file.stem != f"part-{_hash(content)}":
            raise ValueError(_CHANGED)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        keys, mean = json.loads(header["__metadata__"]["keys"]), load(content)["mean"]
        if mean.ndim != 2 or mean.dtype != np.float32 or not isinstance(keys, list):
            raise ValueError(f"an array of {mean.dtype} with {mean.ndim} axes")
        return dict(zip(keys, mean, strict=True))
    except (OSError, ValueError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        warnings.warn(f"{file}: damaged ({error}); its clips are encoded again", stacklevel=3)
        return {}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
