"""Which audio tokens a pruner kept, packed into a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from audiomarathon.errors import RecordError
from audiomarathon.records import Record
from audiomarathon.runs.record_line import heard_tokens, pack, pack_shares, unpack


@given(st.lists(st.sampled_from(["text", "kept", "dropped"]), min_size=1, max_size=60))
def test_the_bits_of_kept_audio_tokens_are_unchanged_by_packing_and_unpacking(kinds: list[str]) -> None:
    audio = torch.tensor([kind != "text" for kind in kinds])
    kept = torch.tensor([place for place, kind in enumerate(kinds) if kind != "dropped"], dtype=torch.long)
    expected = [kind == "kept" for kind in kinds if kind != "text"]
    assert unpack(pack(kept, audio), len(expected)).tolist() == expected


@pytest.mark.parametrize(("text", "tokens"), [("AA==", 9), ("AAA=", 8), ("?", 8)])
def test_packed_bits_of_kept_audio_tokens_of_wrong_length_or_encoding_are_refused(text: str, tokens: int) -> None:
    with pytest.raises(RecordError, match="kept_audio_bits"):
        unpack(text, tokens)


def test_kept_shares_of_merged_audio_tokens_survive_packing_up_to_one_byte_of_precision() -> None:
    audio = torch.tensor([False, True, True, True])
    packed = pack_shares(torch.tensor([1.0, 0.0, 0.5, 1.0]), audio)
    record = Record("a", kept_audio_shares=packed, audio_tokens=3, kept_audio_tokens=2)
    assert heard_tokens(record) == pytest.approx([0, 0.5, 1], abs=0.002)
    with pytest.raises(RecordError, match="kept_audio_shares"):
        heard_tokens(replace(record, audio_tokens=4))
