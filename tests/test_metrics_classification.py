import json
import subprocess
import sys

import numpy as np
import pytest
from builders import summarise_choices
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, t

from audiomarathon.metrics.classification import accuracy, as_published, choice_sums, macro_f1, per_class

# Three classes, ten samples, two of them unparsed. By hand:
#   a: 4 samples, 2 hits, chosen 4 times -> precision 2/4, recall 2/4, F1 = 2x2 / (4 + 4) = 1/2
#   b: 3 samples, 2 hits, chosen 3 times -> precision 2/3, recall 2/3, F1 = 2x2 / (3 + 3) = 2/3
#   c: 3 samples, 1 hit,  chosen once    -> precision 1/1, recall 1/3, F1 = 2x1 / (3 + 1) = 1/2
TRUTH = ["a", "a", "a", "a", "b", "b", "b", "c", "c", "c"]
CHOSEN = ["a", "a", "b", None, "b", "b", None, "c", "a", "a"]


def test_accuracy_and_macro_f1_equal_golden_values() -> None:
    assert accuracy(TRUTH, CHOSEN) == 0.5
    assert macro_f1(TRUTH, CHOSEN) == pytest.approx((1 / 2 + 2 / 3 + 1 / 2) / 3)


def test_precision_recall_and_f1_of_each_class_equal_golden_values() -> None:
    assert per_class(TRUTH, CHOSEN) == {
        "a": {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 4, "unparsed": 1},
        "b": {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3, "unparsed": 1},
        "c": {"precision": 1.0, "recall": 1 / 3, "f1": 0.5, "support": 3, "unparsed": 0},
    }


def test_accuracy_and_f1_under_the_published_rules_equal_golden_values() -> None:
    """Without the unparsed. a: 2 hits of 3, chosen 4 times, F1 4/7; b: 2 of 2, 3 times, 4/5; c: 1 of 3, once, 2/4."""
    published = as_published(TRUTH, CHOSEN)
    assert published == {
        "n": 8,
        "accuracy": 5 / 8,
        "macro_f1": pytest.approx((4 / 7 + 4 / 5 + 1 / 2) / 3),
        "weighted_f1": pytest.approx((3 * 4 / 7 + 2 * 4 / 5 + 3 * 1 / 2) / 8),
    }


def test_an_unparsed_reply_lowers_recall_but_not_precision() -> None:
    assert per_class(["a", "b"], ["a", None])["b"]["precision"] is None


def test_a_class_that_is_only_predicted_does_not_enter_the_macro_f1() -> None:
    """a: 1 hit of 2, chosen once, F1 2/3; b: F1 1; c is chosen once and never true."""
    truth, chosen = ["a", "a", "b"], ["a", "c", "b"]
    assert macro_f1(truth, chosen) == pytest.approx((2 / 3 + 1) / 2)
    assert as_published(truth, chosen)["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_a_class_missing_in_a_resample_does_not_enter_its_macro_f1() -> None:
    sums = choice_sums(["a", "b", "b"], ["a", "a", "b"], [False] * 3, ["x", "y", "y"])
    drawn = sums.statistic(sums.columns[1:].sum(axis=0, keepdims=True))[0]  # only y: one of two b is right
    assert drawn[sums.names.index("macro_f1")] == pytest.approx(2 / 3)


def reference_macro_f1(truth: list[str], chosen: list[str | None]) -> float:
    """From the textbook: the mean over true classes of the harmonic mean of precision and recall."""
    scores = []
    for label in set(truth):
        hits = len([1 for right, guess in zip(truth, chosen, strict=True) if right == label and guess == label])
        if hits == 0:
            scores.append(0.0)
            continue
        precision, recall = hits / chosen.count(label), hits / truth.count(label)
        scores.append(2 / (1 / precision + 1 / recall))
    return float(np.mean(scores))


pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["a", "b", "c", "d", "e", None])), min_size=1)


@given(pairs)
def test_macro_f1_equals_the_textbook_formula(rows: list[tuple[str, str | None]]) -> None:
    truth, chosen = [row[0] for row in rows], [row[1] for row in rows]
    assert macro_f1(truth, chosen) == pytest.approx(reference_macro_f1(truth, chosen))


def test_metrics_in_the_run_summary_equal_those_of_the_metric_functions() -> None:
    summary = summarise_choices(TRUTH, CHOSEN, [True] * 4 + [False] * 6, [str(i) for i in range(10)], seed=1)
    macro = macro_f1(TRUTH, CHOSEN)
    expected = {"n": 10, "unparsed": 2, "accuracy": 0.5, "strict_accuracy": 0.4, "macro_f1": macro, "score": macro}
    assert {key: summary[key] for key in expected} == expected
    assert summary["per_class"] == per_class(TRUTH, CHOSEN)
    assert summary["as_published"] == as_published(TRUTH, CHOSEN)
    assert summary["intervals"]["score"] == summary["intervals"]["macro_f1"]
    json.dumps(summary, allow_nan=False)


def test_bootstrap_intervals_equal_those_computed_by_actually_repeating_the_drawn_samples() -> None:
    """Compute the same draws slowly: repeat each cluster's samples and call the public functions."""
    rng = np.random.default_rng(3)
    truth = rng.choice(list("abc"), 40).tolist()
    chosen = [right if rng.random() < 0.6 else str(rng.choice(list("abcd"))) for right in truth]
    strict = [right == guess and rng.random() < 0.5 for right, guess in zip(truth, chosen, strict=True)]
    clusters = rng.choice([f"speaker {i}" for i in range(9)], 40).tolist()
    summary = summarise_choices(truth, chosen, strict, clusters, seed=11)

    names = sorted(set(clusters))
    figures = []
    for weights in np.random.default_rng(11).multinomial(len(names), np.full(len(names), 1 / len(names)), size=2_000):
        times = dict(zip(names, weights, strict=True))
        taken = [i for i in range(40) for _ in range(times[clusters[i]])]
        right, guess = [truth[i] for i in taken], [chosen[i] for i in taken]
        figures.append([accuracy(right, guess), np.mean([strict[i] for i in taken]), reference_macro_f1(right, guess)])
    count = len(names)
    tail = norm.cdf(-np.sqrt(count / (count - 1)) * t.ppf(0.975, df=count - 1))
    low, high = np.quantile(figures, [tail, 1 - tail], axis=0)
    for name, *expected in zip(("accuracy", "strict_accuracy", "macro_f1"), low, high, strict=True):
        assert summary["intervals"][name] == pytest.approx(expected, abs=1e-6)


def test_the_interval_of_500_clusters_equals_the_normal_approximation() -> None:
    single_cluster = summarise_choices(TRUTH, CHOSEN, [False] * 10, ["same"] * 10, seed=0)
    assert set(single_cluster["intervals"].values()) == {None}
    repeated = summarise_choices(TRUTH * 50, CHOSEN * 50, [False] * 500, [str(i) for i in range(500)], seed=0)
    low, high = repeated["intervals"]["accuracy"]
    # A proportion of 1/2 among 500: 1.96 x sqrt(0.25 / 500) = 0.0438 to each side.
    assert [low, high] == pytest.approx([0.456, 0.544], abs=0.006)


def test_the_summary_of_a_run_without_samples_has_no_score() -> None:
    summary = summarise_choices([], [], [], [], seed=0)
    assert summary["n"] == 0
    assert summary["score"] is None


def test_metrics_refuse_lists_of_truths_and_replies_that_are_empty_or_differ_in_length() -> None:
    with pytest.raises(ValueError, match="2 truths"):
        macro_f1(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="no samples"):
        accuracy([], [])


def test_importing_the_metrics_imports_neither_torch_nor_librosa() -> None:
    program = (
        "import sys, audiomarathon.metrics.classification, audiomarathon.metrics.wer\n"
        "print({'librosa', 'numba', 'torch', 'transformers'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
