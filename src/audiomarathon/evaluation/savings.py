"""What a setting saves: counted FLOPs and what they promise, beside what was measured against base.

A decoder layer that sees s tokens costs 2·(active parameters)·s + 2·s²·heads·head_dim FLOPs (causal attention), and
prefill ends with one row of the LM head. The counts are taken from the loaded model once and written to `run.json`, so
that everything else here needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.evaluation.records import read_records, read_run
from audiomarathon.metrics.statistics import RESAMPLES, cluster_totals, expanded_tail, mean_of
from audiomarathon.pruning.method import kept_count

Record = Mapping[str, Any]

#: What is compared between runs, and what a record says of it, in seconds; None for one that was not timed.
STAGES: Mapping[str, Callable[[Record], float | None]] = {
    "llm_prefill": lambda record: time_of(record, "llm_prefill"),
    "first_token": lambda record: time_of(record, "prefill"),
    "decode_per_token": lambda record: (record.get("forced_decode") or {}).get("per_token"),
}

_PARTS = 40  # of the resamples, each small enough for a processor's cache


@dataclass(frozen=True)
class Cost:
    """What one prompt costs a model, in FLOPs (a multiplication and an addition are two).

    Attributes
    ----------
    flops_per_token_per_layer
        For each decoder layer twice its active parameters.
    attention_flops_coefficient
        For each decoder layer 2·heads·head_dim: what the square of its tokens is multiplied by.
    lm_head_flops
        Of one position.
    encoder_flops_per_second
        Of the audio tower, a second of audio; None where it could not be counted.
    """

    flops_per_token_per_layer: tuple[float, ...]
    attention_flops_coefficient: tuple[float, ...]
    lm_head_flops: float
    encoder_flops_per_second: float | None

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Cost:
        """Return the cost that a `run.json` holds under `cost`."""
        return cls(
            tuple(content["flops_per_token_per_layer"]),
            tuple(content["attention_flops_coefficient"]),
            content["lm_head_flops"],
            content["encoder_flops_per_second"],
        )

    def as_json(self) -> dict[str, Any]:
        """Return what `run.json` holds under `cost`."""
        return {**asdict(self), "layers": len(self.flops_per_token_per_layer)}

    def llm_prefill(self, tokens: Sequence[int]) -> float:
        """Return the FLOPs of a prefill whose layers see `tokens` tokens, one number a layer."""
        pairs = zip(self.flops_per_token_per_layer, self.attention_flops_coefficient, tokens, strict=True)
        return sum(linear * s + square * s * s for linear, square, s in pairs) + self.lm_head_flops

    def encoder(self, clip_seconds: float) -> float:
        """Return the FLOPs of the audio tower."""
        assert self.encoder_flops_per_second is not None
        return self.encoder_flops_per_second * clip_seconds


@dataclass(frozen=True)
class Drops:
    """What prefill is spared: audio tokens dropped at the input of layer `layer`; None when none are."""

    layer: int | None = None
    ratio: float = 0.0

    def tokens(self, layers: int, prompt: int, audio: int) -> list[int]:
        """Return how many tokens each layer sees in prefill."""
        if self.layer is None:
            return [prompt] * layers
        left = prompt - audio + kept_count(audio, self.ratio)
        return [prompt if index < self.layer else left for index in range(layers)]


@dataclass(frozen=True)
class Run:
    """A finished setting: its facts, and by id the records of the samples it selected, answered and `failed`."""

    facts: Mapping[str, Any]
    records: Mapping[str, Record]
    failed: Mapping[str, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, *, selected: bool = True) -> Run:
        """Read a run folder.

        Parameters
        ----------
        selected
            Only the samples that its last run selected; else all on record, of larger runs before it too.

        Raises
        ------
        RecordError
            When it holds no run, or its files cannot be read.
        """
        facts, by_id = read_run(folder), read_records(folder)
        wanted = [by_id[id_] for id_ in (facts.get("samples", by_id) if selected else by_id) if id_ in by_id]
        answered, failed = (
            {row["id"]: row for row in wanted if (row.get("error") is None) is fine} for fine in (True, False)
        )
        return cls(facts, answered, failed)

    def sums_up(self, summary: Mapping[str, Any]) -> bool:
        """Whether a summary is of the records as they are: a longer run that was killed has left a shorter one's."""
        told = summary.get("expected"), summary.get("n")
        return told == (len(self.facts.get("samples", ())), len(self.records))

    @property
    def cost(self) -> Cost | None:
        """The model's counted FLOPs, when the run has them."""
        return Cost.read(self.facts["cost"]) if self.facts.get("cost") else None

    @property
    def drops(self) -> Drops | None:
        """What prefill is spared; None when that is not known of the method."""
        return Drops(**self.facts["drops"]) if self.facts.get("drops") else None


def savings(run: Run, base: Run | None, *, seed: int = 42) -> dict[str, Any]:
    """Return what a setting saved.

    Every ratio is base ÷ setting, so that above 1 is faster. `measured` is the median over the samples that both
    answered in one session, each against its own base run, with a 95 % interval over clusters; `ideal` the same median
    of what counted FLOPs promise.

    Parameters
    ----------
    base
        The same samples with nothing dropped; without it nothing measured can be compared.
    """
    records = list(run.records.values())
    pairs = [] if base is None else paired(run, base)
    together = in_one_session(pairs)
    compared = [own for _, own in together] or records
    measured = {stage: speed_up(together, of, seed) for stage, of in STAGES.items()}
    measured["llm_prefill"]["ideal"] = ideal_of(run, compared)
    measured["first_token"]["ideal"] = ideal_of(run, compared, encoder=True)
    kept = [r["kept_audio_tokens"] for r in records]
    lengths = [r["kv_lengths"] for r in records if r.get("kv_lengths")]
    scoring = [r["time"]["scoring"] for r in records if r.get("time") and "scoring" in r["time"]]
    audio = sum(r["audio_tokens"] or 0 for r in records)  # an endpoint need not tell
    return {
        "note": run.facts.get("note") or None,
        "kept_ratio": sum(kept) / audio if audio and None not in kept else None,
        "kv_lengths": np.mean(lengths, axis=0).tolist() if lengths else None,
        "kv_bytes": mean_of([r["kv_bytes"] for r in records]),
        "kv_bytes_interval": mean_interval(records, "kv_bytes", seed),
        "scoring_s": float(np.median(scoring)) if scoring else None,
        "compared_samples": len(together),
        "base_of_another_session": len(pairs) - len(together),
        **measured,
        "kv_bytes_ratio": speed_up(pairs, lambda r: r["kv_bytes"], seed)["measured"],
    }


def paired(run: Run, base: Run, *, same_clips: bool = True) -> list[tuple[Record, Record]]:
    """Return base's and the setting's records of the samples that both answered, having heard the same clips.

    A clip that was replaced between two runs makes another sample of the same name; `same_clips=False` is for controls,
    whose clips were replaced on purpose.
    """
    both = [(base.records[id_], own) for id_, own in run.records.items() if id_ in base.records]
    return [(theirs, own) for theirs, own in both if not same_clips or theirs.get("clips") == own.get("clips")]


def in_one_session(pairs: Sequence[tuple[Record, Record]]) -> list[tuple[Record, Record]]:
    """Return the pairs whose times compare: measured an hour apart, the machine may have been another."""
    return [pair for pair in pairs if pair[0].get("session") == pair[1].get("session")]


def ideal_speed_up(cost: Cost, drops: Drops, record: Record, *, encoder: bool = False) -> float:
    """Return what counted FLOPs promise for one sample: base ÷ setting, of LLM prefill or, with the encoder, of time to
    first token."""
    layers = len(cost.flops_per_token_per_layer)
    prompt, audio = record["prompt_tokens"], record["audio_tokens"]
    always = cost.encoder(record["clip_seconds"]) if encoder else 0.0
    whole = cost.llm_prefill(Drops().tokens(layers, prompt, audio))
    return (always + whole) / (always + cost.llm_prefill(drops.tokens(layers, prompt, audio)))


def ideal_of(run: Run, records: Sequence[Record], *, encoder: bool = False) -> float | None:
    """Return the median of :func:`ideal_speed_up` over records; None where the run does not say what it costs."""
    cost, drops = run.cost, run.drops
    if cost is None or drops is None or not records or (encoder and cost.encoder_flops_per_second is None):
        return None
    return float(np.median([ideal_speed_up(cost, drops, record, encoder=encoder) for record in records]))


def speed_up(pairs: Sequence[tuple[Record, Record]], of: Callable[[Record], float | None], seed: int) -> dict[str, Any]:
    """Return the median of base ÷ own over the samples, and its interval."""
    return median_ratio([(of(base), of(own), str(own["cluster"])) for base, own in pairs], seed=seed)


def median_ratio(rows: Sequence[tuple[float | None, float | None, str]], *, seed: int) -> dict[str, Any]:
    """Return the median over samples of one quantity ÷ another (`measured`) with a 95 % `interval` over clusters.

    Parameters
    ----------
    rows
        The two quantities of a sample, and its cluster; a sample that lacks one of them is left out.
    """
    ratios = [(above / below, cluster) for above, below, cluster in rows if above and below]
    if not ratios:
        return {"measured": None, "interval": None}
    values = np.array([value for value, _ in ratios])
    return {"measured": float(np.median(values)), "interval": median_interval(values, [c for _, c in ratios], seed)}


def median_interval(values: np.ndarray[Any, Any], clusters: Sequence[str], seed: int) -> list[float] | None:
    """Bootstrap a median over clusters: the expanded percentile interval of `metrics.statistics`."""
    names, codes = np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
    if len(names) < 2:
        return None
    order = np.argsort(values)
    ordered, places = values[order], codes[order]
    medians = []
    for drawn in np.array_split(_draws(len(names), seed), _PARTS):
        weights = np.cumsum(drawn[:, places], axis=1, dtype=np.int32)
        half = weights[:, -1:] / 2
        # Of an even number of samples the median lies between the middle two.
        medians.append((ordered[(weights >= half).argmax(axis=1)] + ordered[(weights > half).argmax(axis=1)]) / 2)
    tail = expanded_tail(len(names))
    low, high = np.quantile(np.concatenate(medians), [tail, 1 - tail]).tolist()
    return [low, high]


@lru_cache(maxsize=8)
def _draws(clusters: int, seed: int) -> np.ndarray[Any, Any]:
    """Return how often each resample drew each cluster; settings of one task, of as many clusters, share the draws."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=RESAMPLES).astype(np.int32)
    drawn.flags.writeable = False
    return drawn


def mean_interval(records: Sequence[Record], name: str, seed: int) -> list[float] | None:
    """Bootstrap a mean over clusters; None where a record lacks the value."""
    rows = [(record[name], 1) for record in records]
    if not rows or any(value is None for value, _ in rows):
        return None
    totals = cluster_totals(rows, [str(record["cluster"]) for record in records])
    if len(totals) < 2:
        return None
    sums = _draws(len(totals), seed) @ totals
    tail = expanded_tail(len(totals))
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [tail, 1 - tail]).tolist()
    return [low, high]


def time_of(record: Record, stage: str) -> float | None:
    """Return the seconds of a stage; None for a record without times."""
    return record["time"][stage] if record.get("time") else None
