"""Measure the cost of judging without the judges' time: summarising stored judgements, and the loop that asks.

    python scripts/measure/benchmark_judges.py [--clips 80] [--judges 3] [--rounds 3]

1. `audiomarathon score` of a JASCO run with a judgement of every reply and anchor, against the same run without any and
   against parsing the same files. Each is a separate process; CPU seconds are compared.
2. Judging that run with a judge that answers at once: the time of the loop, the cache and the file per request, as a
   share of a fast judge's 0.5 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark_report import cost

from audiomarathon.benchmarks import get_task
from audiomarathon.judges.cache import Cache
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Request
from audiomarathon.judges.judging import Bench, Case, judge_run
from audiomarathon.records import Record
from audiomarathon.runs.folder import RunFolder
from audiomarathon.wings.jasco.task import COLUMNS, INSTRUCTIONS

FAST = 0.5  # seconds per judgement of a fast judge
ANSWER = "Explanation1: The provided audio sound is as told. {}\nRating: 1\nExplanation2: {}\nOrientation: Both"
_READ = """
import json, pathlib, sys
for file in pathlib.Path(sys.argv[1]).glob("*.jsonl"):
    [json.loads(line) for line in file.open()]
"""


class AtOnce(Judge):
    """A judge that answers at once, with a text of the usual length."""

    key = "at-once"

    def identity(self) -> Mapping[str, Any]:
        """Return the judge's identity, which is only its name."""
        return {"backend": self.key}

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Yield each request with its answer, in order."""
        for request in requests:
            yield request, Reply(ANSWER.format("It matches. " * 30, "It needs both. " * 30), "stop")


def replies(clips: int) -> list[Record]:
    """Return records of replies (40 words each) to the eight prompts of `clips` clips."""
    records = []
    for clip in range(1, clips + 1):
        texts = {name: f"the {name} of clip {clip}" for name in COLUMNS}
        for number, prompt in enumerate(INSTRUCTIONS, 1):
            reference = {"answer": texts["tgt_text"], "prompt": prompt, **texts}
            words = f"They do {number} things at {clip} places. " * 6
            records.append(Record(f"{clip}-p{number}", str(clip), reply=words, reference=reference, finish="stop"))
    return records


def main() -> None:
    """Time both parts, and print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=80, help="clips, of eight replies each (default 80)")
    parser.add_argument("--judges", type=int, default=3, help="judges (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, in which the sides take turns (default 3)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, bare, cache = (Path(temporary, name) for name in ("judged", "bare", "cache"))
        records = replies(given.clips)
        for place in (folder, bare):
            with RunFolder(place, {"task": "jasco"}) as run:
                facts = {"task": "jasco", "method": "base-0", "checkpoint": "M", "settings": {"seed": 42}}
                run.write_run({**facts, "samples": [reply_record.id for reply_record in records]})
                for record in records:
                    run.append(record)
        case, judge = Case(folder, records, get_task("jasco").scorer.protocol), AtOnce()  # type: ignore[attr-defined]
        each, asked = [], 0
        for number in range(given.judges):
            begin = time.process_time()
            judge_run(case, Bench(f"judge{number}", judge, Cache(cache / str(number), judge.identity())))
            asked = sum(1 for _ in (folder / f"judgements-judge{number}.jsonl").open())
            each.append((time.process_time() - begin) / asked)
        took = statistics.median(each)
        print(f"judging {asked} requests: {1000 * took:.2f} CPU ms a request beside the judge's own time")
        print(f"as a share of {FAST} s a judgement: {took / FAST:.1%}")
        score = [sys.executable, "-m", "audiomarathon", "score"]
        sides = {
            "files parsed": [sys.executable, "-c", _READ, str(folder)],
            "score, not judged": [*score, str(bare)],
            "score": [*score, str(folder)],
        }
        used: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(given.rounds):
            for name, command in sides.items():
                for place in (folder, bare):
                    (place / "verdicts-jasco.jsonl").unlink(missing_ok=True)  # so that no stored verdict is reused
                used[name].append(cost(command)[0])
        least = {name: min(seconds) for name, seconds in used.items()}
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["n"] == len(records), summary["n"]
        print(f"{len(records)} replies, {given.judges} judges, CPU s:", end=" ")
        print(", ".join(f"{name} {seconds:.2f}" for name, seconds in least.items()))
        summarising = least["score"] - least["score, not judged"]
        print(
            f"summarising the judgements: {summarising:.2f} CPU s, "
            f"{summarising / least['files parsed']:.1f} × parsing the files"
        )


if __name__ == "__main__":
    main()
