"""Standing in for one attribute of one object, for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def shadowed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let `value` stand in for `owner.name` inside the block; the class and other instances are not touched."""
    # What an instance owns is put back (accelerate's hooks shadow forward, too); a class's method reappears by itself.
    own = name in vars(owner) or name in getattr(owner, "_buffers", ())
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
