"""Score MMAU-Pro's closed questions, open questions and instructions, by corrected rules and as published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from audiomarathon.benchmarks.questions.choices import read_option
from audiomarathon.benchmarks.questions.instructions import follows
from audiomarathon.benchmarks.questions.open_ended import OpenEnded, OpenEndedAsPublished
from audiomarathon.judges.judgements import reading_of
from audiomarathon.metrics.statistics import Floats, Resampler, Sums, mean_of, ratio
from audiomarathon.records import LETTERS, Figure, Record, Verdict
from audiomarathon.scoring.caption_models import text_encoder
from audiomarathon.scoring.choice import READING
from audiomarathon.scoring.judged import Judged, judges_of
from audiomarathon.scoring.scorer import cells, means, sums_of
from audiomarathon.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

#: Category of left-or-right questions, which no model can answer from a mono mix.
SPATIAL = "spatial_audio"
IN_MONO = f"{SPATIAL} (heard in mono)"
ENCODER_OF_PAPER = "NV-Embed-v2"
_SEED = 42  # for the intervals in tables
_TYPES = ("closed", "open", "following")
_SKILLS = ("reasoning_skills", "perceptual_skills")
_PUBLISHED = OpenEndedAsPublished()


class QuestionTypes(Judged):
    """Scores closed questions by the chosen option, open questions by judges, and instructions by rules.

    A verdict has `score`, between 0 and 1, which is None for an open reply without a judgement and for a closed
    question without a right option. `as_published` is the score by the rules of MMAU-Pro's official script. Open
    replies also have the fields of :class:`Judged`. Closed questions also have `parsed` (the letter) and `rule` (the
    rule that found it). `matched` is the letter of the option nearest to the reply by the sentence encoder in
    `TEXT_ENCODER`, and `encoder` is the encoder's name; both are None without an encoder. The official script always
    takes the option that is nearest by NV-Embed-v2.
    """

    key = "mmau_pro"
    figure = Figure("accuracy", "accuracy")
    needs = ("type", "category", "question", "answer", "options")
    protocols = (OpenEnded(), _PUBLISHED)
    modules: ClassVar[tuple[str, ...]] = (
        *Judged.modules,
        *(
            f"audiomarathon.benchmarks.questions.{name}"
            for name in ("choices", "instructions", "keywords", "open_ended")
        ),
        *READING,
    )

    def verdicts(self, records: Sequence[Record]) -> Iterator[Verdict]:
        """Score the replies of the given records; yield a verdict for each.

        The sentence encoder gets all their texts at once.
        """
        matched = _matched(records)
        for record in records:
            yield Verdict(record, self.judge(record) | matched.get(record.id, {}))

    def judge(self, record: Record) -> dict[str, Any]:
        """Return the fields of a reply's verdict, as the class lists them, without those of the sentence encoder.

        :meth:`verdicts` adds `matched` and `encoder`.
        """
        reference, kind = record.reference, record.reference["type"]
        if kind == "open":
            values = super().judge(record)
            overall = [reading["overall"] for reading in values["readings"].values() if reading["overall"] is not None]
            read = (reading_of(_PUBLISHED, record, said).values for said in record.judgements.values())
            published = [reading["overall"] / 5 for reading in read if reading]
            score = 0.0 if values["fixed"] else mean_of([(rating - 1) / 4 for rating in overall])
            return values | {"score": score, "as_published": mean_of(published)}
        blank: dict[str, Any] = {"readings": {}, "missing": {}, "anchors": {}, "fixed": True, "shielded": []}
        if kind == "following":
            given = reference["kwargs"] | {name: reference[name] for name in ("question", "transcription")}
            kept = [
                follows(reference["kind"], given, text, corrected=corrected)
                for text, corrected in ((record.text, True), (record.raw, False))
            ]
            return blank | {"score": float(kept[0]), "as_published": float(kept[1])}
        letter, rule = read_option(record.text, reference["options"])
        score = float(letter == reference["answer"]) if _answerable(record) else None
        read_as = {"parsed": letter, "rule": rule, "matched": None, "encoder": None, "encoder_hash": None}
        return blank | read_as | {"score": score, "as_published": None}

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict can be used: its score is valid, and its encoder is this machine's.

        Without a sentence encoder on this machine, values from any encoder stay valid.
        """
        score, encoder = verdict.values.get("score", -1), text_encoder()
        stale = encoder and _matchable(verdict.record) and verdict.values.get("encoder_hash") != encoder.hash
        return not stale and (score is None or (isinstance(score, float) and 0 <= score <= 1))

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return metrics of the answerable questions, as sums over samples (:class:`Sums`).

        `accuracy` leaves out questions that need stereo. `macro` is the mean over categories (`accuracy: NAME`).
        `chance_corrected` rescales the score of closed questions so that guessing is 0 and all right is 1. `guessing`,
        `always_last` and `longest_option` are the scores of rules that choose an option without the audio.
        """
        columns: dict[str, list[float | None]] = {
            "accuracy": [_counted_score(verdict) for verdict in verdicts],
            **{
                kind: [_counted_score(verdict) if _type(verdict) == kind else None for verdict in verdicts]
                for kind in _TYPES
            },
            **{f"open: {judge}": [_graded(verdict, judge) for verdict in verdicts] for judge in judges_of(verdicts)},
            "correctness": [_correctness(verdict) for verdict in verdicts],
            "spatial_in_mono": [verdict.values["score"] if not _fits_mono(verdict) else None for verdict in verdicts],
            "guessing": [_guess(verdict) if _fits_mono(verdict) else None for verdict in verdicts],
            "always_last": [_of_closed(verdict, _last(verdict)) for verdict in verdicts],
            "longest_option": [_of_closed(verdict, _longest(verdict)) for verdict in verdicts],
        }
        categories = sorted({_category(verdict) for verdict in verdicts})
        for name in categories:
            columns[f"accuracy: {name}"] = [
                verdict.values["score"] if _category(verdict) == name else None for verdict in verdicts
            ]
        for name in categories:
            columns[f"guessing: {name}"] = [
                _guess(verdict) if _category(verdict) == name else None for verdict in verdicts
            ]
        figures = means(columns, verdicts)

        places = {name: place for place, name in enumerate(figures.names)}
        category_places = [places[f"accuracy: {name}"] for name in categories]
        scored = [places["closed"], *category_places]
        guessed = [places["guessing"], *(places[f"guessing: {name}"] for name in categories)]

        def statistic(sums: Floats) -> Floats:
            values = figures.statistic(sums)
            macro = ratio(
                np.nansum(values[:, category_places], axis=1), (~np.isnan(values[:, category_places])).sum(axis=1)
            )
            chance = values[:, guessed]
            over = ratio(values[:, scored] - chance, 1 - chance)
            return np.column_stack([values, macro, over])

        over = ("chance_corrected", *(f"chance_corrected: {name}" for name in categories))
        ends = dict.fromkeys((*figures.names, "macro"), (0.0, 1.0))
        return replace(figures, names=(*figures.names, "macro", *over), statistic=statistic, ends=ends)

    def published(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the scores by MMAU-Pro's official script, as sums over samples (:class:`Sums`).

        The first, `as_published`, is the overall score. It is None if any reply that the script counts has no score.
        """
        by_type = {
            kind: [verdict.values["as_published"] if _type(verdict) == kind else None for verdict in verdicts]
            for kind in _TYPES
        }
        whole = all(verdict.values["as_published"] is not None for verdict in verdicts if _counts_as_published(verdict))
        every = [verdict.values["as_published"] if whole else None for verdict in verdicts]
        columns = {"as_published": every, **{f"{kind}_as_published": column for kind, column in by_type.items()}}
        return means(columns, verdicts)

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return fields for `summary.json`: the scores by MMAU-Pro's official script (`as_published`, …), and counts.

        `rules` is {rule: number of replies whose option it found}. `not_answerable` and `not_judged` count questions
        that have no score, `encoder` names the sentence encoder, and open questions add `judged`
        (:meth:`Judged.summary`).
        """
        closed = [verdict for verdict in verdicts if _type(verdict) == "closed"]
        rules = [verdict.values["rule"] for verdict in closed]
        opens = [verdict for verdict in verdicts if _type(verdict) == "open"]
        return {
            **(super().summary(opens) if opens else {}),
            **self.published(verdicts).figures,
            "encoder": _encoder(verdicts),
            "rules": {rule: rules.count(rule) for rule in sorted(set(rules))},
            "not_answerable": sum(not _answerable(verdict.record) for verdict in closed),
            "not_judged": sum(verdict.values["score"] is None for verdict in opens),
        }

    def chance(self, verdicts: Sequence[Verdict]) -> float | None:
        """Return the expected accuracy of guessing an option; open questions and instructions count as wrong."""
        counted = [verdict for verdict in verdicts if _counted_score(verdict) is not None]
        guessed = [1 / len(verdict.record.reference["options"]) for verdict in counted if _type(verdict) == "closed"]
        return sum(guessed) / len(counted) if counted else None

    def lacks(self, verdict: Verdict, judge: str) -> str:
        """Return why a judge's grade of an open reply is missing; "" if it is there, or the question is not open.

        The reason is `absent`, `failed` or `unreadable`.
        """
        return super().lacks(verdict, judge) if _type(verdict) == "open" else ""

    def own_score(self, verdict: Verdict) -> float | None:
        """Return the verdict's `score`, between 0 and 1; None without a judgement or without a right option."""
        score: float | None = verdict.values["score"]
        return score

    def right(self, verdict: Verdict) -> bool | None:
        """Return whether the reply chose the right option, or followed the instruction; None for open questions."""
        return None if _type(verdict) == "open" or verdict.values["score"] is None else verdict.values["score"] == 1

    def unparsed(self, verdict: Verdict) -> bool:
        """Tell whether the reply to a closed question chose no option."""
        return _type(verdict) == "closed" and verdict.values["parsed"] is None

    def shown(self, verdict: Verdict) -> str:
        """Return the result as text: the chosen option, the judges' overall scores, or the kind of instruction."""
        reference, said = verdict.record.reference, super().shown(verdict)
        if reference["type"] == "following":
            return f"{said}: {reference['kind']}"
        if reference["type"] == "open":
            readings = (f"{name}: {reading['overall']}" for name, reading in verdict.values["readings"].items())
            return "; ".join(readings) or said
        letter = verdict.values["parsed"]
        return f"{said}: {letter}. {reference['options'][LETTERS.index(letter)]}" if letter else "unparsed"

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return notes for readers of the scores, one line each.

        The notes state the number of replies that do not count, the scores of rules that choose an option without the
        audio, and the sentence encoder of the published score.
        """
        figures, summary = self.sums(verdicts).figures, self.summary(verdicts)
        opens = [verdict for verdict in verdicts if _type(verdict) == "open"]
        notes = super().notes(opens) if opens else []
        counted_in = sum(_counted_score(verdict) is not None for verdict in verdicts)
        if counted_in < len(verdicts):
            notes.append(f"the accuracy covers {counted_in:,} of {counted(len(verdicts), 'reply', 'replies')}")
        if summary["not_judged"]:
            notes.append(f"{counted(summary['not_judged'], 'open reply', 'open replies')} not judged, so in no figure")
        if lost := summary["not_answerable"]:
            notes.append(f"{counted(lost, 'closed question')} not counted: no right option, or only one option")
        if (spatial := figures["spatial_in_mono"]) is not None:
            notes.append(f"{IN_MONO}: {spatial:.3f}, not part of the accuracy")
        if figures["guessing"] is not None:
            blind = ", ".join(f"{name} {figures[key]:.3f}" for name, key in _BLIND.items())
            notes.append(f"scores of closed questions by rules that ignore the audio: {blind}")
            encoder = summary["encoder"]
            notes.append(
                f"published score of closed questions: matched by {encoder}; the paper used {ENCODER_OF_PAPER}"
                if encoder
                else "published score of closed questions: not computed; set TEXT_ENCODER to a sentence encoder"
            )
        return notes

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return tables of the scores by type of question, by category and by skill, as {title: table}.

        A question that needs several skills counts under each.
        """
        types = ("accuracy", "macro", "chance_corrected", *_TYPES, "correctness", "spatial_in_mono")
        estimates = {
            name: Resampler(_SEED).of_sums(sums_of(self, setting_verdicts))
            for name, setting_verdicts in verdicts.items()
        }
        published = {
            name: Resampler(_SEED).of_sums(self.published(setting_verdicts))
            for name, setting_verdicts in verdicts.items()
        }
        rows = [
            {
                "setting": name,
                "n": len(setting_verdicts),
                **_cells(estimates[name], types),
                **_cells(published[name], list(published[name])),
            }
            for name, setting_verdicts in verdicts.items()
        ]
        names = sorted({_category(verdict) for setting_verdicts in verdicts.values() for verdict in setting_verdicts})
        categories = [
            {"category": name.replace(SPATIAL, IN_MONO)}
            | {
                key: value
                for setting, figures in estimates.items()
                if f"accuracy: {name}" in figures
                for key, value in (
                    *cells(setting, figures[f"accuracy: {name}"]).items(),
                    (f"{setting}_said", f"n {figures[f'accuracy: {name}'].clusters}"),
                    (f"{setting}, chance corrected", figures[f"chance_corrected: {name}"].value),
                )
            }
            for name in names
        ]
        frames = {"Scores by type of question": rows, "Accuracy by category": categories}
        for field in _SKILLS:
            frames[f"Accuracy by {field.partition('_')[0]} skill"] = _by_skill(verdicts, field)
        import pandas as pd

        return {title: pd.DataFrame(rows, dtype=object) for title, rows in frames.items()}


_BLIND = {"guessing": "guessing", "always the last option": "always_last", "the longest option": "longest_option"}


def _type(verdict: Verdict) -> str:
    return str(verdict.record.reference["type"])


def _category(verdict: Verdict) -> str:
    return str(verdict.record.reference["category"])


def _fits_mono(verdict: Verdict) -> bool:
    """Tell whether a question can be answered from a mono mix. Other questions do not count in the accuracy."""
    return _category(verdict) != SPATIAL


def _counted_score(verdict: Verdict) -> float | None:
    """Return the verdict's score if the question counts in the accuracy; else None."""
    score: float | None = verdict.values["score"]
    return score if _fits_mono(verdict) else None


def _answerable(record: Record) -> bool:
    """Tell whether a closed question has a right option and at least one other option."""
    return bool(record.reference["answer"]) and len(record.reference["options"]) > 1


def _guess(verdict: Verdict) -> float | None:
    """Return the expected score of guessing an option; None if the question is open or cannot be answered."""
    reference = verdict.record.reference
    return 1 / len(reference["options"]) if reference["type"] == "closed" and _answerable(verdict.record) else None


def _of_closed(verdict: Verdict, value: float) -> float | None:
    counts = _type(verdict) == "closed" and _answerable(verdict.record) and _fits_mono(verdict)
    return value if counts else None


def _last(verdict: Verdict) -> float:
    reference = verdict.record.reference
    return float(bool(reference["options"]) and reference["answer"] == LETTERS[len(reference["options"]) - 1])


def _longest(verdict: Verdict) -> float:
    """Return the score of always choosing the longest option; if several are longest, the mean of their scores."""
    options = verdict.record.reference["options"]
    sizes = list(map(len, options))
    longest = [letter for letter, size in zip(LETTERS, sizes, strict=False) if size == max(sizes)]
    return float(verdict.record.reference["answer"] in longest) / max(1, len(longest))


def _graded(verdict: Verdict, judge: str) -> float | None:
    """Return one judge's overall grade of an open reply, rescaled from 1…5 to 0…1; None if there is no grade."""
    grade = (verdict.values["readings"].get(judge) or {}).get("overall") if _type(verdict) == "open" else None
    return None if grade is None else (grade - 1) / 4


def _correctness(verdict: Verdict) -> float | None:
    if _type(verdict) != "open":
        return None
    said = [
        reading["correctness"] for reading in verdict.values["readings"].values() if reading["correctness"] is not None
    ]
    return 0.0 if verdict.values["fixed"] else mean_of([(rating - 1) / 4 for rating in said])


def _matchable(record: Record) -> bool:
    """Tell whether the official script counts a closed question, which it does if the question has several options."""
    return record.reference["type"] == "closed" and len(record.reference["options"]) > 1


def _counts_as_published(verdict: Verdict) -> bool:
    return _type(verdict) != "closed" or _matchable(verdict.record)


def _matched(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return the values of closed questions' verdicts that need the sentence encoder, as {sample's id: values}.

    `matched` is the letter of the option whose text is nearest to the reply; `as_published` is 1 if this text is
    exactly the answer, else 0. Without a sentence encoder, the result is empty.
    """
    matchable = [record for record in records if _matchable(record)]
    if not matchable or (encoder := text_encoder()) is None:
        return {}
    encoder.encode([text for record in matchable for text in (record.raw, *record.reference["options"])])  # in batches
    matches = {}
    for record in matchable:
        options = record.reference["options"]
        reply, *others = encoder.encode([record.raw, *options])
        place = int(np.argmax(np.stack(others) @ reply))
        right = options[place] == record.reference["answer_text"]
        used = {"encoder": encoder.name, "encoder_hash": encoder.hash}
        matches[record.id] = {"matched": LETTERS[place], "as_published": float(right), **used}
    return matches


def _encoder(verdicts: Sequence[Verdict]) -> str:
    return ", ".join(sorted({verdict.values["encoder"] for verdict in verdicts if verdict.values.get("encoder")}))


def _cells(estimates: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: value for name in names for key, value in cells(name.replace("_", " "), estimates[name]).items()}


def _by_skill(verdicts: Mapping[str, Sequence[Verdict]], field: str) -> list[dict[str, Any]]:
    """Return the rows of a table: one row per skill that questions need, with each setting's accuracy in a column.

    `field` is the field of a record's reference that lists the skills of the question.
    """
    known = {
        name: [(verdict, verdict.record.reference.get(field) or ()) for verdict in setting_verdicts]
        for name, setting_verdicts in verdicts.items()
    }
    rows = []
    for skill in sorted(
        {skill for verdict_skills in known.values() for _one, skills in verdict_skills for skill in skills}
    ):
        row: dict[str, Any] = {"skill": skill}
        for setting, with_skills in known.items():
            scored = [
                (score, verdict.record.cluster)
                for verdict, skills in with_skills
                if skill in skills and (score := _counted_score(verdict)) is not None
            ]
            if scored:
                row |= cells(setting, Resampler(_SEED).mean(*zip(*scored, strict=True)))
                row |= {f"{setting}_said": f"n {len(scored)}"}
        if len(row) > 1:
            rows.append(row)
    return rows
