"""Measure from replies to JASCO whether pruning audio tokens removes the clip's sound or its speech first.

Only prompts 3 to 8 ask a model to report both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import LCSseq

from audiomarathon.audio.voice_activity import Spans
from audiomarathon.benchmarks.questions.keywords import names_keyword
from audiomarathon.metrics.normalise import normalise
from audiomarathon.metrics.paired import sign_flip
from audiomarathon.metrics.statistics import Estimate, Floats, Resampler, Sums
from audiomarathon.records import Record
from audiomarathon.runs.record_line import tokens_within
from audiomarathon.settings import SEED

MODALITIES = ("speech", "sound", "answer")
LEAST_SKILL = 0.10  # if the unpruned model reports less above chance, pruning has nothing to remove
_FIRST_PROMPT = 3  # prompts 1 and 2 ask for the inference only, not for the words and the sound
_COMMON = frozenset(("sound", "sounds", "noise", "noises", "of", "and", "a", "the", "to", "on", "in", "light", "faint"))
_ENDING = re.compile(r"(?<=\w{3})(?:ings?|ed|es|s)$")
_WIDTH = 3 * len(MODALITIES)  # for each: replies that count, share reported, share of other clips' texts reported

#: {sample's id: what its reply adds to the sums, shape (_WIDTH,)}.
Reports = Mapping[str, Floats]


@lru_cache(4096)  # every reply is compared with each clip's text
def _words(text: str) -> tuple[str, ...]:
    return tuple(normalise(text).split())


@lru_cache(4096)
def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in _words(text) if word not in _COMMON)


def stem(word: str) -> str:
    """Return a word's stem: without its ending, a final `e` and a doubled last letter.

    For example: running, runs → run; waves → wav.
    """
    bare = _ENDING.sub("", word)
    bare = bare.removesuffix("e") if len(bare) > 3 else bare
    return bare[:-1] if len(bare) > 3 and bare[-1] == bare[-2] else bare


def perceived(reply: str, spoken: Sequence[str], sounds: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return two lists: the share of each text in `spoken`, and of each sound in `sounds`, that a reply reports.

    The first text and the first sound belong to the reply's clip, the others to other clips. A text's share is the
    length of the longest common subsequence of words, divided by the text's length. A sound's share counts the stems of
    its words that occur in the reply; words of the reply that match the clip's transcript are ignored.
    """
    said = list(_words(reply))
    matched = LCSseq.opcodes(list(_words(spoken[0])), said)
    taken = {
        place for opcode in matched if opcode.tag == "equal" for place in range(opcode.dest_start, opcode.dest_end)
    }
    left = {stem(word) for place, word in enumerate(said) if place not in taken}
    speech = [LCSseq.similarity(list(text), said) / max(1, len(text)) for text in map(_words, spoken)]
    return speech, [len(wanted & left) / max(1, len(wanted)) for wanted in map(_stems, sounds)]


def reports(records: Iterable[Record]) -> Reports:
    """Measure how much of its clip's speech, sound and keywords each reply reports; return {sample's id: nine numbers}.

    The numbers are, for each of speech, sound and keywords: whether the reply counts (1 or 0), the share of the clip's
    text that it reports, and the mean share of other clips' texts that it reports, which measures chance. Speech and
    sound count only in replies to prompts that ask for both.
    """
    records = list(records)
    names = ("spoken_text", "audio_sound", "target_keywords")
    texts = {
        reply_record.cluster: tuple(str(reply_record.reference[name]) for name in names) for reply_record in records
    }
    measured = {}
    for record in records:
        each = [texts[record.cluster], *(text for clip, text in texts.items() if clip != record.cluster)]
        spoken, sounds, keywords = zip(*each, strict=True)
        named = [float(names_keyword(record.text, text)) for text in keywords]
        asked = int(record.id.rpartition("-p")[2]) >= _FIRST_PROMPT
        shares = (*(perceived(record.text, spoken, sounds) if asked else ([0.0], [0.0])), named)
        counts = (asked, asked, True)
        measured[record.id] = np.array(
            [(count, share[0], np.mean(share[1:] or [0])) for count, share in zip(counts, shares, strict=True)], float
        ).ravel()
    return measured


def retained(orders: Sequence[tuple[Reports, Reports]]) -> tuple[dict[str, Estimate], float | None]:
    """Return the share that a setting still reports of what the unpruned model reports, and test speech against sound.

    Parameters
    ----------
    orders
        Pairs of reports (of the setting, of base, the run without pruning): one pair, or two pairs for clips with the
        speech first and clips with the speech last. The figures are averaged over the pairs.

    Returns
    -------
    dict
        For each of :data:`MODALITIES`: base's skill, (share − chance) / (1 − chance), where chance is the share of
        other clips' texts in the same replies; and `NAME_kept`, the setting's skill divided by base's. `difference`:
        speech kept minus sound kept. `position_effect`, for two pairs: the first difference minus the second. Intervals
        resample clips, each with its replies of both settings and all pairs.
    float or None
        The p value for the hypothesis that speech and sound are kept equally, from flipping the signs of the clips'
        jackknife pseudo-values of the difference (J. Tukey, 1958).
    """
    samples = [sorted(pruned.keys() & base.keys()) for pruned, base in orders]
    clips = sorted({id_.rpartition("-p")[0] for ids in samples for id_ in ids})
    place = {clip: number for number, clip in enumerate(clips)}
    totals = np.zeros((len(clips), len(orders), 2, _WIDTH))
    for number, (ids, sides) in enumerate(zip(samples, orders, strict=True)):
        for side, side_reports in enumerate(sides):
            for id_ in ids:
                totals[place[id_.rpartition("-p")[0]], number, side] += side_reports[id_]
    names = (*MODALITIES, *(f"{name}_kept" for name in MODALITIES), "difference")
    names += ("position_effect",) if len(orders) == 2 else ()
    sums = Sums(names, totals.reshape(len(clips), -1), partial(_figures, orders=len(orders)), tuple(clips))
    return Resampler(SEED).of_sums(sums), sign_flip(_pseudo_values(sums, "difference"), np.random.default_rng(SEED))


def _figures(sums: Floats, *, orders: int) -> Floats:
    """Compute the values that :func:`retained` returns (skills, kept shares, differences), shape (n, values).

    Values are averaged over the positions of the speech, except the position effect.

    `sums` has the shape (n, orders · 2 · _WIDTH): n sums (of the data or of resamples), each with the reports of the
    setting and of base (the run without pruning) for every position of the speech (first, last).
    """
    counted = sums.reshape(-1, orders, 2, len(MODALITIES), 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = counted[..., 1:] / counted[..., :1]
        skill = (shares[..., 0] - shares[..., 1]) / (1 - shares[..., 1])
        pruned, base = skill[:, :, 0], skill[:, :, 1]
        kept = np.where(base > 0, pruned / base, np.nan)
    apart = kept[..., 0] - kept[..., 1]
    figures = [base.mean(axis=1), kept.mean(axis=1), apart.mean(axis=1, keepdims=True)]
    return np.concatenate([*figures, apart[:, :1] - apart[:, 1:]] if orders == 2 else figures, axis=1)


def _pseudo_values(sums: Sums, name: str) -> Floats:
    whole, n, place = sums.totals.sum(axis=0, keepdims=True), len(sums.totals), sums.names.index(name)
    without: Floats = sums.statistic(whole - sums.totals)[:, place]
    return float(n * sums.statistic(whole)[0, place]) - (n - 1) * without


def measurable(estimates: Mapping[str, Estimate], name: str) -> bool:
    """Tell whether the unpruned model reports `name` (speech or sound) well enough to measure a loss by pruning.

    `estimates` is the dict that :func:`retained` returns. The model's skill (reported share, corrected for chance) must
    be at least 0.10, with an interval above 0.
    """
    estimate = estimates[name]
    return estimate.value >= LEAST_SKILL and estimate.interval is not None and estimate.low > 0


def sentence(setting: str, estimates: Mapping[str, Estimate]) -> str:
    """Return a sentence on the shares of speech and sound that a setting still reports.

    If the unpruned model hardly reports the speech or the sound, the sentence says that this cannot be measured.
    """
    parts = []
    for name in MODALITIES[:2]:
        if not measurable(estimates, name):
            why = f"the unpruned model does not report the {name} (skill {estimates[name].value:.2f})"
            return f"{setting}: not measurable, {why}"
        kept = estimates[f"{name}_kept"]
        ends = f" [{100 * kept.low:.0f}, {100 * kept.high:.0f}]" if kept.interval else ""
        parts.append(f"{100 * kept.value:.0f} %{ends} of the {name}")
    return f"{setting} keeps {' and '.join(parts)}"


def preference(kept: Iterable[tuple[str, npt.NDArray[Any], float, Spans]]) -> Estimate | None:
    """Return the share of speech tokens kept ÷ the share of all audio tokens kept; above 1, the method prefers speech.

    Parameters
    ----------
    kept
        For each reply: its clip, whether or in what share each audio token was kept (without tokens that only pad the
        audio tower's window), the clip's length in seconds, and its spans of speech.
    """
    rows, clips = [], []
    for clip, bits, seconds, spans in kept:
        speech = tokens_within(len(bits), seconds, spans)
        rows.append([(bits * speech).sum(), speech.sum(), bits.sum(), len(bits)])
        clips.append(clip)
    if not rows:
        return None
    sums = Sums(("preference",), np.array(rows, float), _preference, tuple(clips))
    return Resampler(SEED).of_sums(sums)["preference"]


def _preference(sums: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return (sums[:, :1] / sums[:, 1:2]) / (sums[:, 2:3] / sums[:, 3:])
