"""Score captions by CIDEr-D, by FENSE if its models are on this machine, and by length; score people's captions too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from audiomarathon.errors import DataError, ModelError
from audiomarathon.records import Corpus, Figure, Record, Verdict
from audiomarathon.scoring.scorer import Scorer, cells, means

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from audiomarathon.metrics.captions.cider_d import Frequencies
    from audiomarathon.metrics.statistics import Sums
    from audiomarathon.scoring.caption_models import Echecker, SentenceEncoder

_SEED = 42  # seed of the intervals in tables
_OF_MODELS = ("sbert_sim", "fer", "fense", "fense_first_sentence", "human_fense")
_FETCH = "audiomarathon models download fense, then audiomarathon score RUN"


class Caption(Scorer):
    """Scores captions by CIDEr-D, with document frequencies of the whole data, and by FENSE.

    A verdict has `cider_d`, `human_cider_d` (mean over the clip's reference captions, each scored against the others)
    and `words`. The models of FENSE add `pieces` (word pieces of the reply), `sbert_sim` (similarity to the
    references), `fer` (1 if a fluency error was found), `fense` (made of these two), `fense_first_sentence` and
    `human_fense`, which are None without these models. `encoder` is the sentence encoder's name, `encoder_hash` and
    `checker` are hashes of the two models, `why` explains a missing model. A record's reference has `references`, at
    least one text.
    """

    key = "caption"
    figure = Figure("cider_d", "CIDEr-D", 0.0, 10.0)
    instant = False
    needs = ("references",)
    modules = tuple(f"audiomarathon.metrics.captions.{name}" for name in ("cider_d", "fense", "lengths", "ptb"))

    def verdicts(self, records: Sequence[Record]) -> Iterator[Verdict]:
        """Score the replies of the given records; yield a verdict for each.

        A reply's scores depend on the reply, its references and the corpus (all reference captions, by which CIDEr-D
        weighs words), never on the other replies.
        """
        from audiomarathon.metrics.captions.cider_d import cider_d
        from audiomarathon.metrics.captions.ptb import tokens

        corpus = records[0].corpus
        if corpus is None:
            raise DataError("the run folder has no corpus.json, which CIDEr-D needs to weigh words")
        replies = [record.text for record in records]
        references = [tuple(record.reference["references"]) for record in records]
        scores = cider_d(replies, references, _frequencies(corpus)).tolist()
        columns = _by_models(replies, references)
        for place, (record, reply, texts) in enumerate(zip(records, replies, references, strict=True)):
            figures = {"cider_d": scores[place], "human_cider_d": _human(corpus, texts), "words": len(tokens(reply))}
            yield Verdict(record, figures | {name: values[place] for name, values in columns.items()})

    def sound(self, verdict: Verdict) -> bool:
        """Tell whether a stored verdict is valid: it has a CIDEr-D score, and was made with this machine's models.

        If this machine lacks a model, the verdict's values from that model stay valid.
        """
        encoder, checker = _models()
        used = (verdict.values.get("encoder_hash"), verdict.values.get("checker"))
        now = (encoder.hash if encoder else used[0], checker.sha256 if checker else used[1])
        return used == now and isinstance(verdict.values.get("cider_d"), float)

    def sums(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the means of CIDEr-D and of the number of words per reply, as sums over samples that can be resampled.

        These two need no scoring model (as FENSE does), so runs scored on different machines can be compared.
        """
        sums = means({name: _column(name, verdicts) for name in ("cider_d", "words")}, verdicts)
        return replace(sums, ends={"cider_d": ()})  # not a share of right answers

    def of_models(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return the means of the scores that need FENSE's models, as sums over the replies that have these scores.

        The scores are `sbert_sim`, `fer`, `fense` and `fense_first_sentence`; the class explains them.
        """
        sums = means({_named(name, verdicts): _column(name, verdicts) for name in _OF_MODELS[:-1]}, verdicts)
        return replace(sums, ends={"fer": (0.0, 1.0)})

    def published(self, verdicts: Sequence[Verdict]) -> Sums:
        """Return CIDEr-D as the package aac-metrics computes it, as sums over samples.

        This differs from the headline CIDEr-D: raw replies are scored, and word frequencies are counted only in the
        references of the clips that were scored.
        """
        from audiomarathon.metrics.captions.cider_d import Frequencies, cider_d

        references = tuple(tuple(verdict.record.reference["references"]) for verdict in verdicts)
        whole = {verdict.record.corpus.hash for verdict in verdicts if verdict.record.corpus} == {
            Corpus(references).hash
        }
        if whole and all(verdict.record.raw == verdict.record.text for verdict in verdicts):
            scores = [verdict.values["cider_d"] for verdict in verdicts]
        elif len(verdicts) > 1:
            scores = cider_d(
                [verdict.record.raw for verdict in verdicts], references, Frequencies.of(references)
            ).tolist()
        else:
            scores = [None] * len(verdicts)
        return means({"cider_d_as_published": scores}, verdicts)

    def summary(self, verdicts: Sequence[Verdict]) -> dict[str, Any]:
        """Return fields for `summary.json`: `cider_d_as_published` (see :meth:`published`), the scores that need
        models, ….

        Further fields are `lengths` (of the replies), `human` (scores of people's captions), and `corpus` (number of
        clips from whose captions the weights of words come, and their hash; None if unknown).
        """
        from audiomarathon.metrics.captions.lengths import lengths

        texts = [verdict.record.text for verdict in verdicts]
        pieces = [verdict.values["pieces"] for verdict in verdicts]
        count = None if None in pieces else lambda _texts: pieces
        human = means({name: _column(f"human_{name}", verdicts) for name in ("cider_d", "fense")}, verdicts)
        corpus = verdicts[0].record.corpus
        return {
            **self.published(verdicts).figures,
            **self.of_models(verdicts).figures,
            "lengths": lengths(texts, count),
            "human": human.figures,
            "corpus": {"items": len(corpus.references), "hash": corpus.hash} if corpus else None,
        }

    def own_score(self, verdict: Verdict) -> float:
        """Return the reply's CIDEr-D ÷ 10, so that it lies between 0 and 1."""
        return float(verdict.values["cider_d"]) / 10

    @property
    def own_title(self) -> str:
        """Name of the mean of :meth:`own_score` over samples, for tables."""
        return "CIDEr-D ÷ 10"

    def shown(self, verdict: Verdict) -> str:
        """Return the reply's CIDEr-D as text, and its FENSE if computed."""
        fense = verdict.values["fense"]
        return f"CIDEr-D {verdict.values['cider_d']:.2f}" + ("" if fense is None else f", FENSE {fense:.2f}")

    def notes(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return notes for readers of the scores, one line each.

        Notes say why FENSE is missing, how many replies are too long for its models, the scores of people's captions,
        and from how many clips' captions the weights of words come.
        """
        summary = self.summary(verdicts)
        notes = [f"FENSE not computed: {why}" for why in sorted({verdict.values["why"] for verdict in verdicts} - {""})]
        beyond = {size: summary["lengths"][f"beyond_{size}"] for size in (64, 128)}
        if beyond[64]:
            notes.append(
                f"{beyond[64]:.0%} of replies are longer than the 64 word pieces that FENSE's checker reads, "
                f"{beyond[128]:.0%} than its encoder's 128"
            )
        people = ", ".join(f"{name} {value:.3f}" for name, value in summary["human"].items() if value is not None)
        corpus = summary["corpus"]
        weighed = f"word weights come from the references of {corpus['items']:,} items" if corpus else ""
        return [
            *notes,
            *([f"people (each reference scored against the others): {people}"] if people else []),
            *filter(None, [weighed]),
        ]

    def frames(self, verdicts: Mapping[str, Sequence[Verdict]]) -> Mapping[str, pd.DataFrame]:
        """Return {"Captions": table} with all caption metrics: a row per setting, then a row for people's captions."""
        import pandas as pd

        from audiomarathon.metrics.statistics import Resampler

        rows: list[dict[str, Any]] = []
        for name, group in verdicts.items():
            row: dict[str, Any] = {"setting": name, "n": len(group)}
            both = [Resampler(_SEED).of_sums(sums) for sums in (self.sums(group), self.of_models(group))]
            for figure, estimate in (both[0] | both[1]).items():
                row |= cells(figure, estimate)
            summary = self.summary(group)
            spread = {f"words {part}": summary["lengths"]["words"][part] for part in ("p5", "p95")}
            rows.append(row | {"cider_d_as_published": summary["cider_d_as_published"]} | spread)
        if verdicts:
            rows.append({"setting": "people (one reference against the others)", "n": len(group), **summary["human"]})
        return {"Captions": pd.DataFrame(rows, dtype=object)}


def _models() -> tuple[SentenceEncoder | None, Echecker | None]:
    """Return FENSE's sentence encoder and fluency checker; None in place of a model that this machine does not have."""
    from audiomarathon.scoring.caption_models import ENCODER, fluency_checker, text_encoder

    return text_encoder(ENCODER), fluency_checker()


def _by_models(replies: Sequence[str], references: Sequence[tuple[str, ...]]) -> dict[str, list[Any]]:
    """Return the verdicts' values that need FENSE's models, as {name of the value: one value per reply}."""
    from audiomarathon.metrics.captions.fense import fense, sbert_sim
    from audiomarathon.metrics.captions.lengths import first_sentence, human_ceiling

    columns: dict[str, list[Any]] = {}
    encoder, checker = _models()
    lacking = [*["the sentence encoder"] * (not encoder), *["the fluency checker"] * (not checker)]
    why = f"{' and '.join(lacking)} missing on this machine; next: {_FETCH}" if lacking else ""
    try:
        if encoder:
            columns["pieces"] = encoder.count_pieces(list(replies))
            columns["sbert_sim"] = sbert_sim(replies, references, encoder).tolist()
            columns |= {"encoder": [encoder.name] * len(replies), "encoder_hash": [encoder.hash] * len(replies)}
        if checker:
            columns["checker"] = [checker.sha256] * len(replies)
        if encoder and checker:
            score = partial(fense, encoder=encoder, checker=checker)
            whole = score(replies, references)
            columns |= {"fer": whole.fer.tolist(), "fense": whole.fense.tolist()}
            first = score([first_sentence(reply) for reply in replies], references)
            columns["fense_first_sentence"] = first.fense.tolist()
            human = human_ceiling(references, lambda texts, others: score(texts, others).fense).tolist()
            columns["human_fense"] = [None if math.isnan(ceiling) else ceiling for ceiling in human]
    except ModelError as error:
        why = str(error)
    missing = [None] * len(replies)
    return {
        **dict.fromkeys(("pieces", "encoder", "encoder_hash", "checker", *_OF_MODELS), missing),
        **columns,
        "why": [why] * len(replies),
    }


@lru_cache(2)
def _frequencies(corpus: Corpus) -> Frequencies:
    from audiomarathon.metrics.captions.cider_d import Frequencies

    return Frequencies.of(corpus.references)


@lru_cache(1 << 13)
def _human(corpus: Corpus, texts: tuple[str, ...]) -> float | None:
    """Return the score of people's captions of a clip: the mean CIDEr-D of each reference against the other references.

    None for a clip with one reference.
    """
    from audiomarathon.metrics.captions.cider_d import cider_d
    from audiomarathon.metrics.captions.lengths import human_ceiling

    if len(texts) < 2:
        return None
    return float(human_ceiling([texts], lambda captions, others: cider_d(captions, others, _frequencies(corpus)))[0])


def _column(name: str, verdicts: Sequence[Verdict]) -> list[float | None]:
    return [verdict.values[name] for verdict in verdicts]


def _named(name: str, verdicts: Sequence[Verdict]) -> str:
    """Return a metric's name, such as `fense`; with another sentence encoder than FENSE's own, `fense[NAME]`."""
    from audiomarathon.scoring.caption_models import ENCODER

    others = {verdict.values["encoder"] for verdict in verdicts} - {None, ENCODER}
    return f"{name}[{', '.join(sorted(others))}]" if others and name in _OF_MODELS and name != "fer" else name
