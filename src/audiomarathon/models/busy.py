"""Measure how long a GPU works in each stage of a `generate` call, without the time in which it waits for Python.

If these busy seconds of a stage are far below its wall seconds, the stage is launch-bound: dropping tokens shortens the
kernels, but not the time that Python needs to launch them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from audiomarathon.errors import ModelError
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.timing import Clock, CudaClock

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM

_MARK = "spin_kernel"  # the kernel of `torch.cuda._sleep`

#: Name, start and end of a kernel that ran on the GPU.
Kernel = tuple[str, float, float]


def busy_until(kernels: Sequence[Kernel], moments: Sequence[float]) -> list[float]:
    """Return how long the GPU worked before each moment: the length of the union of the kernels' intervals.

    Kernels may overlap, and a moment may lie inside a kernel. All times have the same unit.
    """
    points, total, ended = [(-np.inf, 0.0)], 0.0, -np.inf
    for _name, start, end in sorted(kernels, key=lambda kernel: kernel[1:]):
        if end > (begin := max(start, ended)):
            points += [(begin, total), (end, total := total + end - begin)]
            ended = end
    times, busy = zip(*points[1:], strict=True) if points[1:] else ((0.0,), (0.0,))
    return [float(value) for value in np.interp(moments, times, busy, left=0.0, right=total)]


def busy_at_marks(kernels: Sequence[Kernel]) -> list[float]:
    """Return how long the GPU worked before each mark, as a list in the order of the marks.

    A mark is a tiny kernel that was launched to mark a moment; marks do not count as work.
    """
    marks = sorted(start for name, start, _end in kernels if _MARK in name)
    return busy_until([kernel for kernel in kernels if _MARK not in kernel[0]], marks)


def kernels_of(traced: Any) -> list[Kernel]:
    """Return (name, start, end) of each kernel that ran on the GPU during a profiler's trace, in seconds since the
    trace began.

    The profiler's `events()` would first build a tree of the kernels, which takes eighteen times as long, and longer
    than the traced call.
    """
    begun = traced.trace_start_ns()
    return [
        (event.name(), (event.start_ns() - begun) / 1e9, (event.end_ns() - begun) / 1e9)
        for event in traced.events()
        if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
    ]


class BusyClock(Clock):
    """A clock for one `generate` call that measures seconds in which the GPU works, instead of wall seconds.

    A mark is a tiny kernel on the GPU's stream. The profiler starts when the call starts (the first `synchronize`), and
    stops when it ends (the second). Then the spans between marks are read from its list of kernels.

    A static decode step runs without a graph: the kernels are the same, and graphs beside a profiler that starts and
    stops can crash the process before CUDA 12.6 (pytorch/pytorch#112507, #150957).
    """

    captures: ClassVar[bool] = False

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__(devices)
        self.profile: Any = None
        self._marks = 0
        self._busy: list[float] = []

    def mark(self) -> Any:
        """Mark this moment by launching a tiny kernel on the model's GPU; return the mark's number."""
        with torch.cuda.device(self.devices[0]):
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
        self._marks += 1
        return self._marks - 1

    def seconds(self, start: Any, end: Any) -> float:
        """Return how many seconds the GPU worked between two marks."""
        return float(self._busy[end] - self._busy[start])

    def synchronize(self) -> None:
        """Wait for the GPU; then start the profiler (first call), or stop it and read the kernels (second call)."""
        super().synchronize()
        if self.profile is None:
            os.environ.setdefault("TEARDOWN_CUPTI", "1")  # else the tracer stays attached and slows later launches
            started = profile(activities=[ProfilerActivity.CUDA])
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*Profiler clears events")  # each call is a cycle of its own
                started.start()  # raises if another profiler runs
            self.profile = started
            return
        done, self.profile = self.profile, None
        done.stop()
        self._busy = busy_at_marks(on_gpu := kernels_of(done.profiler.kineto_results))
        if len(self._busy) != self._marks:
            raise ModelError(f"the profiler saw {len(self._busy)} of {self._marks} marks, and {len(on_gpu)} kernels")


@contextmanager
def busy_seconds(lm: AudioLM) -> Iterator[None]:
    """Make the next `generate` call inside the `with` block report the GPU's busy seconds in each stage, not wall
    seconds.

    Raises
    ------
    ModelError
        The model is not on one GPU, or the profiler has no permission to see the GPU's kernels.
    """
    if not isinstance(lm.clock, CudaClock):
        raise ModelError("busy seconds need a model on one GPU")
    clock, lm.last_graph = BusyClock(lm.clock.devices), None  # no graph may outlive a start or stop of the profiler
    with patched_attribute(lm, "clock", clock):
        try:
            yield
        finally:
            if clock.profile is not None:  # the call failed
                clock.profile.stop()
