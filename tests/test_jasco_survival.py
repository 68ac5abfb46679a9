"""How much of a clip's speech and sound replies report, tested on synthetic replies with known shares."""

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
    """Return replies to all prompts, with each clip's own `{speech}` and `{sound}`."""
    records = []
    for clip, (spoken, heard) in CLIPS.items():
        for prompt in range(1, 9):
            record = a_reply(int(clip), prompt, f"{speech}, {sound}".format(speech=spoken, sound=heard))
            told = {**record.reference, "spoken_text": spoken, "audio_sound": heard}
            records.append(replace(record, reference=told))
    return records


def beside_base(setting_records: list[Record], base: list[Record] | None = None) -> Mapping[str, Estimate]:
    return retained([(reports(setting_records), reports(base or replies()))])[0]


def test_words_are_reduced_to_their_stems_before_matching() -> None:
    stems = {"running": "run", "runs": "run", "waves": "wav", "wave": "wav", "crashed": "crash", "is": "is"}
    assert {word: stem(word) for word in stems} == stems


def longest(a: list[str], b: list[str]) -> int:
    """Return the longest common subsequence's length, by recursion."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest(a[1:], b[1:])
    return max(longest(a[1:], b), longest(a, b[1:]))


@given(st.lists(st.sampled_from("wxyz"), min_size=1, max_size=6), st.lists(st.sampled_from("wxyz"), max_size=6))
def test_the_repeated_speech_is_the_longest_common_word_subsequence_of_reply_and_transcript(
    spoken: list[str], said: list[str]
) -> None:
    speech, _sound = perceived(" ".join(said), [" ".join(spoken)], ["birds"])
    assert speech == [pytest.approx(longest(spoken, said) / len(spoken))]


def test_sound_keywords_that_occur_in_the_quoted_transcript_do_not_count_as_reported_sound() -> None:
    spoken, sound = ["hear the engine"], ["engine running"]
    assert perceived("They say: hear the engine", spoken, sound) == ([1.0], [0.0])
    assert perceived("hear the engine, an engine runs", spoken, sound) == ([1.0], [1.0])


def test_replies_that_only_repeat_the_transcript_keep_all_of_the_speech_and_none_of_the_sound() -> None:
    retention = beside_base(replies(sound="nothing else"))
    assert [retention[name].value for name in ("speech", "sound", "speech_kept")] == pytest.approx([1, 1, 1], abs=0.02)
    assert retention["sound_kept"].value == pytest.approx(0, abs=0.05)
    assert retention["difference"].low > 0.8
    assert sentence("frame-0.5", retention).startswith("frame-0.5 keeps 100 % [100, 100] of the speech and 0 % [0, 0]")


def test_the_share_of_speech_or_sound_that_replies_report_is_corrected_for_chance() -> None:
    """Replies report half of the clip's speech and a quarter of other clips', but equally much of both sounds."""
    base = {f"{clip}-p3": np.array([1, 0.5, 0.25, 1, 0.5, 0.5, 1, 1, 0]) for clip in range(4)}
    reported = {id_: np.array([1, 0.4, 0.25, 1, 0.5, 0.5, 1, 0.5, 0]) for id_ in base}
    retention, _p = retained([(reported, base)])
    assert [retention[name].value for name in ("speech", "sound", "answer")] == pytest.approx([1 / 3, 0, 1])
    assert [retention[name].value for name in ("speech_kept", "answer_kept")] == pytest.approx([0.6, 0.5])
    assert np.isnan(retention["sound_kept"].value)


def test_a_chance_corrected_score_is_measurable_only_if_its_interval_is_clearly_above_chance() -> None:
    skills = [(0.5, (0.2, 0.8)), (0.5, (-0.1, 0.8)), (0.09, (0.05, 0.12)), (0.5, None)]
    assert [measurable({"sound": Estimate(*skill)}, "sound") for skill in skills] == [True, False, False, False]


def test_replies_about_clips_that_differ_from_those_of_the_base_run_are_left_out_of_survival() -> None:
    other = [replace(record, reply="?", clips="other") if record.cluster == "1" else record for record in replies()]
    (survival,) = (row for row in survivals([system("base-0", replies()), system("random-0.5", other)]) if row.p)
    assert survival.figures["speech_kept"].value == pytest.approx(1)


def test_sound_survival_is_not_measurable_if_the_base_run_does_not_report_the_sound() -> None:
    told = "frame-0.5: not measurable, the unpruned model does not report the sound"
    assert sentence("frame-0.5", beside_base(replies(), replies(sound="nothing"))).startswith(told)


def test_replies_to_inference_questions_do_not_count_in_speech_and_sound_survival() -> None:
    inferred = [replace(record, reply="?") if record.id[-1] in "12" else record for record in replies()]
    retention, plain = beside_base(inferred), beside_base(replies())
    assert all(retention[name] == plain[name] for name in ("speech_kept", "sound_kept"))


def test_the_answer_score_counts_only_target_keywords_beyond_those_matched_by_chance() -> None:
    def naming_keywords(prompts: str) -> list[Record]:
        """Give each clip a keyword, which replies to these prompts contain."""
        return [
            replace(
                record,
                reply=f"{record.text} {word}" if record.id[-1] in prompts else record.text,
                reference={**record.reference, "target_keywords": word},
            )
            for record in replies()
            if (word := f"keyword{record.cluster}")
        ]

    retention = beside_base(naming_keywords("78"), naming_keywords("13578"))
    assert (retention["answer"].value, retention["answer_kept"].value) == pytest.approx((5 / 8, 2 / 5))


def test_preference_for_speech_is_1_under_uniform_dropping_and_higher_if_speech_is_kept() -> None:
    """Uniform dropping gives 1. Keeping only the speech gives 1 over the speech's share of the clip."""
    spans = ((2.0, 4.0),)
    even = np.arange(160) % 2 == 0
    times = np.arange(160) / 20
    inside = (times >= 2) & (times < 4)
    assert preference([("1", even, 8.0, spans)]).value == pytest.approx(1, abs=1 / 20)
    assert preference([("1", inside, 8.0, spans)]).value == pytest.approx(4)
    moved = turned(spans, 8.0, LAST)
    assert preference([("1", times >= 6, 8.0, moved)]).value == pytest.approx(4)
    assert preference([]) is None


SPEECH = dict.fromkeys(CLIPS, ((1.0, 2.0),))


def system(method: str, records: list[Record], control: str = "") -> System:
    """Return a setting whose clips are 4 s of 40 tokens, with 20 padding tokens that are all dropped."""
    ratio = float(method.split("-")[1]) if "-" in method else 0.0
    bits = np.zeros(60, bool)
    bits[: round(40 * (1 - ratio))] = True
    packed = pack(torch.from_numpy(bits.nonzero()[0]), torch.ones(60, dtype=torch.bool)) if ratio else None
    about = {"clip_seconds": 4.0, "audio_tokens": 60, "kept_audio_tokens": int(bits.sum()), "window_padding_tokens": 20}
    records_by_id = {
        record.id: replace(record, **about, kept_audio_bits=packed, control=control or None) for record in records
    }
    identity = {"method": method.split("-", maxsplit=1)[0], "ratio": ratio}
    facts = {"task": "jasco", "method": method, "identity": identity, "control": {"kind": control} if control else None}
    return System("model", method, {"jasco": Run(facts, records_by_id)}, control)


def a_sweep() -> list[System]:
    """Return systems in which `fast_v` keeps only speech that comes first, and only the sound if speech is last."""
    mute = replies(sound="nothing else")
    systems = [system("base-0", replies(), control) for control in ("", FIRST, LAST)]
    systems += [system("fast_v-0.5", mute, control) for control in ("", FIRST)]
    systems += [system("fast_v-0.5", replies("he mumbles"), LAST), system("random-0.5", replies())]
    systems += [system(label, mute, "silence") for label in ("base-0", "random-0.5")]
    return [*systems, system("random-0.9", mute)]


def at(survived: list[Survival], method: str, order: str) -> Survival:
    (survival,) = (candidate for candidate in survived if (candidate.system.method, candidate.order) == (method, order))
    return survival


def test_survival_is_averaged_over_clips_with_speech_first_and_clips_with_speech_last() -> None:
    survived = survivals(a_sweep(), SPEECH)
    both = at(survived, "fast_v-0.5", "mean of both")
    assert (both.headline, at(survived, "fast_v-0.5", "as is").headline) == (True, False)
    for name in ("speech_kept", "sound_kept", "difference"):
        each = [at(survived, "fast_v-0.5", order).figures[name].value for order in ("first", "last")]
        assert both.figures[name].value == pytest.approx(np.mean(each))
    assert both.figures["position_effect"].value == pytest.approx(2, abs=0.1)
    texts = {text.partition(" ")[0]: text for text in shown.sentences(survived)}
    assert [*texts] == ["fast_v-0.5", "random-0.5"]
    assert "speech first instead of last changes speech − sound by +" in texts["fast_v-0.5"]
    assert {survival.order for survival in survived} == {"as is", "first", "last", "mean of both"}  # no row for silence


def test_a_pruners_preference_for_speech_is_computed_from_the_recorded_kept_tokens() -> None:
    """The first half of each clip is kept, so speech at its start is kept and speech at its end is dropped."""
    survived = survivals(a_sweep(), SPEECH)
    assert at(survived, "fast_v-0.5", "first").preference.value == pytest.approx(2)
    assert at(survived, "fast_v-0.5", "last").preference.value == 0
    assert at(survived, "base-0", "mean of both").preference is None
    assert at(survivals(a_sweep(), {}), "fast_v-0.5", "first").preference is None


def test_without_readable_speech_times_only_the_preference_for_speech_is_missing(tmp_path: Path) -> None:
    (tmp_path / "speech.csv").write_text("id,start,end\n1,late,2\n")
    systems = a_sweep()
    systems[0].runs["jasco"].facts["data_folder"] = str(tmp_path)
    with pytest.warns(UserWarning, match="line 2: start and end"):
        assert all(survival.preference is None for survival in survivals(systems))


def test_only_the_headline_result_of_each_setting_has_a_holm_adjusted_survival_p_value() -> None:
    survived = [survival for survival in survivals(a_sweep(), SPEECH) if not survival.system.is_base]
    tested = {survival.system.method: survival for survival in survived if survival.headline}
    assert sorted(tested) == ["fast_v-0.5", "random-0.5", "random-0.9"]
    assert tested["random-0.5"].p == 1
    lost = tested["random-0.9"]
    assert lost.p == pytest.approx(2 / 16, abs=0.02)  # four clips, all of one sign
    assert lost.p_adjusted == pytest.approx(min(1, 3 * lost.p))
    assert all(survival.p_adjusted is None for survival in survived if not survival.headline)


def test_survival_tables_charts_and_the_report_page_show_the_same_values() -> None:
    systems = a_sweep()
    survived = survivals(systems, SPEECH)
    base, kept = shown.tables(survived)
    assert markdown(base).count("not measurable") == 4  # for the answer: no reply has its keyword
    assert "| fast_v-0.5 | first |" in markdown(kept)
    lines = csv(kept).splitlines()
    assert len(lines) == 1 + len([survival for survival in survived if not survival.system.is_base])
    rows = shown.long_rows(survived)
    assert len(rows) == 3 * len(survived)
    titles = [chart.spec["title"] for chart in shown.panels(survived)]
    assert titles == ["fast_v (mean of speech first and speech last)", "random"]
    (section,) = (section for section in sections(PageData(systems)) if section.anchor == "survival")
    assert section.tables[0].frame.equals(base.frame)
    assert "speech.csv" in " ".join(section.tables[1].notes)  # the data folder of these runs is unknown


def test_survival_values_that_are_not_measurable_are_blank_in_tables_and_charts() -> None:
    mute = replies(sound="nothing")
    survived = survivals([system("base-0", mute), system("random-0.5", mute)], SPEECH)
    base, kept = shown.tables(survived)
    assert "(not measurable)" in markdown(base)
    (row,) = (row for row in shown.rows(survived) if row["setting"] == "random-0.5")
    assert [row[name] for name in ("speech_kept", "sound_kept", "difference", "p")] == [1, None, None, None]
    assert shown.panels(survived) == []
    low = {"sound": Estimate(0.05, (0.01, 0.09))}
    rows = shown.rows([replace(each, figures={**each.figures, **low}) for each in survivals(a_sweep())])
    assert {row[name] for row in rows for name in ("sound_kept", "difference", "p")} == {None}
    assert kept.frame["difference"].isna().all()


def test_settings_without_replies_or_without_a_base_run_are_left_out_of_survival() -> None:
    """Settings without replies or without a base run get no row. Only clips that both answered are compared."""
    some = [record for record in replies() if record.cluster in "12"]
    systems = [system("base-0", replies()), system("random-0.5", []), system("frame-0.5", some)]
    systems.append(system("random-0.5", some, LAST))
    base, frame = survivals(systems, SPEECH)
    assert [(each.system.method, each.order) for each in (base, frame)] == [("base-0", "as is"), ("frame-0.5", "as is")]
    # chance is computed on the same clips
    assert [frame.figures[f"{name}_kept"].value for name in ("speech", "sound")] == [1, 1]
    assert left_out(systems) == ["model random-0.5", "model random-0.5 [speech-last]"]


def test_preference_for_speech_is_left_out_for_a_pruner_joined_with_a_press() -> None:
    pruned = system("fast_v-0.5", replies())
    run = pruned.runs["jasco"]
    fewer = {id_: replace(record, kept_audio_tokens=5) for id_, record in run.records.items()}
    joined = replace(pruned, runs={"jasco": Run(run.facts, fewer)})
    assert survivals([system("base-0", replies()), joined], SPEECH)[1].preference is None


def test_rotating_a_clip_to_speech_last_puts_the_end_of_the_speech_at_the_end_of_the_clip() -> None:
    assert turned([(0.0, 9.0), (2.0, 3.0)], 10.0, LAST) == ((1.0, 10.0), (3.0, 4.0))
