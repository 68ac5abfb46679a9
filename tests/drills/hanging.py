"""A bound on how long a block may take: a hang is a failure, not a wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_hang(seconds: int = 60) -> Iterator[None]:
    """Fail when the block takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"hangs: more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
