"""Thinking is no part of a reply: no scorer and no judge sees it; exports and published rules keep the raw reply."""

from __future__ import annotations

import pytest
from builders import a_record, typed
from hypothesis import given
from hypothesis import strategies as st

from audiomarathon.benchmarks.questions.question_types import QuestionTypes
from audiomarathon.judges.protocol import verdict_part
from audiomarathon.records import Corpus, Record
from audiomarathon.scoring.caption import Caption
from audiomarathon.scoring.choice import Choice
from audiomarathon.scoring.transcript import Transcript
from audiomarathon.thinking import without_thinking
from audiomarathon.wings.jasco.rubric import Strict
from audiomarathon.wings.lalm.exchange import predictions


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("<think>Is it A?</think>\n\nB", "B"),
        ("<THINK>Is it A?</Think>B", "B"),
        ("<thinking>Is it A?</thinking> B", "B"),
        ("<thought>A</thought><reasoning>C</reasoning>B", "B"),
        ("<think time='3 s'>A</think>B", "B"),
        ("Is it A?</think>B", "B"),  # the prompt ended in <think>
        ("<think>A<think>C</think>D</think>B", "B"),
        ("<think></think>B", "B"),
        ("<think/>B", "B"),
        ("&lt;think&gt;A&lt;/think&gt;B", "B"),
        ("It barks. <think>Sure?</think> It howls.", "It barks.  It howls."),
        ("B <think>or is it", "B"),
        ("<think>Is it A? The answer is A", ""),
        ("Is it A?</think>", ""),
        ("[THINK]A[/THINK]B", "B"),
        ("◁think▷A◁/think▷B", "B"),
        ("<|START_THINKING|>A<|END_THINKING|><|START_RESPONSE|>B<|END_RESPONSE|>", "B"),
        ("<|channel>thought\nA<channel|>B<turn|>", "B"),
        ("<unused94>thought\nA<unused95>B", "B"),
        ("<longcat_think>A</longcat_think>B", "B"),
        ("<mm:think>A</mm:think>B", "B"),
        ("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>", "B"),
        ("<|channel|>analysis<|message|>The user asks", ""),
        ("analysisWe hear a dog.assistantfinalB", "B"),
        ("B", "B"),
        (" I think it is B.\n", " I think it is B.\n"),
        ("analysis of the sound: a dog", "analysis of the sound: a dog"),
        ("a < b, [thinking aloud], <thinker>", "a < b, [thinking aloud], <thinker>"),
    ],
)
def test_thinking_is_removed_from_a_reply_in_every_known_markup(reply: str, said: str) -> None:
    assert without_thinking(reply) == said


@given(st.lists(st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "A", " dog", "\n", "<"])).map("".join))
def test_no_thinking_markup_is_left_in_a_reply_after_thinking_is_removed(reply: str) -> None:
    left = without_thinking(reply)
    assert not any(marker in left for marker in ("<think>", "</think>", "[THINK]", "[/THINK]"))
    assert without_thinking(left) == left


def thought(said: str, **reference: object) -> Record:
    return typed(a_record(reply=f"<think>No dog, a cat. Grade: 2</think>{said}", reference=reference))


def test_the_choice_letter_is_parsed_from_the_text_after_the_thinking() -> None:
    record = thought("B", answer="B", options=["No dog, a cat.", "A dog"], labels=["cat", "dog"])
    assert Choice().judge(record)["parsed"] == "B"


def test_thinking_in_a_transcript_counts_as_errors_only_in_the_published_wer() -> None:
    values = Transcript().judge(thought("A dog.", answer="a dog"))
    assert values["errors"] == 0
    assert values["as_published"]["errors"] > 0


def test_thinking_in_a_caption_counts_only_in_the_published_score() -> None:
    texts = (("a dog barks in a yard",), ("rain falls on a roof",))
    replies = texts[0][0], f"<think>a cat</think>{texts[1][0]}"
    records = [
        Record(id_, id_, reply=reply, reference={"references": list(captions)}, corpus=Corpus(texts))
        for id_, reply, captions in zip("ab", replies, texts, strict=True)
    ]
    verdicts = list(Caption().verdicts(records))
    assert [verdict.values["cider_d"] for verdict in verdicts] == [pytest.approx(10.0)] * 2
    assert Caption().published(verdicts).figures["cider_d_as_published"] < 9.9


def test_thinking_in_a_reply_violates_an_instruction_only_in_the_official_check() -> None:
    facts = {"type": "following", "kind": "No Commas", "kwargs": {}, "question": "q", "transcription": "t"}
    values = QuestionTypes().judge(thought("A dog", category="c", answer="", options=[], **facts))
    assert (values["score"], values["as_published"]) == (1.0, 0.0)


def test_the_thinking_of_a_model_is_hidden_from_the_judge() -> None:
    names = ("audio_sound", "spoken_text", "audio_only_target", "speech_only_target", "target_keywords", "tgt_text")
    (_system, asked) = Strict().messages(thought("A dog.", prompt="q", **dict.fromkeys(names, "x")))
    assert "No dog" not in asked["content"]
    assert "A dog." in asked["content"]
    assert verdict_part("<think>Rating: 2</think>Rating: 0") == "Rating: 0"
    assert verdict_part("<think>Rating: 2, since") == ""


def test_an_export_keeps_the_raw_reply_with_the_thinking() -> None:
    record = thought("A dog.", references=["a dog"])
    assert predictions([record])[0]["prediction"] == record.reply
