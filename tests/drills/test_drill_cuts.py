"""Clips cut short or with a flipped bit: each is refused or decoded to its full length, never silently shorter."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import bad_clips
import pytest

from audiomarathon.audio import decode as audio
from audiomarathon.errors import AudioError

SECONDS = 1.5
#: Header bytes of the rate (AIFF) or the rate and channels (AU), which no other byte confirms.
_SAID_ONCE = {"AIFF": range(28, 38), "AU": range(16, 24)}
KINDS = {
    "WAV": ("WAV", "PCM_16"), "WAV, float": ("WAV", "FLOAT"), "WAV, extensible": ("WAVEX", "PCM_24"),
    "RF64": ("RF64", "PCM_16"), "AIFF": ("AIFF", "PCM_16"), "AU": ("AU", "PCM_16"), "FLAC": ("FLAC", "PCM_16"),
    "Vorbis": ("OGG", "VORBIS"), "Opus": ("OGG", "OPUS"), "MP3": ("MP3", None),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_clip_is_decoded_to_full_length_or_refused(kind: str, tmp_path: Path, times, tell) -> None:
    whole, chance = bad_clips.encoded(*KINDS[kind], SECONDS), random.Random(kind)
    path, fates = tmp_path / "clip", Counter()

    def seconds(data: bytes) -> float | None:
        path.write_bytes(data)
        try:
            info = audio.probe(path)
            wave = audio.decode(path, info.sampling_rate)
        except AudioError:
            return None
        return len(wave) / info.sampling_rate

    def meet(data: bytes, what: str) -> None:
        length = seconds(data)
        fates["refused" if length is None else "whole"] += 1
        if length is not None and kind == "MP3" and length < SECONDS - 0.001:
            fates["short"] += 1  # docs/reliability.md, "What is not covered"
            return
        assert length is None or length >= SECONDS - 0.001, f"{what}: {length} s"

    assert seconds(whole) == pytest.approx(SECONDS)
    for _ in range(times(40, 600)):
        length = chance.randrange(len(whole))
        meet(whole[:length], f"cut to {length} of {len(whole)} bytes")
    middle = [chance.randrange(len(whole)) for _ in range(times(25, 400))]
    for place in (*range(0, 120, times(4, 1)), *middle, *range(len(whole) - 60, len(whole), times(4, 1))):
        if place in _SAID_ONCE.get(kind, ()):
            continue
        for bit in chance.sample(range(8), times(2, 8)):
            spoilt = bytearray(whole)
            spoilt[place] ^= 1 << bit
            meet(bytes(spoilt), f"bit {bit} of byte {place} flipped")
    assert fates["refused"]
    tell(f"{sum(fates.values()) - fates['short']} damages: {dict(fates)}")
