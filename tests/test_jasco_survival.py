"""What replies report of a clip's speech and of its sound: made replies whose shares are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jasco_folders import a_reply

from audiomarathon.benchmarks.jasco.survival import perceived, sentence, stem, survival
from audiomarathon.metrics.statistics import Estimate
from audiomarathon.records import Record

CLIPS = {
    "1": ("Let's build a castle over there", "Waves crashing, seagulls"),
    "2": ("How much do I owe you", "Doorbell ringing"),
    "3": ("Look at the size of that one", "Engine running and birds chirping"),
    "4": ("Please hand me another nail", "Hammering"),
}


def replies(speech: str = "{speech}", sound: str = "the sound of {sound}") -> list[Record]:
    """Replies to all prompts; of `{speech}` and `{sound}` stand the clip's own."""
    found = []
    for clip, (spoken, heard) in CLIPS.items():
        for prompt in range(1, 9):
            record = a_reply(int(clip), prompt, f"{speech}, {sound}".format(speech=spoken, sound=heard))
            told = {**record.reference, "spoken_text": spoken, "audio_sound": heard}
            found.append(replace(record, reference=told))
    return found


def beside_base(own: list[Record], base: list[Record]) -> Mapping[str, Estimate]:
    return survival(list(zip(own, base, strict=True)))


@pytest.mark.parametrize(
    ("word", "expected"),
    [("running", "run"), ("runs", "run"), ("waves", "wav"), ("wave", "wav"), ("crashed", "crash"), ("is", "is")],
)
def test_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


def longest(a: list[str], b: list[str]) -> int:
    """The longest common subsequence, tried by hand."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest(a[1:], b[1:])
    return max(longest(a[1:], b), longest(a, b[1:]))


@given(st.lists(st.sampled_from("wxyz"), min_size=1, max_size=6), st.lists(st.sampled_from("wxyz"), max_size=6))
def test_speech_is_the_longest_common_subsequence(spoken: list[str], said: list[str]) -> None:
    speech, _sound = perceived(" ".join(said), [" ".join(spoken)], ["birds"])
    assert speech == [pytest.approx(longest(spoken, said) / len(spoken))]


def test_words_of_the_transcript_are_no_report_of_the_sound() -> None:
    spoken, sound = ["hear the engine"], ["engine running"]
    assert perceived("They say: hear the engine", spoken, sound) == ([1.0], [0.0])
    assert perceived("hear the engine, an engine runs", spoken, sound) == ([1.0], [1.0])


def test_a_transcript_alone_keeps_the_speech_and_loses_the_sound() -> None:
    found = beside_base(replies(sound="nothing else"), replies())
    assert (found["speech"].value, found["sound"].value) == (pytest.approx(1, abs=0.02), pytest.approx(1, abs=0.02))
    assert found["speech_kept"].value == pytest.approx(1, abs=0.02)
    assert found["sound_kept"].value == pytest.approx(0, abs=0.05)
    assert found["difference"].low > 0.8
    assert sentence("frame-0.5", found).startswith("frame-0.5 keeps 100 % [100, 100] of the speech and 0 % [0, 0]")


def test_base_beside_itself_keeps_all_of_both() -> None:
    found = beside_base(replies(), replies())
    assert [found[name].value for name in ("speech_kept", "sound_kept", "difference")] == [1, 1, 0]


def test_what_base_does_not_report_cannot_be_lost() -> None:
    found = beside_base(replies(), replies(sound="nothing"))
    assert sentence("frame-0.5", found).startswith(
        "frame-0.5: not measurable, the unpruned model does not report the sound"
    )


def test_the_inference_prompts_are_left_out() -> None:
    changed = [replace(one, reply="?") if one.id[-1] in "12" else one for one in replies()]
    assert beside_base(changed, replies()) == beside_base(replies(), replies())
