"""Which clips are joined, where each begins, and the samples in between."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from audiomarathon.audio.decode import decode
from audiomarathon.errors import AudioError, DataError
from audiomarathon.segment.joining import Joining, Piece, Span, length_at, plan, write

CASES = {
    "until the target is reached": ([40, 40, 40, 40], Span(50, 120, 70), ([0, 40], 80), 2),
    "with gaps": ([40, 40, 40], Span(50, 120, 100, gap=5), ([0, 45], 85), 2),
    "with crossfades": ([40, 40, 40], Span(50, 120, 95, crossfade=10), ([0, 30, 60], 100), 3),
    "crossfades take at most half of a clip": ([40, 8, 40], Span(50, 90, 60, crossfade=10), ([0, 36, 40], 80), 3),
    "a last clip that would lead too far waits": ([40, 40, 60], Span(50, 120, 120), ([0, 40], 80), 2),
    "all that is left, where that is enough": ([40, 40], Span(50, 120, 120), ([0, 40], 80), 2),
    "a tail too short": ([40], Span(50, 120, 60), None, 1),
    "nothing": ([], Span(50, 120, 60), None, 0),
    "a clip too long for any": ([130, 60], Span(50, 120, 60), None, 1),
    "clips that no whole number of fits": ([40, 90, 90], Span(50, 120, 100), None, 1),
    "the last is shortened to the length": ([40, 40, 40], Span(100, 100, 100, cut=True), ([0, 40, 80], 100), 3),
    "silence of less than a gap at the end": ([50, 47, 40], Span(100, 100, 100, cut=True, gap=2), ([0, 52], 100), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_planned_offsets_and_length_of_a_joined_clip_equal_values_computed_by_hand(case: str) -> None:
    lengths, span, expected, used = CASES[case]
    made, taken = plan([Piece(Path(str(i)), length) for i, length in enumerate(lengths)], span)
    planned = made and ([part.offset for part in made.parts], made.frames)
    assert (planned, taken) == (expected, used)


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 60), max_size=40), st.integers(10, 80), st.integers(0, 60), st.floats(0, 1),
    st.integers(0, 9), st.booleans(), st.booleans(),
)  # fmt: skip
def test_clips_are_joined_in_order_and_each_is_used_at_most_once(
    lengths: list[int], low: int, more: int, where: float, between: int, fades: bool, cut: bool
) -> None:
    pieces = [Piece(Path(str(i)), length) for i, length in enumerate(lengths)]
    span = Span(low, low + more, low + round(more * where), cut, *((0, between) if fades else (between, 0)))
    met = []
    while pieces:
        made, used = plan(pieces, span)
        assert used > 0
        if made:
            assert low <= made.frames <= low + more
            assert [part.piece for part in made.parts] == pieces[: len(made.parts)]
            for part, following in pairwise(made.parts):
                assert following.offset == part.offset + part.frames + span.gap - following.overlap
                assert part.frames == part.piece.frames
        met += pieces[:used]
        pieces = pieces[used:]
    assert [piece.path.name for piece in met] == [str(i) for i in range(len(lengths))]


def wav(path: Path, samples: np.ndarray, rate: int = 8_000, **form: str) -> Piece:
    soundfile.write(path, samples, rate, **form)
    return Piece(path, len(samples))


def joined(pieces: list[Piece], crossfade: int, tmp_path: Path) -> np.ndarray:
    total = sum(piece.frames for piece in pieces)
    made, _ = plan(pieces, Span(1, 2 * total, 2 * total, crossfade=crossfade))
    assert made
    write(made, tmp_path / "out.wav", 8_000)
    return soundfile.read(tmp_path / "out.wav", dtype="int16")[0]


def test_a_crossfade_longer_than_a_processing_block_equals_the_formula_without_blocks(tmp_path: Path) -> None:
    tone = (np.sin(np.arange(300_000) / 7) * 9_000).astype(np.int16)
    heard = joined([wav(tmp_path / f"{i}.wav", tone) for i in range(3)], 100_000, tmp_path)
    assert len(heard) == 700_000
    angle = (np.arange(100_000) + 0.5) / 100_000 * np.pi / 2
    faded = np.rint(np.cos(angle) * tone[200_000:] + np.sin(angle) * tone[:100_000])
    np.testing.assert_array_equal(heard[:200_000], tone[:200_000])
    np.testing.assert_array_equal(heard[200_000:300_000], faded)
    np.testing.assert_array_equal(heard[300_000:400_000], tone[100_000:200_000])


def test_a_24_bit_stereo_clip_of_another_rate_is_joined_with_its_decoded_samples(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-0.9, 0.9, (44_100, 2))
    soundfile.write(tmp_path / "a.wav", samples, 44_100, subtype="PCM_24")
    expected = np.rint(decode(tmp_path / "a.wav", 8_000) * 32_768).astype(np.int16)
    heard = joined([Piece(tmp_path / "a.wav", length_at(44_100, 44_100, 8_000))], 0, tmp_path)
    np.testing.assert_array_equal(heard, expected)


def test_a_source_clip_whose_length_differs_from_its_header_is_an_error(tmp_path: Path) -> None:
    piece = wav(tmp_path / "a.wav", np.ones(900, np.int16))
    for frames in (899, 901):
        made, _ = plan([Piece(piece.path, frames)], Span(1, 2_000, 2_000))
        with pytest.raises(AudioError, match="holds 900 samples"):
            write(made, tmp_path / "out.wav", 8_000)


@pytest.mark.parametrize(
    "wrong", [{"low": 0}, {"low": 9, "high": 8}, {"gap": -1}, {"gap": 1, "crossfade": 1}, {"rate": 5}], ids=str
)
def test_joining_with_impossible_settings_is_refused(wrong: dict[str, float]) -> None:
    sane = {"low": 1, "high": 2, "gap": 0, "crossfade": 0, "rate": 8_000}
    with pytest.raises(DataError):
        Joining(**{**sane, **wrong})
