"""Probe an encoder repeatedly and kill it with SIGKILL at random moments; the last attempt runs to its end.

Usage: killed_encoder.py ENV RESULTS KILLS. Prints the number of kills, and of clips encoded in all attempts. Each
attempt is a fork of this process, so that Python starts only once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from test_probing_runs import FramesEncoder, task_of

from audiomarathon.wings.encoders.encoder import from_module
from audiomarathon.wings.encoders.probing import encode
from audiomarathon.wings.encoders.probing.run import probe
from audiomarathon.wings.encoders.probing.store import Store


class SlowEncoder(FramesEncoder):
    """Sleep briefly at each batch, and write a line to a file for each clip."""

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        with Path(sys.argv[2], "encoded").open("a") as stream:
            stream.write("clip\n" * len(audio))
        time.sleep(0.015)
        return super().forward(audio)


def main(env: Path, results: Path, kills: int) -> None:
    torch.set_num_threads(1)
    chance, killed = random.Random(0), 0
    encode.PART_S = 0.0  # write a part of the store after each batch
    encoder, task = from_module(SlowEncoder()), task_of()
    data = task.read(env)
    while True:
        child = os.fork()
        if child == 0:
            for _ in probe(encoder, task, data, results, Store(results / "cache", encoder.identity)):
                pass
            os._exit(0)
        if killed < kills:
            time.sleep(0.15 * chance.random())
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    print(killed, len((results / "encoded").read_text().splitlines()))  # noqa: T201
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
