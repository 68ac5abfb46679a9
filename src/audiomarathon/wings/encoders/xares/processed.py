"""Apply the functions `label_processor` and `merge_processor` of a user's X-ARES task file to the JSON of clips.

The other functions in this file turn the values that these return into the JSON that our tasks read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audiomarathon.errors import AudioMarathonError, PluginError, told
from audiomarathon.wings.encoders.xares.task import UNUSABLE


@dataclass(frozen=True)
class Processed:
    """Apply a user's functions to a clip's key and JSON, to turn the clip into one or more items, each with its JSON.

    Attributes
    ----------
    name
        Name of the task.
    label_processor, merge_processor
        The user's functions, or None.
    read
        Function that turns the values returned by the user's functions into JSON, such as :func:`label`.
    """

    name: str
    label_processor: Callable[[Any], Any] | None
    merge_processor: Callable[[Iterator[Any]], Iterable[Any]] | None
    read: Callable[[Sequence[Any]], Iterable[Any]]

    def __call__(self, key: str, meta: Any) -> list[Any]:
        """Return the JSON of each item that the user's functions make of a clip, given its key and its JSON.

        Raises
        ------
        ValueError
            A user's function cannot use the clip (it raises an error such as KeyError), or it returns a value that
            is not allowed.
        PluginError
            The merge processor changes embeddings, or a function raises an error of another class.
        """
        try:
            value = self.label_processor(meta) if self.label_processor else meta
            return [*self.read(self._merged(key, value) if self.merge_processor else [value])]
        except UNUSABLE as error:
            raise ValueError(f"{key!r} has no usable label: {told(error)}") from error
        except PluginError as error:
            raise PluginError(f"{self.name}: {error}") from None
        except (AudioMarathonError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise PluginError(f"{self.name}: its processors raised {told(error)} on {key!r}") from error

    def _merged(self, key: str, value: Any) -> list[Any]:
        assert self.merge_processor
        embedding = _Embedding()
        try:
            items = [*self.merge_processor(iter([(embedding, value, key)]))]
        except UNUSABLE as error:
            raise ValueError(f"merge_processor raised {told(error)}") from error
        if any(item[0] is not embedding for item in items):
            _refuse(embedding)
        return [item[1] for item in items]


def _refuse(*_given: Any) -> Any:
    allowed = "to change labels, repeat a clip or drop it"
    raise PluginError(f"a merge_processor reads or changes embeddings; allowed: {allowed}")


#: Replaces the embedding, which does not exist yet when labels are read.
_Embedding = type("_Embedding", (), dict.fromkeys(
    ("__getattr__", "__getitem__", "__setitem__", "__len__", "__iter__", "__array__", "__add__", "__radd__", "__sub__",
     "__mul__", "__rmul__", "__truediv__", "__matmul__", "__neg__"), _refuse))  # fmt: skip


def label(value: Any) -> dict[str, Any]:
    """Turn a class number into the JSON of a clip with one label: 3 gives `{"labels": ("3",)}`."""
    number = _plain(value)
    if not isinstance(number, int | float) or number != int(number):
        raise ValueError(f"the label is {number!r}; allowed: a class number, from a label_processor")
    return {"labels": (str(int(number)),)}


def labels(classes: int, value: Any) -> dict[str, Any]:
    """Turn a list with 0 or 1 for each class into the JSON of a clip: its labels are the classes marked with 1."""
    hot = _plain(value)
    if not isinstance(hot, list | tuple):
        raise ValueError(f"the label is {hot!r}; allowed: a list of {classes}, each 0 or 1, from a label_processor")
    if len(hot) != classes or not {*hot} <= {0, 1}:
        raise ValueError(f"label_processor returned {len(hot)} values; allowed: {classes}, each 0 or 1")
    return {"labels": tuple(str(number) for number, active in enumerate(hot) if active)}


def grade(value: Any) -> dict[str, Any]:
    """Turn a number into the JSON of a clip with one grade: 3.5 gives `{"grade": 3.5}`."""
    array = np.asarray(value, dtype=np.float64)
    if array.size != 1:
        raise ValueError(f"label_processor returned {array.size} numbers; allowed: one")
    return {"grade": array.item()}


def events(classes: int, hop: float, value: Any) -> list[dict[str, Any]]:
    """Turn an array of 0 and 1, shape (classes, frames), into events: each run of ones becomes an event of its class.

    `hop` is the time between frames in milliseconds. Events begin and end half a hop before a frame, so that rounding a
    time up to the next frame returns the array.
    """
    hot = np.asarray(value)
    if not hop:
        raise ValueError("frames have no times without an encoder; write TaskConfig(encoder=encoder) in the task file")
    if hot.ndim != 2 or len(hot) != classes or not np.isin(hot, (0, 1)).all():
        raise ValueError(f"label_processor returned the shape {hot.shape}; allowed: ({classes}, frames) of 0 and 1")
    edges = np.diff(hot.astype(np.int8), axis=1, prepend=0, append=0)
    starts, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
    return [
        {"start": max(0.0, start - 0.5) * hop / 1000, "end": (end - 0.5) * hop / 1000, "label": str(number)}
        for (number, start), (_, end) in zip(starts, ends, strict=True)
    ]


def captions(values: Sequence[Any]) -> list[dict[int, Any]]:
    """Collect the captions of all items of a clip; return [{number from 0: caption}], or [] without items.

    Each of the `values` is a text, or a list or dict of texts.
    """
    texts: list[Any] = []
    for value in values:
        texts += [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else value
    return [dict(enumerate(texts))] if values else []


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value  # a tensor or an array
