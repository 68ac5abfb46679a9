"""What replies report of a clip's speech and of its sound: made replies whose shares are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jasco_folders import a_reply

from audiomarathon.metrics.paired import sign_flip
from audiomarathon.metrics.statistics import Estimate
from audiomarathon.records import Record
from audiomarathon.report.page_data import PageData
from audiomarathon.report.render import csv, markdown
from audiomarathon.report.sections import sections
from audiomarathon.results.systems import System
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import pack
from audiomarathon.wings.jasco import survival_report as shown
from audiomarathon.wings.jasco.speech import FIRST, LAST, turned
from audiomarathon.wings.jasco.survival import measurable, perceived, preference, reports, retained, sentence, stem
from audiomarathon.wings.jasco.survival_of_runs import Survival, left_out, survivals

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
    return retained([(reports(own), reports(base))])[0]


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


def test_skill_is_what_is_above_chance() -> None:
    """Of speech half is reported, and a quarter of other clips'; of sound as much of other clips' as of the own."""
    base = {f"{clip}-p3": np.array([1, 0.5, 0.25, 1, 0.5, 0.5, 1, 1, 0]) for clip in range(4)}
    own = {id_: np.array([1, 0.4, 0.25, 1, 0.5, 0.5, 1, 0.5, 0]) for id_ in base}
    found, _p = retained([(own, base)])
    assert [found[name].value for name in ("speech", "sound", "answer")] == pytest.approx([1 / 3, 0, 1])
    assert [found[name].value for name in ("speech_kept", "answer_kept")] == pytest.approx([0.6, 0.5])
    assert np.isnan(found["sound_kept"].value)


@pytest.mark.parametrize(
    ("skill", "enough"),
    [((0.5, (0.2, 0.8)), True), ((0.5, (-0.1, 0.8)), False), ((0.09, (0.05, 0.12)), False), ((0.5, None), False)],
)
def test_what_can_be_measured(skill: tuple[float, tuple[float, float] | None], *, enough: bool) -> None:
    assert measurable({"sound": Estimate(*skill)}, "sound") is enough


def test_replies_to_other_clips_are_not_beside_base() -> None:
    other = [replace(one, reply="?", clips="other") if one.cluster == "1" else one for one in replies()]
    (found,) = (one for one in survivals([system("base-0", replies()), system("random-0.5", other)]) if one.p)
    assert found.figures["speech_kept"].value == pytest.approx(1)


def test_what_base_does_not_report_cannot_be_lost() -> None:
    found = beside_base(replies(), replies(sound="nothing"))
    assert sentence("frame-0.5", found).startswith(
        "frame-0.5: not measurable, the unpruned model does not report the sound"
    )


def test_the_inference_prompts_report_no_speech_and_no_sound() -> None:
    changed = [replace(one, reply="?") if one.id[-1] in "12" else one for one in replies()]
    found, plain = beside_base(changed, replies()), beside_base(replies(), replies())
    assert [found[name] for name in ("speech_kept", "sound_kept")] == [
        plain[name] for name in ("speech_kept", "sound_kept")
    ]


def test_an_answer_is_a_keyword_above_what_other_clips_have() -> None:
    base = [with_keywords(one, "yes" if one.id[-1] in "13578" else "no") for one in replies()]
    half = [
        replace(one, reply=one.text.replace(f"keyword{one.cluster}", "")) if one.id[-1] in "135" else one
        for one in base
    ]
    found = beside_base(half, base)
    assert found["answer"].value == pytest.approx(5 / 8)
    assert found["answer_kept"].value == pytest.approx(2 / 5)


def with_keywords(record: Record, named: str) -> Record:
    word = f"keyword{record.cluster}"
    reference = {**record.reference, "target_keywords": word}
    return replace(record, reply=f"{record.text} {word}" if named == "yes" else record.text, reference=reference)


def test_signs_of_few_values_are_flipped_in_all_ways() -> None:
    rng = np.random.default_rng(1)
    assert sign_flip(np.array([1.0, 2, 3, 4, 5]), rng) == pytest.approx(2 / 32, abs=0.01)
    assert sign_flip(np.array([1.0, -1, 2, -2]), rng) == 1
    assert sign_flip(np.array([1.0]), rng) is None
    assert sign_flip(np.array([1.0, np.nan]), rng) is None


def test_a_method_prefers_the_speech_where_it_keeps_more_of_it() -> None:
    """Uniform dropping has no preference; keeping the span alone has one over its share."""
    spans = ((2.0, 4.0),)
    even = np.arange(160) % 2 == 0
    times = np.arange(160) / 20
    inside = (times >= 2) & (times < 4)
    assert preference([("1", even, 8.0, spans)]).value == pytest.approx(1, abs=1 / 20)  # type: ignore[union-attr]
    assert preference([("1", inside, 8.0, spans)]).value == pytest.approx(4)  # type: ignore[union-attr]
    moved = turned(spans, 8.0, LAST)
    assert preference([("1", times >= 6, 8.0, moved)]).value == pytest.approx(4)  # type: ignore[union-attr]
    assert preference([]) is None


SPEECH = dict.fromkeys(CLIPS, ((1.0, 2.0),))


def system(method: str, records: list[Record], control: str = "") -> System:
    """A setting whose clips are 4 s of 40 tokens; of 20 tokens that stand for padding none is kept."""
    ratio = float(method.split("-")[1]) if "-" in method else 0.0
    bits = np.zeros(60, bool)
    bits[: round(40 * (1 - ratio))] = True
    packed = pack(torch.from_numpy(bits.nonzero()[0]), torch.ones(60, dtype=torch.bool)) if ratio else None
    about = {"clip_seconds": 4.0, "audio_tokens": 60, "kept_audio_tokens": int(bits.sum()), "window_padding_tokens": 20}
    own = {one.id: replace(one, **about, kept_audio_bits=packed, control=control or None) for one in records}  # type: ignore[arg-type]
    identity = {"method": method.split("-", maxsplit=1)[0], "ratio": ratio}
    facts = {"task": "jasco", "method": method, "identity": identity, "control": {"kind": control} if control else None}
    return System("model", method, {"jasco": Run(facts, own)}, control)


def a_sweep() -> list[System]:
    """Of `late` the sound stays where the speech comes last, and the speech where it comes first."""
    mute = replies(sound="nothing else")
    found = [system("base-0", replies(), control) for control in ("", FIRST, LAST)]
    found += [system("fast_v-0.5", mute, control) for control in ("", FIRST)]
    found += [system("fast_v-0.5", replies("he mumbles"), LAST), system("random-0.5", replies())]
    found += [system(label, mute, "silence") for label in ("base-0", "random-0.5")]
    return [*found, system("random-0.9", mute)]


def at(found: list[Survival], method: str, order: str) -> Survival:
    (one,) = (one for one in found if (one.system.method, one.order) == (method, order))
    return one


def test_position_controls_are_averaged_and_their_difference_is_reported() -> None:
    found = survivals(a_sweep(), SPEECH)
    both = at(found, "fast_v-0.5", "mean of both")
    assert both.headline
    assert not at(found, "fast_v-0.5", "as is").headline
    for name in ("speech_kept", "sound_kept", "difference"):
        each = [at(found, "fast_v-0.5", order).figures[name].value for order in ("first", "last")]
        assert both.figures[name].value == pytest.approx(np.mean(each))
    assert both.figures["position_effect"].value == pytest.approx(2, abs=0.1)
    (text,) = (text for text in shown.sentences(found) if text.startswith("fast_v"))
    assert "speech first instead of last changes speech − sound by +" in text
    assert [text.partition(" ")[0] for text in shown.sentences(found)] == ["fast_v-0.5", "random-0.5"]
    assert {one.order for one in found} == {"as is", "first", "last", "mean of both"}  # silence is none of them


def test_kept_bits_say_why() -> None:
    """The first half of a clip is kept: speech that begins the clip is, speech that ends it is not."""
    found = survivals(a_sweep(), SPEECH)
    assert at(found, "fast_v-0.5", "first").preference.value == pytest.approx(2)  # type: ignore[union-attr]
    assert at(found, "fast_v-0.5", "last").preference.value == 0  # type: ignore[union-attr]
    assert at(found, "base-0", "mean of both").preference is None
    assert at(survivals(a_sweep(), {}), "fast_v-0.5", "first").preference is None


def test_a_speech_file_that_cannot_be_read_costs_no_page(tmp_path: Path) -> None:
    (tmp_path / "speech.csv").write_text("id,start,end\n1,late,2\n")
    systems = a_sweep()
    systems[0].runs["jasco"].facts["data_folder"] = str(tmp_path)  # type: ignore[index]
    with pytest.warns(UserWarning, match="line 2: start and end"):
        assert all(one.preference is None for one in survivals(systems))


def test_p_values_are_of_headline_rows_and_adjusted_for_their_number() -> None:
    found = [one for one in survivals(a_sweep(), SPEECH) if not one.system.is_base]
    tested = {one.system.method: one for one in found if one.headline}
    assert sorted(tested) == ["fast_v-0.5", "random-0.5", "random-0.9"]
    assert tested["random-0.5"].p == 1
    lost = tested["random-0.9"]
    assert lost.p == pytest.approx(2 / 16, abs=0.02)  # four clips, all of one sign
    assert lost.p_adjusted == pytest.approx(min(1, 3 * lost.p))  # type: ignore[operator]
    assert all(one.p_adjusted is None for one in found if not one.headline)


def test_tables_pictures_and_the_page_show_the_same() -> None:
    systems = a_sweep()
    found = survivals(systems, SPEECH)
    base, kept = shown.tables(found)
    assert markdown(base).count("not measurable") == 4  # the answer, of which no reply here has a keyword
    assert "| fast_v-0.5 | first |" in markdown(kept)
    lines = csv(kept).splitlines()
    assert len(lines) == 1 + len([one for one in found if not one.system.is_base])
    rows = shown.long_rows(found)
    assert len(rows) == 3 * len(found)
    titles = [chart.spec["title"] for chart in shown.panels(found)]
    assert titles == ["fast_v (mean of speech first and speech last)", "random"]
    (section,) = (one for one in sections(PageData(systems)) if one.anchor == "survival")
    assert section.tables[0].frame.equals(base.frame)
    assert "speech.csv" in " ".join(section.tables[1].notes)  # where these runs' data lay is not known


def test_what_is_not_measurable_has_no_share() -> None:
    mute = replies(sound="nothing")
    found = survivals([system("base-0", mute), system("random-0.5", mute)], SPEECH)
    base, kept = shown.tables(found)
    assert "(not measurable)" in markdown(base)
    (row,) = (row for row in shown.rows(found) if row["setting"] == "random-0.5")
    assert (row["sound_kept"], row["difference"], row["p"]) == (None, None, None)
    assert row["speech_kept"] == 1
    assert shown.panels(found) == []
    low = [replace(one, figures={**one.figures, "sound": Estimate(0.05, (0.01, 0.09))}) for one in survivals(a_sweep())]
    assert {row[name] for row in shown.rows(low) for name in ("sound_kept", "difference", "p")} == {None}
    assert kept.frame["difference"].isna().all()


def test_a_sweep_that_is_not_done_is_left_out_by_name() -> None:
    """A setting that answered nothing, and one whose base is not there, are no rows; what both answered is compared."""
    some = [one for one in replies() if one.cluster in "12"]
    systems = [system("base-0", replies()), system("random-0.5", []), system("frame-0.5", some)]
    systems.append(system("random-0.5", some, LAST))
    found = survivals(systems, SPEECH)
    assert [(one.system.method, one.order) for one in found] == [("base-0", "as is"), ("frame-0.5", "as is")]
    kept = [found[1].figures[f"{name}_kept"].value for name in ("speech", "sound")]
    assert kept == [1, 1]  # chance is of the same clips
    assert left_out(systems) == ["model random-0.5", "model random-0.5 [speech-last]"]


def test_the_bits_of_a_pruner_before_a_press_say_nothing_of_both() -> None:
    one = system("fast_v-0.5", replies())
    run = one.runs["jasco"]
    fewer = {id_: replace(record, kept_audio_tokens=5) for id_, record in run.records.items()}
    joined = replace(one, runs={"jasco": Run(run.facts, fewer)})
    assert survivals([system("base-0", replies()), joined], SPEECH)[1].preference is None


def test_the_last_word_decides_where_a_clip_is_turned() -> None:
    assert turned([(0.0, 9.0), (2.0, 3.0)], 10.0, LAST) == ((1.0, 10.0), (3.0, 4.0))
