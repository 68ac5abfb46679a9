"""A judge command killed at random moments loses no judgement and stores none twice."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from builders import lines_of
from hanging import no_hang
from toy_judged import Asking, replies_to

from audiomarathon.judges.judgements import read_judgements, reading_of
from audiomarathon.runs.folder import read_records


def test_a_judge_command_killed_at_random_repeats_only_requests_in_flight(tmp_path: Path, times, tell) -> None:
    kills, count = times(6, 200), times(40, 600)
    folder, cache = replies_to(tmp_path / "run", [f"reply {place}" for place in range(count)]), tmp_path / "cache"
    cache.mkdir()
    script = Path(__file__).parent.parent / "killed_judge.py"
    with no_hang(600):
        command = [sys.executable, str(script), str(folder), str(kills), str(cache)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    killed, asked = map(int, done.stdout.split())
    lines = lines_of(folder / "judgements-slow.jsonl")
    assert max(Counter((line["sample"], line["request_hash"]) for line in lines).values()) == 1
    records = read_records(folder)
    assert len(records) == count
    for record in records.values():
        assert reading_of(Asking(), record, record.judgements["slow"]).values == {"grade": 1}
    answered = {
        judgement.request_hash
        for requests in read_judgements(folder)["slow"].values()
        for judgement in requests.values()
    }
    distinct = len(answered)
    tell(f"{killed} kills: {len(lines)} judgements, {distinct} requests, asked {asked} times")
    assert killed == kills
    assert distinct <= asked <= distinct + killed  # only requests that a kill interrupted are repeated
