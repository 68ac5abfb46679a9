"""Pooled embeddings on disk: what was encoded once is never encoded again, and nothing stale is ever returned.

An encoder has a folder, by the hash of all that makes its embeddings (:attr:`Encoder.identity`). A row is found by the
hash of the audio that it is of, so a file that changed has no row, and tasks that share a clip share its row. Parts are
written whole beside and renamed, so that a killed run loses at most the part it was filling.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from audiomarathon.files import write_bytes
from audiomarathon.plain_file import read_plain

Rows = dict[str, npt.NDArray[np.float32]]
_VERSION = 1  # of how clips are decoded, cut, batched and pooled: raise it when that changes


class Store:
    """The embeddings of one encoder.

    Parameters
    ----------
    cache
        The cache folder; the encoder's own lies in its `embeddings`.
    identity
        All that makes the encoder's embeddings what they are, JSON-compatible.

    Attributes
    ----------
    rows
        By the hash of their audio, float32, shape (dim,) each.
    """

    def __init__(self, cache: Path, identity: Mapping[str, Any]) -> None:
        content = json.dumps({"version": _VERSION, **identity}, sort_keys=True)
        self.folder = cache / "embeddings" / hashlib.sha256(content.encode()).hexdigest()[:12]
        self.rows: Rows = {}
        for file in sorted(self.folder.glob("part-*.safetensors")):
            self.rows |= read_part(file)

    def add(self, rows: Rows) -> None:
        """Write a part."""
        self.rows |= rows
        content = save({"mean": np.stack([*rows.values()])}, {"keys": json.dumps([*rows])})
        write_bytes(self.folder / f"part-{_hash(content)}.safetensors", content)


def read_part(file: Path) -> Rows:
    """Return a part's rows; a damaged one is left out, so that its clips are encoded again."""
    content = read_plain(file)
    try:
        if file.stem != f"part-{_hash(content)}":
            raise ValueError("its content is not what was written")
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return dict(zip(json.loads(header["__metadata__"]["keys"]), load(content)["mean"], strict=True))
    except (ValueError, KeyError, SafetensorError) as error:
        warnings.warn(f"{file}: damaged ({error}); its clips are encoded again", stacklevel=3)
        return {}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
