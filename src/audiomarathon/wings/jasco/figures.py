"""Compute JASCO's figures: best-mean (the mean over clips of the best rating), and what replies depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from audiomarathon.benchmarks.questions.keywords import names_keyword
from audiomarathon.benchmarks.rows import natural
from audiomarathon.judges.judgements import reading_of, request_of, second_of
from audiomarathon.metrics.statistics import Floats, Resampler, Sums, ratio
from audiomarathon.records import Figure, Record, Verdict
from audiomarathon.scoring.judged import Judged, judges_of
from audiomarathon.scoring.scorer import cells, sums_of
from audiomarathon.wings.jasco.rubric import AUDIO, BOTH, NEITHER, SPEECH, AsPublished, Strict

if TYPE_CHECKING:
    import pandas as pd

PROMPTS = 8
_SEED = 42  # seed of the intervals in tables
HIGHEST = 2  # the highest rating
ORIENTATIONS = (AUDIO, BOTH, SPEECH, NEITHER)
_PUBLISHED = {"v2": AsPublished("v2"), "v1": AsPublished("v1")}
# A clip's columns for one judge: the best gated rating, and whether there is one; the gated rating of each prompt, then
# their counts (0 or 1); the sum of ratings and their count; the number of replies with each orientation.
_WIDTH = 2 + 2 * PROMPTS + 2 + len(ORIENTATIONS)
_OWN = 4  # a clip's columns for all judges: the best of their mean ratings, if any; replies with a keyword; replies

#: A judge's rating of one reply: clip, prompt counted from 0, rating, orientation. None: the judge's answer lacks it.
Row = tuple[str, int, int | None, str | None]


class CoReasoning(Judged):
    """Score JASCO by best-mean: the mean over clips of the highest of a clip's eight gated ratings.

    A judge model rates each reply from 0 to 2 and states its orientation: whether the reply depends on the clip's
    sound, its speech, both or neither. The gated rating is the rating if the orientation is Both, else 0.

    Besides the fields of :class:`Judged`, a verdict has `keyword` (whether the reply names a keyword of its clip) and
    `as_published`: each judge's rating and orientation, read from its answer by the rules of JASCO's code, with
    `asked_again` (a second question is needed) and `unanswered` (the second question has no answer yet). If a judge was
    asked only with the older prompt, its answer to that prompt is read, and the judge's values in `readings` have
    `prompt`: "v1".
    """

    key = "jasco"
    figure = Figure("best_mean", "best-mean", 0.0, float(HIGHEST))
    needs = ("audio_sound", "spoken_text", "audio_only_target", "speech_only_target", "target_keywords", "tgt_text")
    protocols = (Strict("v2"), Strict("v1"), *_PUBLISHED.values())
    modules: ClassVar[tuple[str, ...]] = (
        *Judged.modules,
        "audiomarathon.benchmarks.questions.keywords",
        "audiomarathon.wings.jasco.rubric",
    )

    def judge(self, record: Record) -> dict[str, Any]:
        """Return a reply's verdict, as a dict: `readings` is each judge's rating and orientation.

        The class explains the other keys.
        """
        values, older = super().judge(record), self.protocols[1]
        for name in [name for name, why in values["missing"].items() if why == "absent"]:
            if (reading := reading_of(older, record, record.judgements[name]).values) is not None:
                values["readings"][name] = {**reading, "prompt": "v1"}
                del values["missing"][name]
        published = {name: read_as_published(record, said) for name, said in record.judgements.items()}
        return values | {
            "as_published": {name: counts for name, counts in published.items() if counts is not None},
            "keyword": names_keyword(record.text, str(record.reference["target_keywords"])),
        }

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the sums over clips from which JASCO's scores and their intervals are computed, as :class:`Sums`.

        The scores are those of all judges together, the best-mean of each judge (`best_mean: NAME`), and the share of
        replies that name a keyword of their clip.
        """
        rows = {name: _rows(verdicts, name, "readings") for name in judges_of(verdicts)}
        clips = sorted({_place(judged.record)[0] for judged in verdicts}, key=natural)
        hits: dict[str, list[bool]] = {clip: [] for clip in clips}
        for verdict in verdicts:
            hits[_place(verdict.record)[0]].append(verdict.values["keyword"])
        shares = [[sum(said), len(said)] for said in hits.values()]
        return _sums(rows, clips, np.array(shares, dtype=np.float64).reshape(-1, 2))

    def published(self, verdicts: Sequence[Verdict]) -> Sums | None:
        """Return the sums over clips for JASCO's scores by the counting rules of JASCO's own code, as :class:`Sums`.

        By these rules, an unreadable rating counts as the rating of the row before.
        """
        inherited_rows = _inherited(verdicts)
        clips = sorted({_place(verdict.record)[0] for verdict in verdicts}, key=natural)
        return _sums({name: rows for name, (rows, _) in inherited_rows.items()}, clips, np.zeros((len(clips), 2)))

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return details for a run's summary, as a dict.

        Keys: those of :class:`Judged` (how well judges agree with each other and with known verdicts);
        `judge_unparsed`, as {judge: number of unreadable judgements}; `as_published`, the figures by the rules of
        JASCO's own code; `reply_words`, the mean length of replies in words.
        """
        judges = judges_of(verdicts)
        published = self.published(verdicts)
        counts = {}
        for name, (_rows_read, crashes) in _inherited(verdicts).items():
            said = [
                verdict.values["as_published"][name] for verdict in verdicts if name in verdict.values["as_published"]
            ]
            counts[name] = {
                "second_questions": sum(reading["asked_again"] for reading in said),
                "second_questions_unanswered": sum(reading["unanswered"] for reading in said),
                "original_crash": crashes,
            }
        return {
            **super().summary(verdicts),
            "judge_unparsed": {name: sum(bool(self.lacks(verdict, name)) for verdict in verdicts) for name in judges},
            "as_published": {**(published.figures if published and counts else {}), "judges": counts},
            "reply_words": float(np.mean([len(verdict.record.text.split()) for verdict in verdicts])),
        }

    def own_score(self, verdict: Verdict) -> float | None:
        """Return a reply's gated rating as a share of the highest rating, averaged over judges; None without a rating.

        The gated rating is the rating if the reply depends on both sound and speech, else 0.
        """
        gated = [
            rating
            for reading in verdict.values["readings"].values()
            if (rating := gate(reading["rating"], reading["orientation"])) is not None
        ]
        return float(np.mean(gated)) / HIGHEST if gated else None

    def shown(self, verdict: Verdict) -> str:
        """Return each judge's rating and orientation of a reply as text, or "not judged"."""
        said = [f"{name}: {row['rating']} {row['orientation']}" for name, row in verdict.values["readings"].items()]
        return "; ".join(said) or "not judged"

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return {title: table} with two tables, one row per setting: best-means by judge, and what replies depend on.

        `verdicts` is {setting: its verdicts}. A best-mean is the mean over clips of the highest of a clip's eight gated
        ratings. The second table has the share of replies that depend on sound, on speech, on both and on neither, and
        how well judges agree.
        """
        import pandas as pd

        best, depends = [], []
        judges = judges_of([verdict for members in verdicts.values() for verdict in members])
        for name, group in verdicts.items():
            sums = sums_of(self, group)
            estimates, figures = Resampler(_SEED).of_sums(sums), sums.figures
            unread = sum(bool(self.lacks(verdict, judge)) for verdict in group for judge in judges)
            row = {
                "setting": name,
                "clips": len(sums.clusters),
                "n": len(group),
                **{judge: figures.get(f"best_mean: {judge}") for judge in judges},
                **cells("best_mean", estimates["best_mean"]),
                "best_mean": figures["best_mean"],
                "mean": figures["mean"],
                "unread": unread if judges else None,
            }
            best.append(row)
            shares = {
                f"{kind} %": x and 100 * x
                for kind, x in ((orientation, figures[orientation]) for orientation in ORIENTATIONS)
            }
            alpha = {f"α {field}": agreement["alpha"] for field, agreement in self.agreement(group).items()}
            depends.append({"setting": name, **shares, **alpha})
        frames = {"best-mean (0–2)": best, "what replies depend on": depends}
        return {title: pd.DataFrame(rows, dtype=object) for title, rows in frames.items()}


def gate(rating: int | None, orientation: str | None) -> int | None:
    """Return the gated rating: the rating if the reply depends on both sound and speech, else 0; None if unknown."""
    if rating == 0 or (orientation is not None and orientation != BOTH):
        return 0
    return None if orientation is None else rating


def read_as_published(record: Record, said: Mapping[str, str | None]) -> dict[str, Any] | None:
    """Read a judge's answers about a reply by the rules of JASCO's code; None if the judge has not judged the reply.

    `said` holds the judge's stored answers as {hash of the question: answer}.
    """
    for protocol in _PUBLISHED.values():
        request = request_of(protocol, record)
        text = "" if request is None else said.get(request.hash)
        if text is None:
            continue
        second = None if request is None else second_of(protocol, text, record)
        if second is None:
            return {**protocol.read(text, record), "asked_again": False, "unanswered": False}
        answer = said.get(second.hash)
        return {**protocol.read_second(text, answer or "", record), "asked_again": True, "unanswered": answer is None}
    return None


def inherited(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Replace each unreadable rating by the rating of the row before, as JASCO's code does; count where it crashes.

    A row holds clip, prompt, rating and orientation; an unreadable rating is None.

    Returns
    -------
    rows, crashes
        The rows with all ratings filled in; rows before the first readable rating get 0. And the number of those
        earlier rows with the orientation Both: on these, JASCO's code crashes with a NameError.
    """
    last: int | None = None
    inherited_rows, crashes = list[Row](), 0
    for clip, prompt, rating, orientation in rows:
        last = last if rating is None else rating
        crashes += last is None and orientation == BOTH
        inherited_rows.append((clip, prompt, last or 0, orientation))
    return inherited_rows, crashes


def _place(record: Record) -> tuple[str, int]:
    """Return (clip, prompt's index counted from 0) of a record, from its id."""
    clip, _, prompt = record.id.rpartition("-p")
    return clip, int(prompt) - 1


def _rows(verdicts: Sequence[Verdict], judge: str, field: str) -> list[Row]:
    """Return a judge's ratings as rows (clip, prompt, rating, orientation), sorted by clip, then by prompt.

    `field` names the verdict's value to take them from: `readings` (our rules) or `as_published` (JASCO's rules).
    """
    read = [(_place(verdict.record), verdict.values[field].get(judge)) for verdict in verdicts]
    read.sort(key=lambda row: (natural(row[0][0]), row[0][1]))
    return [(*place, row["rating"], row["orientation"]) for place, row in read if row]


def _inherited(verdicts: Sequence[Verdict]) -> dict[str, tuple[list[Row], int]]:
    judges = sorted({name for verdict in verdicts for name in verdict.values["as_published"]})
    return {name: inherited(_rows(verdicts, name, "as_published")) for name in judges}


def _sums(judged: Mapping[str, Sequence[Row]], clips: Sequence[str], keywords: Floats) -> Sums:
    """Return the sums over clips for JASCO's scores, as :class:`Sums`.

    `judged` is {judge: rows of (clip, prompt, rating, orientation)}.

    Parameters
    ----------
    keywords
        Shape (clips, 2): each clip's number of replies with a keyword, and number of replies.
    """
    place = {clip: number for number, clip in enumerate(clips)}
    blocks = np.zeros((len(judged), len(clips), _WIDTH))
    gated = np.full((len(judged), len(clips), PROMPTS), np.nan)
    for block, each, rows in zip(blocks, gated, judged.values(), strict=True):
        for clip, prompt, rating, orientation in rows:
            clip_sums = block[place[clip]]
            if (value := gate(rating, orientation)) is not None:
                each[place[clip], prompt] = value
                clip_sums[2 + prompt] += value
                clip_sums[2 + PROMPTS + prompt] += 1
            if rating is not None:
                clip_sums[2 + 2 * PROMPTS] += rating
                clip_sums[3 + 2 * PROMPTS] += 1
            if orientation in ORIENTATIONS:
                clip_sums[4 + 2 * PROMPTS + ORIENTATIONS.index(orientation)] += 1
    has = ~np.isnan(gated)
    blocks[:, :, 0] = np.where(has, gated, 0).max(axis=2, initial=0)
    blocks[:, :, 1] = has.any(axis=2)
    by_judge = has.sum(axis=0)
    averaged = np.where(has, gated, 0).sum(axis=0) / np.maximum(by_judge, 1)
    panel = np.stack([averaged.max(axis=1, initial=0), by_judge.any(axis=1)], axis=1)
    columns = np.concatenate([panel, keywords, *blocks], axis=1)
    return Sums(
        (
            "best_mean", "best_mean_panel", "mean", "mean_of_rating", "best_of_8_gain", "prompt_range", "order_gap",
            *ORIENTATIONS, "keyword_hit", *(f"prompt_{number}" for number in range(1, PROMPTS + 1)),
            *(f"best_mean: {name}" for name in judged),
        ),
        columns,
        partial(_figures, judges=len(judged)),
        tuple(clips),
    )  # fmt: skip


def _figures(sums: Floats, *, judges: int) -> Floats:
    """Compute the scores that :func:`_sums` names, shape (n, scores), from summed columns, shape (n, columns).

    A row of `sums` is the sum over all clips, or over the clips of a bootstrap resample. Most scores are computed for
    each judge, then averaged over judges.
    """
    n = len(sums)
    blocks = sums[:, _OWN:].reshape(n, judges, _WIDTH)
    prompts = ratio(blocks[:, :, 2 : 2 + PROMPTS], blocks[:, :, 2 + PROMPTS : 2 + 2 * PROMPTS])
    mean = ratio(blocks[:, :, 2 : 2 + PROMPTS].sum(axis=2), blocks[:, :, 2 + PROMPTS : 2 + 2 * PROMPTS].sum(axis=2))
    best = ratio(blocks[:, :, 0], blocks[:, :, 1])
    rating = ratio(blocks[:, :, 2 + 2 * PROMPTS], blocks[:, :, 3 + 2 * PROMPTS])
    counts = blocks[:, :, 4 + 2 * PROMPTS :]
    leaning = ratio(counts[:, :, :3], counts[:, :, :3].sum(axis=2, keepdims=True))
    neither = ratio(counts[:, :, 3:], counts.sum(axis=2, keepdims=True))
    spread = prompts.max(axis=2) - prompts.min(axis=2)
    order = np.abs(prompts[:, :, 0::2] - prompts[:, :, 1::2]).mean(axis=2)
    each = [best, mean, rating, best - mean, spread, order]
    of_judges = np.concatenate([np.stack(each, axis=2), leaning, neither, prompts], axis=2)
    valued = ~np.isnan(of_judges)
    panel = ratio(np.where(valued, of_judges, 0).sum(axis=1), valued.sum(axis=1))
    return np.concatenate(
        [
            panel[:, :1],
            ratio(sums[:, :1], sums[:, 1:2]),
            panel[:, 1:10],
            ratio(sums[:, 2:3], sums[:, 3:4]),
            panel[:, 10:],
            best,
        ],
        axis=1,
    )
