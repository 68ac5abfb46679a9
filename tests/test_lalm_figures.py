"""MMAU-Pro's metrics: parsed options, which samples count, blind choices, and the official script's numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jasco_folders import said

from audiomarathon.benchmarks.questions import question_types as figures
from audiomarathon.benchmarks.questions.choices import read_option
from audiomarathon.benchmarks.questions.open_ended import OpenEnded
from audiomarathon.benchmarks.questions.question_types import QuestionTypes
from audiomarathon.records import Record, Verdict
from audiomarathon.scoring.scorer import figures_of
from audiomarathon.wings.lalm.mmau_pro import MmauPro, read_questions

MUSIC = ("Jazz", "Blues", "Hip-hop/Rap", "None of the above")
COUNT = ("2", "1", "3")


@pytest.mark.parametrize(
    ("reply", "options", "letter", "rule"),
    [
        ("Blues", MUSIC, "B", "verbatim"),
        ("B", MUSIC, "B", "verbatim"),
        ("2) Blues", MUSIC, "B", "leading letter"),
        ("1) 2", COUNT, "A", "leading letter"),
        ("2", COUNT, "A", "verbatim"),
        ("2)", MUSIC, "B", "number"),
        ("Option 4.", MUSIC, "D", "number"),
        ("5", MUSIC, None, "unparsed"),
        ("0", MUSIC, None, "unparsed"),
        ("2", ("Five", "Four"), None, "unparsed"),
        ("2)", ("At most 3", "More"), None, "unparsed"),
        ("The answer is **3) Hip-hop/Rap**.\n\n* **1) Jazz:** has swing.", MUSIC, "C", "bold"),
        ("It is most like **2) Blues**.\n* **Jazz:** swing\n* **Hip-hop/Rap**: none", MUSIC, "B", "named letter"),
        ("It belongs to the **3) Hip-hop/Rap** genre, and **Jazz** is near.", MUSIC, "C", "bold"),
        ("It may be **1) Jazz** or **2) Blues**.", MUSIC, None, "unparsed"),
        ("It may be **Jazz** or **Blues**.", MUSIC, None, "unparsed"),
        ("The mood fits **blues** here, though jazz is near.", MUSIC, "B", "option text"),
        ("<think>**1) Jazz**</think>It has the **2) Blues** feel, some jazz.", MUSIC, "B", "bold"),
        ("It has a **blues** feel, a jazz note.\n* **Jazz**: swing\n* **Hip-hop/Rap**: words", MUSIC, "B", "bold"),
        ("1. Listen\n2. I cannot tell", MUSIC, None, "unparsed"),
        ("There are 2) cats, which means **Blues** and jazz.", MUSIC, "B", "bold"),
        ("The answer is definitely not **Jazz**.", MUSIC, None, "unparsed"),
        ("**Jazz**? No, that is wrong.", MUSIC, None, "unparsed"),
        ("It isn't **Jazz**.", MUSIC, None, "unparsed"),
        ("The piece is Rock or **Jazz**", MUSIC, None, "unparsed"),
        ("I would rule out **Jazz**.", MUSIC, None, "unparsed"),
        ("The piece is **Jazz** or Rock", MUSIC, None, "unparsed"),
        ("<think>Maybe it is **Jazz**, let me check", MUSIC, None, "unparsed"),
        ("-2", MUSIC, None, "unparsed"),
        ("2%", MUSIC, None, "unparsed"),
        ("", MUSIC, None, "unparsed"),
    ],
)
def test_an_option_letter_is_read_from_replies_of_many_forms(
    reply: str, options: Sequence[str], letter: str | None, rule: str
) -> None:
    assert read_option(reply, options) == (letter, rule)


def closed(id_: str, reply: str, answer: str = "B", category: str = "music", **changes: Any) -> Record:
    text = MUSIC["ABCD".index(answer)] if answer else "Rock"
    told = {"type": "closed", "question": "?", "options": list(MUSIC), "answer": answer, "answer_text": text}
    told |= {"category": category, "length": "long", "reasoning_skills": ["Counting", "Order"], "defects": []} | changes
    return Record(id_, id_, reply=reply, reference=told, groups={"length": told["length"], "category": category})


def opened(id_: str, reply: str = "A dog.", **judges: str) -> Record:
    told = {"type": "open", "question": "What?", "options": [], "answer": "A dog barks.", "answer_text": "A dog barks."}
    record = Record(id_, id_, reply=reply, reference=told | {"category": "open", "reasoning_skills": ["Order"]})
    return replace(record, judgements={name: said(OpenEnded(), record, text) for name, text in judges.items()})


def following(id_: str, reply: str) -> Record:
    told = {"type": "following", "question": "Follow", "options": [], "answer": "", "transcription": "Use no commas."}
    told |= {"kind": "No Commas", "kwargs": {}, "category": "instruction following", "reasoning_skills": []}
    return Record(id_, id_, reply=reply, reference=told)


def scored(*records: Record) -> tuple[list[Verdict], dict[str, Any]]:
    verdicts = list(QuestionTypes().verdicts(records))
    return verdicts, figures_of(QuestionTypes(), verdicts, seed=0)


def scores(correctness: int, overall: float) -> str:
    rest = "\n".join(f"{name}: 4 - fine" for name in ("RELEVANCE", "COMPLETENESS", "CLARITY"))
    return f"CORRECTNESS: {correctness} - so\n{rest}\nOVERALL: {overall} - so"


def test_scores_of_a_small_set_of_mmau_pro_replies_equal_values_computed_by_hand() -> None:
    verdicts, summary = scored(
        closed("a", "Blues"),
        closed("b", "Jazz"),
        closed("c", "no idea", answer="D", category="sound"),
        closed("d", "None of the above", answer="D", category="sound"),
        closed("e", "Jazz", answer="A", category="spatial_audio"),
        closed("f", "Jazz", answer=""),  # none of the options is right
        closed("g", "Jazz", answer="A", options=["Jazz"]),  # nothing to choose
        opened("h", j=scores(2, 4.0), k=scores(4, 5)),
        replace(opened("i", reply=" "), judgements={"j": {}, "k": {}}),
        following("k", "It barks twice"),
        following("l", "It barks, twice"),
    )
    # open: ((4-1)/4 + (5-1)/4) / 2, and 0 of the empty reply
    assert [verdict.values["score"] for verdict in verdicts] == [1, 0, 0, 1, 1, None, None, 0.875, 0, 1, 0]
    categories = {"music": 0.5, "sound": 0.5, "spatial_audio": 1, "open": 0.4375, "instruction following": 0.5}
    expected = {
        **{f"accuracy: {category}": value for category, value in categories.items()},
        "n": 11, "accuracy": (2 + 0.875 + 1) / 8, "closed": 0.5, "open": 0.4375, "following": 0.5,
        "correctness": ((1 / 4 + 3 / 4) / 2 + 0) / 2, "spatial_in_mono": 1, "macro": np.mean([*categories.values()]),
        "chance_corrected": (0.5 - 0.25) / 0.75,
        "always_last": 0.5,  # the last option is right in two of four
        "longest_option": 0.5,  # the longest is D
        "guessing": 0.25, "chance": 4 * 0.25 / 8, "unparsed": 1, "not_answerable": 2, "not_judged": 0,
        "following_as_published": 0.5, "open_as_published": (0.9 + 0.2) / 2,
    }  # fmt: skip
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert {name for name in summary if name.startswith("accuracy: ")} <= expected.keys()
    assert (summary["score"], summary["rules"]) == (summary["accuracy"], {"unparsed": 1, "verbatim": 6})
    low, high = summary["intervals"]["accuracy"]
    assert low < summary["accuracy"] < high
    assert summary["closed_as_published"] is summary["as_published"] is None


def test_replies_without_a_judgement_are_left_out_of_all_scores_and_reported() -> None:
    verdicts, summary = scored(closed("a", "Blues"), opened("h"), opened("i"))
    assert (summary["accuracy"], summary["open"], summary["not_judged"]) == (1, None, 2)
    notes = QuestionTypes().notes(verdicts)
    assert any("2 open replies not judged, so in no figure" in note for note in notes)
    assert any("audiomarathon judge" in note for note in notes)
    assert "the accuracy covers 1 of 3 replies" in notes
    _, empty = scored(opened("i", reply=" "))
    assert (empty["open"], empty["correctness"], empty["not_judged"]) == (0, 0, 0)
    half, _ = scored(closed("a", "Blues"), opened("h", j=scores(2, 4.0)), opened("i"))
    (missing,) = [note for note in QuestionTypes().notes(half) if note.startswith("judge j: 1 of")]
    assert missing == "judge j: 1 of 2 judgements missing (not counted as 0)"
    assert all(QuestionTypes().lacks(verdict, "j") == "" for verdict in half[:2])


class Encoder:
    """Encode each word as a direction; count the calls."""

    name, hash, asked = "words", "1a", 0

    def encode(self, texts: list[str]) -> np.ndarray:
        self.asked += 1
        words = ("jazz", "blues", "hip-hop/rap", "none")
        return np.array([[word in text.lower() for word in words] for text in texts], np.float32)


def test_runs_of_different_judges_are_not_compared() -> None:
    names = [
        set(QuestionTypes().sums(scored(opened("h", **judges))[0]).names) for judges in ({}, {"j": scores(2, 4.0)})
    ]
    assert names[0] ^ names[1] == {"open: j"}


def test_the_published_overall_score_is_missing_if_any_reply_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "text_encoder", Encoder)
    replies = [closed("a", "Blues"), opened("h", j=scores(2, 4.0)), following("k", ".")]
    assert scored(*replies)[1]["as_published"] == pytest.approx((1 + 0.8 + 1) / 3)
    assert scored(*replies, opened("i"))[1]["as_published"] is None


def test_the_published_rule_matches_each_reply_with_the_option_whose_text_embedding_is_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = Encoder()
    monkeypatch.setattr(figures, "text_encoder", lambda: encoder)
    verdicts, summary = scored(
        closed("a", "Not jazz, I think blues, blues"),  # a tie: the first option counts
        closed("b", "The blues are what it is not"),
        closed("c", "Jazz", answer=""),
        closed("d", "Jazz", answer="A", options=["Jazz"]),
        closed("e", "", answer="A", category="spatial_audio"),  # no option is similar: the first counts
        closed("f", "blues", answer_text="Blues "),  # compared as a string
        following("g", ","),
    )
    assert [verdict.values.get("matched") for verdict in verdicts] == ["A", "B", "A", None, "A", "B", None]
    assert [verdict.values["as_published"] for verdict in verdicts] == [0, 1, 0, None, 1, 0, 0]
    assert summary["closed_as_published"] == pytest.approx(2 / 5)
    assert summary["as_published"] == pytest.approx(2 / 6)
    assert summary["encoder"] == "words"
    assert any("matched by words; the paper used NV-Embed-v2" in note for note in summary["notes"])
    assert all(map(QuestionTypes().sound, verdicts))
    encoder.hash = "2b"  # another of the same name
    assert [QuestionTypes().sound(verdict) for verdict in verdicts] == [False, False, False, True, False, False, True]
    monkeypatch.setattr(figures, "text_encoder", lambda: None)
    assert all(map(QuestionTypes().sound, verdicts))


def test_accuracy_tables_exist_by_audio_length_reasoning_skill_and_category() -> None:
    verdicts, _ = scored(
        closed("a", "Blues"), closed("b", "Jazz", length="short"), closed("c", "Blues", reasoning_skills=["Order"])
    )
    frames = MmauPro().frames({"base": verdicts, "frame": verdicts[:1]})
    assert next(iter(frames)) == "Accuracy by length of the audio"
    lengths = frames["Accuracy by length of the audio"]
    assert [name for name in lengths if "_" not in name] == ["setting", "short", "long"]
    assert lengths.loc[0, ["long", "short"]].tolist() == [1, 0]
    skills = frames["Accuracy by reasoning skill"].set_index("skill")
    assert skills.loc[["Counting", "Order"], "base"].tolist() == [0.5, pytest.approx(2 / 3)]
    assert skills.loc["Order", ["base_said", "frame_said"]].tolist() == ["n 3", "n 1"]
    categories = frames["Accuracy by category"]
    assert categories["category"].tolist() == ["music"]
    assert len(frames) == 5


def test_the_longest_option_baseline_gets_half_credit_if_two_options_are_equally_long() -> None:
    _, summary = scored(closed("a", "?", answer="B", options=["Rock", "Folk", "Rap"]), closed("b", "?", answer="D"))
    assert summary["longest_option"] == pytest.approx((0.5 + 1) / 2)


def test_an_empty_reply_follows_an_instruction_only_under_the_published_rules() -> None:
    (verdict,), _ = scored(following("a", ""))
    assert (verdict.values["score"], verdict.values["as_published"]) == (0, 1)


def test_spatial_audio_questions_are_left_out_of_the_accuracy_because_clips_are_heard_in_mono() -> None:
    verdicts, summary = scored(closed("a", "Jazz", answer="A", category="spatial_audio"), closed("b", "Jazz"))
    assert summary["accuracy"] == 0
    frame = MmauPro().frames({"base": verdicts})["Accuracy by category"]
    assert dict(zip(frame["category"], frame["base"], strict=True)) == {"music": 0, "spatial_audio (heard in mono)": 1}
    assert any(note.startswith("spatial_audio (heard in mono): 1.000, not part of") for note in summary["notes"])


def test_a_sample_is_shown_as_right_wrong_unparsed_or_not_scored() -> None:
    verdicts, _ = scored(
        closed("a", "Blues"), closed("b", "?"), opened("h", j=scores(2, 4.0)), opened("i"), following("k", ","),
        closed("f", "Jazz", answer=""),
    )  # fmt: skip
    scorer = QuestionTypes()
    assert [scorer.shown(verdict) for verdict in verdicts] == [
        "right: B. Blues", "unparsed", "j: 4.0", "not scored", "wrong: No Commas", "not scored: A. Jazz",
    ]  # fmt: skip
    assert [scorer.right(verdict) for verdict in verdicts] == [True, False, None, None, False, None]
    assert [scorer.own_score(verdict) for verdict in verdicts] == [1, 0, 0.75, None, 0, None]
    assert [scorer.unparsed(verdict) for verdict in verdicts] == [False, True, False, False, False, False]


@pytest.mark.real
def test_scoring_the_replies_published_by_the_original_authors_gives_the_documented_metrics() -> None:
    """The replies once published in the original's repository, by the corrected rules and by the official rules."""
    place = os.environ.get("LALM_REPLIES", "")
    if not place:
        pytest.skip("set LALM_REPLIES to a folder with predictions_with_{audio,noise}.parquet (docs/results.md)")
    task, figures_by_kind = MmauPro(), {}
    for kind in ("audio", "noise"):
        asked, bad = read_questions(Path(place) / f"predictions_with_{kind}.parquet", "model_output")
        assert (len(asked), len(bad)) == (5305, 0)
        records = [Record(q.id, q.id, reply=row["model_output"], reference=task.reference(q)) for q, row in asked]
        figures_by_kind[kind] = figures_of(task.scorer, list(task.scorer.verdicts(records)), seed=0)
    names = ("following_as_published", "not_answerable", "not_judged")
    assert [[round(summary[name], 3) for name in names] for summary in figures_by_kind.values()] == [
        [0.908, 34, 625]
    ] * 2
    assert figures_by_kind["audio"]["accuracy"] == pytest.approx(0.459, abs=0.001)
    assert figures_by_kind["noise"]["accuracy"] == pytest.approx(0.360, abs=0.001)
    assert json.dumps(figures_by_kind["audio"]["rules"])
