"""The GPU's busy seconds, from invented lists of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from audiomarathon.errors import ModelError
from audiomarathon.models import busy
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.busy import BusyClock, busy_at_marks, busy_seconds, busy_until
from audiomarathon.models.timing import CudaClock

MARK = "void at::native::spin_kernel(long)"


@pytest.mark.parametrize(
    ("kernels", "until"),
    [
        ([], [0, 0, 0]),
        ([("a", 1, 2), ("b", 4, 7)], [0, 1, 4]),
        ([("a", 0, 2), ("b", 1, 3)], [1, 3, 3]),  # overlapping, on two streams
        ([("a", 0, 9), ("b", 1, 2), ("c", 3, 4)], [1, 4, 9]),  # one inside another
        ([("b", 4, 7), ("a", 1, 2)], [0, 1, 4]),  # in any order
        ([("a", 1, 2), ("b", 2, 4)], [0, 3, 3]),  # without a gap
    ],
)
def test_gpu_busy_time_is_the_union_of_the_kernel_times(
    kernels: list[tuple[str, float, float]], until: list[float]
) -> None:
    assert busy_until(kernels, [1, 4, 10]) == until


def test_gpu_busy_time_at_a_marker_kernel_sums_the_times_of_earlier_kernels_except_markers() -> None:
    kernels = [("a", 0.0, 2.0), (MARK, 2.0, 2.1), ("b", 3.0, 5.0), (MARK, 6.0, 6.1), ("c", 6.1, 7.0), (MARK, 8.0, 8.5)]
    assert busy_at_marks(kernels) == pytest.approx([2.0, 4.0, 4.9])


def test_a_kernel_that_overlaps_a_marker_counts_as_gpu_busy_only_up_to_the_marker() -> None:
    assert busy_at_marks([("a", 0.0, 4.0), (MARK, 1.0, 1.5), (MARK, 3.0, 3.5)]) == [1.0, 3.0]


def test_kernels_read_from_a_raw_trace_equal_the_profilers_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, operations take the place of GPU kernels."""
    monkeypatch.setattr(busy, "DeviceType", SimpleNamespace(CUDA=DeviceType.CPU))
    with profile(activities=[ProfilerActivity.CPU]) as traced:
        torch.ones(3).add(1).sum()
    ours = busy.kernels_of(traced.profiler.kineto_results)
    theirs = [(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6) for event in traced.events()]
    for name in ("aten::ones", "aten::add", "aten::sum"):
        assert next(kernel[1:] for kernel in ours if kernel[0] == name) == pytest.approx(
            next(kernel[1:] for kernel in theirs if kernel[0] == name)
        )


def test_the_busy_clock_gives_the_gpu_busy_time_between_two_marker_kernels() -> None:
    clock = BusyClock(())
    clock._busy = [1.0, 1.5, 4.0]
    assert clock.seconds(0, 2) == 3.0


def test_the_busy_clock_launches_its_marker_kernels_on_the_gpu_that_holds_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DEVICE=cuda:1 does not make GPU 1 the current one."""
    current, marked = [0], list[int]()

    @contextmanager
    def device(gpu: torch.device) -> Iterator[None]:
        current.append(gpu.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _cycles: marked.append(current[-1]))
    assert [(clock := BusyClock([torch.device("cuda:1")])).mark(), clock.mark()] == [0, 1]
    assert marked == [1, 1]


def test_measuring_gpu_busy_time_raises_the_error_of_a_profiler_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Mock(**{"start.side_effect": RuntimeError("another profiler runs"), "stop.side_effect": AssertionError})
    monkeypatch.setattr(busy, "profile", lambda **_: refused)
    lm: Any = SimpleNamespace(clock=CudaClock(()))
    with pytest.raises(RuntimeError, match="another"), busy_seconds(lm):
        lm.clock.synchronize()


def test_measuring_gpu_busy_time_of_a_model_on_the_cpu_is_refused(lm: AudioLM) -> None:
    with pytest.raises(ModelError, match="on one GPU"), busy_seconds(lm):
        pass
