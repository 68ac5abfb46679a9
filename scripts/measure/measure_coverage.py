"""Simulate how often the 95 % intervals hold the truth, for a task and for a mean over tasks, by number of clusters.

    python scripts/measure/measure_coverage.py [--runs 2000]

Each run draws a synthetic task (four classes; clusters of five samples that share a skill), computes the interval with
the project's functions, and checks whether the true figure, known from a draw of 400,000 samples, lies inside. The
second table does the same for the mean over such tasks with different numbers of clusters. Some of them are so easy
that sometimes every reply is right. The third draws transcripts whose error rates differ between clusters: evenly, by
an exponential distribution, by a log-normal one, or by rare replies that repeat themselves. It also shows what the
expanded percentile interval would hold, and in how many runs the truth lies above and below our interval.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from audiomarathon.metrics.classification import choice_sums
from audiomarathon.metrics.statistics import Estimate, Resampler, expanded_tail, mean_over
from audiomarathon.metrics.wer import transcript_sums

CLASSES, SIZE = 4, 5
USUAL, EASY = (6.0, 3.0), (400.0, 2.0)  # skill is spread over clusters as a Beta distribution, of mean 0.67 and 0.995
FIGURES = ("accuracy", "macro_f1")

#: By name of the row: the clusters of each task, and its skill.
MEANS: dict[str, list[tuple[int, tuple[float, float]]]] = {
    "3 tasks of 6": [(6, USUAL)] * 3,
    "10 tasks of 6": [(6, USUAL)] * 10,
    "10 tasks of 20": [(20, USUAL)] * 10,
    "10 tasks of 4 to 100": [(count, USUAL) for count in (4, 6, 8, 10, 15, 20, 30, 50, 70, 100)],
    "3 tasks of 10, 1 easy": [(10, USUAL)] * 2 + [(10, EASY)],
    "10 tasks of 10, all easy": [(10, EASY)] * 10,
}


def drawn(
    rng: np.random.Generator, clusters: int, skills: tuple[float, float] = USUAL
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a synthetic task: return its samples' true classes, chosen classes and clusters."""
    names = np.repeat(np.arange(clusters), SIZE)
    truth = rng.integers(0, CLASSES, clusters * SIZE)
    harder = 0.15 if skills == USUAL else 0.0
    skill = np.repeat(rng.beta(*skills, clusters), SIZE) - harder * (truth == 0)  # one class is harder
    right = rng.random(len(truth)) < skill
    other = (truth + rng.integers(1, CLASSES, len(truth))) % CLASSES
    return truth, np.where(right, truth, other), names


def figures(truth: np.ndarray, chosen: np.ndarray, names: np.ndarray) -> dict[str, Estimate]:
    """Return accuracy and macro-F1 of the chosen classes, with their intervals."""
    clusters = [str(name) for name in names]
    sums = choice_sums([str(t) for t in truth], [str(c) for c in chosen], [False] * len(truth), clusters)
    found = Resampler(0, resamples=1000).of_sums(sums)
    return {name: found[name] for name in FIGURES}


def truths(skills: tuple[float, float]) -> dict[str, float]:
    """Return the true accuracy and macro-F1."""
    rng = np.random.default_rng(0)
    truth, chosen, _ = drawn(rng, 80_000, skills)
    accuracy = float((truth == chosen).mean())
    f1 = [2 * ((truth == c) & (chosen == c)).sum() / ((truth == c).sum() + (chosen == c).sum()) for c in range(CLASSES)]
    return {"accuracy": accuracy, "macro_f1": float(np.mean(f1))}


def measured(
    seed: int, tasks: Sequence[tuple[int, tuple[float, float]]], runs: int, known: dict[tuple[float, float], dict]
) -> str:
    """Return the shares of runs whose interval holds the true mean over tasks, and the bias of macro-F1, as cells."""
    rng, held, bias = np.random.default_rng(seed), dict.fromkeys(FIGURES, 0), 0.0
    true = {name: float(np.mean([known[skills][name] for _, skills in tasks])) for name in FIGURES}
    for _ in range(runs):
        found = [figures(*drawn(rng, clusters, skills)) for clusters, skills in tasks]
        means = {name: mean_over([one[name] for one in found]) for name in FIGURES}
        for name, one in means.items():
            held[name] += one.interval is not None and one.interval[0] <= true[name] <= one.interval[1]
        bias += (means["macro_f1"].value - true["macro_f1"]) / runs
    return f"{held['accuracy'] / runs:.1%} | {held['macro_f1'] / runs:.1%} | {bias:+.4f} |"


def transcripts(rng: np.random.Generator, clusters: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw transcripts: return the errors and the words of each sample, shape (clusters, SIZE)."""
    words = rng.integers(150, 400, (clusters, SIZE))
    rates = {
        "even": lambda: rng.gamma(8.0, 0.01, (clusters, 1)),
        "exponential": lambda: rng.gamma(1.0, 0.08, (clusters, 1)),
        "log-normal": lambda: rng.lognormal(np.log(0.06), 0.7, (clusters, 1)),
        "repeating": lambda: (
            rng.gamma(3.0, 0.02, (clusters, 1))
            + (rng.random((clusters, SIZE)) < 0.05) * rng.uniform(0.5, 3.0, (clusters, SIZE))
        ),
    }
    return rng.poisson(words * rates[kind]()), words


def measured_wer(clusters: int, kind: str, runs: int, truth: float) -> str:
    """Return how often the WER's interval, and the expanded percentile interval, hold the truth, as cells."""
    rng, names = np.random.default_rng(clusters), [str(place) for place in range(clusters) for _ in range(SIZE)]
    counts = dict.fromkeys(("held", "above", "below", "percentile"), 0)
    for _ in range(runs):
        errors, words = (one.ravel().tolist() for one in transcripts(rng, clusters, kind))
        fields = ("errors", "words", "substitutions", "deletions", "insertions")
        samples = [dict(zip(fields, (e, w, e, 0, 0), strict=True)) for e, w in zip(errors, words, strict=True)]
        found = Resampler(0, resamples=1000).of_sums(transcript_sums(samples, names))["wer"]
        counts["held"] += found.low <= truth <= found.high
        counts["above"] += truth > found.high
        counts["below"] += truth < found.low
        low, high = np.quantile(found.drawn, [expanded_tail(clusters), 1 - expanded_tail(clusters)])
        counts["percentile"] += low <= truth <= high
    return " | ".join(f"{count / runs:.1%}" for count in counts.values()) + " |"


def main() -> None:
    """Print three Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="runs a row (default 2000)")
    runs = parser.parse_args().runs
    known = {skills: truths(skills) for skills in (USUAL, EASY)}
    columns = "| samples | accuracy held | macro-F1 held | mean macro-F1 − truth |"
    print(f"| clusters {columns}\n|---:|---:|---:|---:|---:|")
    for clusters in (6, 10, 20, 50, 100):
        row = measured(clusters, [(clusters, USUAL)], runs, known)
        print(f"| {clusters} | {clusters * SIZE} | {row}", flush=True)
    print(
        "\n| mean over | samples | accuracy held | macro-F1 held | mean macro-F1 − truth |\n|---|---:|---:|---:|---:|"
    )
    for seed, (name, tasks) in enumerate(MEANS.items()):
        samples = SIZE * sum(clusters for clusters, _ in tasks)
        print(f"| {name} | {samples} | {measured(seed, tasks, runs, known)}", flush=True)
    columns = "WER held | truth above | truth below | percentile interval held |"
    print(f"\n| errors | clusters | {columns}\n|---|---:|---:|---:|---:|---:|")
    for kind in ("even", "exponential", "log-normal", "repeating"):
        errors, words = transcripts(np.random.default_rng(0), 400_000, kind)
        for clusters in (4, 8, 20, 50):
            row = measured_wer(clusters, kind, runs, float(errors.sum() / words.sum()))
            print(f"| {kind} | {clusters} | {row}", flush=True)


if __name__ == "__main__":
    main()
