"""A time limit for a block of code: a hang fails the test instead of blocking it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_hang(seconds: int = 60) -> Iterator[None]:
    """Fail if the block takes longer than `seconds`."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"hangs: more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
