"""The GPU's busy seconds, from invented lists of kernels."""

from __future__ import annotations

import pytest

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.busy import BusyClock, busy_at_marks, busy_seconds, busy_until

MARK = "void at::native::spin_kernel(long)"


@pytest.mark.parametrize(
    ("kernels", "busy"),
    [
        ([], [0, 0, 0]),
        ([("a", 1, 2), ("b", 4, 7)], [0, 1, 4]),
        ([("a", 0, 2), ("b", 1, 3)], [1, 3, 3]),  # overlapping, on two streams
        ([("a", 0, 9), ("b", 1, 2), ("c", 3, 4)], [1, 4, 9]),  # one inside another
        ([("b", 4, 7), ("a", 1, 2)], [0, 1, 4]),  # in any order
        ([("a", 1, 2), ("b", 2, 4)], [0, 3, 3]),  # without a gap
    ],
)
def test_busy_time_is_the_union_of_the_kernels(kernels: list[tuple[str, float, float]], busy: list[float]) -> None:
    assert busy_until(kernels, [1, 4, 10]) == busy


def test_marks_cut_the_time_and_are_no_work() -> None:
    kernels = [("a", 0.0, 2.0), (MARK, 2.0, 2.1), ("b", 3.0, 5.0), (MARK, 6.0, 6.1), ("c", 6.1, 7.0), (MARK, 8.0, 8.5)]
    assert busy_at_marks(kernels) == pytest.approx([2.0, 4.0, 4.9])


def test_a_kernel_that_another_stream_runs_across_a_mark_is_cut() -> None:
    assert busy_at_marks([("a", 0.0, 4.0), (MARK, 1.0, 1.5), (MARK, 3.0, 3.5)]) == [1.0, 3.0]


def test_a_clock_gives_the_busy_time_between_two_of_its_marks() -> None:
    clock = BusyClock(())
    clock._busy = [1.0, 1.5, 4.0]
    assert clock.seconds(0, 2) == 3.0


def test_a_model_on_a_cpu_has_no_busy_seconds(lm: AudioLM) -> None:
    with pytest.raises(ModelError, match="on one GPU"), busy_seconds(lm):
        pass
