"""Encoder probing that is killed at random moments keeps all embeddings and ends with the same results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hanging import no_hang
from test_probing_runs import made, task_of

from audiomarathon.wings.encoders.probing.store import read_part


@pytest.mark.long
def test_encoder_runs_killed_at_random_resume_to_the_embeddings_of_an_undisturbed_run(
    tmp_path: Path, times, tell
) -> None:
    kills = times(10, 200)
    env, killed, whole = made(tmp_path / "env"), tmp_path / "killed", tmp_path / "whole"
    counts, rows = {}, {}
    for results, kill_count in ((killed, kills), (whole, 0)):
        results.mkdir()
        script = Path(__file__).parent.parent / "killed_encoder.py"
        with no_hang(600):
            command = [sys.executable, str(script), str(env), str(results), str(kill_count)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        counts[results] = tuple(map(int, done.stdout.split()))
        parts = [read_part(file) for file in results.rglob("part-*")]
        rows[results] = {key: row.tobytes() for part in parts for key, row in part.items()}
    clips = len(task_of().read(env).clips)
    tell(f"{counts[killed][0]} kills: {counts[killed][1]} encoded where {counts[whole][1]} are, of {clips} clips")
    assert counts[killed][0] >= 10  # a fast machine finishes before all 200 kills
    assert counts[whole] == (0, 3 + 2 * clips)  # 3 to check batch neighbours; each clip alone and in X-ARES' batches
    assert rows[killed] == rows[whole]
    for file in whole.rglob("samples.jsonl"):
        other = killed / file.relative_to(whole)
        assert sorted(other.read_text().splitlines()) == sorted(file.read_text().splitlines())
