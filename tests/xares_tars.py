"""Makes webdataset tars as X-ARES publishes them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_tar(tar: Path, members: Iterable[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    """Write members in their order."""
    tar.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tar, "w") as archive:
        for name, content in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return tar


def clips(labels: Iterable[tuple[str, Any]], kind: str = "flac") -> list[tuple[str, bytes]]:
    """Return the two members of each clip: audio that is its key, and JSON."""
    return [
        member
        for key, meta in labels
        for member in ((f"{key}.{kind}", key.encode()), (f"{key}.json", json.dumps(meta).encode()))
    ]
