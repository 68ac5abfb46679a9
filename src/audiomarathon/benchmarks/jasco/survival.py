"""What pruning takes first, the sound or the speech: told from replies alone, since prompts 3 to 8 ask for both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from rapidfuzz.distance import LCSseq

from audiomarathon.metrics.statistics import Estimate, Floats, Resampler, Sums
from audiomarathon.metrics.wer import normalise
from audiomarathon.records import Record

FIRST_PROMPT = 3  # 1 and 2 ask for the inference alone
LEAST_SKILL = 0.10  # of the unpruned model, below which nothing is left to lose
_COMMON = frozenset(("sound", "sounds", "noise", "noises", "of", "and", "a", "the", "to", "on", "in", "light", "faint"))
_ENDING = re.compile(r"(?<=\w{3})(?:ings?|ed|es|s)$")
_NAMES = ("speech", "sound", "speech_kept", "sound_kept", "difference")


@lru_cache(4096)  # each clip's text stands beside every reply
def _words(text: str) -> tuple[str, ...]:
    return tuple(normalise(text).split())


def stem(word: str) -> str:
    """Return a word without its ending, a final `e` and a doubled last letter: running, runs → run; waves → wav."""
    bare = _ENDING.sub("", word)
    bare = bare.removesuffix("e") if len(bare) > 3 else bare
    return bare[:-1] if len(bare) > 3 and bare[-1] == bare[-2] else bare


def perceived(reply: str, spoken: Sequence[str], sounds: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return which share of each spoken text, and of each sound, a reply reports; the first are the clip's own.

    Of a text it is the longest common subsequence of words; of a sound the stems of its words, among those of the reply
    that are not matched as the clip's own transcript.
    """
    said = list(_words(reply))
    matched = LCSseq.opcodes(list(_words(spoken[0])), said)
    taken = {place for one in matched if one.tag == "equal" for place in range(one.dest_start, one.dest_end)}
    left = {stem(word) for place, word in enumerate(said) if place not in taken}
    speech = [LCSseq.similarity(list(text), said) / max(1, len(text)) for text in map(_words, spoken)]
    return speech, [len(wanted & left) / max(1, len(wanted)) for wanted in map(_stems, sounds)]


def survival(pairs: Sequence[tuple[Record, Record]], *, seed: int = 42) -> Mapping[str, Estimate]:
    """Return what a setting's replies report of sound and speech, beside base's of the same samples.

    Parameters
    ----------
    pairs
        The setting's record and base's of each sample.

    Returns
    -------
    Mapping
        `speech` and `sound`: base's skill, (share − chance) / (1 − chance), where chance is the share of other clips'
        texts that the same replies report. `speech_kept` and `sound_kept`: the setting's skill as a share of base's.
        `difference`: speech kept less sound kept. Intervals resample clips, both settings at once.
    """
    asked = [pair for pair in pairs if int(pair[0].id.rpartition("-p")[2]) >= FIRST_PROMPT]
    texts = {one.cluster: (str(one.reference["spoken_text"]), str(one.reference["audio_sound"])) for one, _ in asked}
    rows = np.array([[1, *_row(base, texts), *_row(own, texts)] for own, base in asked], np.float64)
    clusters = tuple(one.cluster for one, _ in asked)
    return Resampler(seed).of_sums(Sums(_NAMES, rows.reshape(-1, 9), _figures, clusters))


def sentence(setting: str, found: Mapping[str, Estimate]) -> str:
    """Return what survives under a setting, in words; where base reports too little, that."""
    parts = []
    for name in ("speech", "sound"):
        skill, kept = found[name], found[f"{name}_kept"]
        if not skill.value >= LEAST_SKILL or skill.low <= 0:
            return f"{setting}: not measurable, the unpruned model does not report the {name} (skill {skill.value:.2f})"
        low, high = (f"{100 * end:.0f}" for end in (kept.low, kept.high))
        parts.append(f"{100 * kept.value:.0f} % [{low}, {high}] of the {name}")
    return f"{setting} keeps {' and '.join(parts)}"


def _row(record: Record, texts: Mapping[str, tuple[str, str]]) -> tuple[float, float, float, float]:
    """Return a reply's share of the clip's own speech, of others', of its own sound, of others'."""
    each = [texts[record.cluster], *(text for clip, text in texts.items() if clip != record.cluster)]
    speech, sound = perceived(record.text, [text for text, _ in each], [text for _, text in each])
    return speech[0], float(np.mean(speech[1:] or [0])), sound[0], float(np.mean(sound[1:] or [0]))


def _figures(sums: Floats) -> Floats:
    """Return the figures of a count and of summed shares: by setting (base first), by modality, own and by chance."""
    shares = (sums[:, 1:] / sums[:, :1]).reshape(-1, 2, 2, 2)
    skill = (shares[..., 0] - shares[..., 1]) / np.maximum(1 - shares[..., 1], 1e-9)
    base, own = skill[:, 0], skill[:, 1]
    kept = np.divide(own, base, out=np.full_like(base, np.nan), where=base > 0)
    return np.concatenate([base, kept, kept[:, :1] - kept[:, 1:]], axis=1)


@lru_cache(4096)
def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word) for word in _words(text) if word not in _COMMON)
