"""Run a task again and again, killing it with SIGKILL at random moments; the last run is left alone.

Usage: killed_run.py TASK KILLS SAMPLES_FILE (settings from env vars). Prints how many runs were killed.

The engine is imported once and each run is a fork of this process, which itself never computes: twenty starts of Python
and torch would take minutes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import audiomarathon.engine.environment
import audiomarathon.engine.evaluate
import audiomarathon.models.qwen2_5_omni  # noqa: F401
from audiomarathon import run_task


def ended(child: int) -> bool:
    """Whether a child has ended; it is left to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main(task: str, kills: int, file: Path) -> None:
    chance, killed = random.Random(0), 0

    def size() -> int:
        return file.stat().st_size if file.exists() else 0

    while True:
        child = os.fork()
        if child == 0:
            run_task(task, model="qwen2.5-omni")
            os._exit(0)
        if killed < kills:
            before, patience = size(), chance.choice([0.05, 0.3, 60])  # sometimes while it is still loading
            deadline = time.monotonic() + patience
            while size() <= before and time.monotonic() < deadline and not ended(child):
                time.sleep(0.001)
            time.sleep(0.03 * chance.random())  # somewhere between this record and the next
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            print(killed)  # noqa: T201
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.argv[1:] = []  # the script door takes none
    main(arguments[0], int(arguments[1]), Path(arguments[2]))
