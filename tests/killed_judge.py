"""Judge a run repeatedly and kill the judge with SIGKILL at random moments; the last attempt runs to the end.

Usage: killed_judge.py FOLDER KILLS CACHE. Prints the number of killed attempts and of requests to the judge. Each
attempt is a fork of this process, so that Python starts only once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import toy_judged

from audiomarathon.judges.cache import Cache
from audiomarathon.judges.judge import Reply
from audiomarathon.judges.judgements import Request
from audiomarathon.judges.judging import Bench, Case, judge_run
from audiomarathon.runs.folder import read_records


class Slow(toy_judged.Scripted):
    """Wait a moment before each answer, and log its request."""

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        for request in requests:
            (pair,) = super().ask([request])
            time.sleep(0.0005)
            with Path(sys.argv[3], "asked").open("a") as stream:
                stream.write(f"{request.hash}\n")
            yield pair


def main(folder: Path, kills: int, cache: Path) -> None:
    chance, killed = random.Random(0), 0
    case = Case(folder, list(read_records(folder).values()), toy_judged.Asking())
    judge = Slow(lambda messages: "?" if len(messages) == 2 and "s" in messages[0]["content"] else "Grade: 1")
    while True:
        child = os.fork()
        if child == 0:
            judge_run(case, Bench("slow", judge, Cache(cache, judge.identity())))
            os._exit(0)
        if killed < kills:
            time.sleep(0.002 + 0.02 * chance.random())
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    print(killed, len(Path(cache, "asked").read_text().splitlines()))  # noqa: T201
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
