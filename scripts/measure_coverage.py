"""How often the 95 % intervals hold the truth: accuracy and macro-F1, by number of clusters, in simulation.

    python scripts/measure_coverage.py [--runs 2000]

Each run draws a made-up task (four classes; clusters of five samples that share a skill), takes the interval of the
project's own functions, and looks whether the true figure, known from a draw of 400,000 samples, lies inside.
"""

import argparse

import numpy as np

from audiomarathon.metrics.classification import choice_sums
from audiomarathon.metrics.statistics import cluster_bootstrap, cluster_totals

CLASSES, SIZE, SKILL = 4, 5, (6.0, 3.0)  # mean skill 2/3, spread over clusters as a Beta distribution


def drawn(rng: np.random.Generator, clusters: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true classes, chosen classes and clusters."""
    names = np.repeat(np.arange(clusters), SIZE)
    truth = rng.integers(0, CLASSES, clusters * SIZE)
    skill = np.repeat(rng.beta(*SKILL, clusters), SIZE) - 0.15 * (truth == 0)  # one class is harder
    right = rng.random(len(truth)) < skill
    other = (truth + rng.integers(1, CLASSES, len(truth))) % CLASSES
    return truth, np.where(right, truth, other), names


def figures(truth: np.ndarray, chosen: np.ndarray, names: np.ndarray) -> tuple[list[float], list[list[float] | None]]:
    """Return accuracy and macro-F1, and their intervals."""
    sums = choice_sums([str(t) for t in truth], [str(c) for c in chosen], [False] * len(truth))
    totals = cluster_totals(sums.columns, [str(name) for name in names])
    values = sums.statistic(totals.sum(axis=0, keepdims=True))[0]
    intervals = cluster_bootstrap(totals, sums.statistic, seed=0, resamples=1000)
    return [values[0], values[2]], [intervals[0], intervals[2]]


def truths() -> list[float]:
    """Return the true accuracy and macro-F1."""
    rng = np.random.default_rng(0)
    truth, chosen, _ = drawn(rng, 80_000)
    accuracy = float((truth == chosen).mean())
    f1 = [2 * ((truth == c) & (chosen == c)).sum() / ((truth == c).sum() + (chosen == c).sum()) for c in range(CLASSES)]
    return [accuracy, float(np.mean(f1))]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="runs a row (default 2000)")
    runs = parser.parse_args().runs
    known = truths()
    print("| clusters | samples | accuracy held | macro-F1 held | mean macro-F1 − truth |\n|---:|---:|---:|---:|---:|")
    for clusters in (6, 10, 20, 50, 100):
        rng = np.random.default_rng(clusters)
        held, bias = np.zeros(2), 0.0
        for _ in range(runs):
            values, intervals = figures(*drawn(rng, clusters))
            held += [
                span is not None and span[0] <= true <= span[1] for span, true in zip(intervals, known, strict=True)
            ]
            bias += (values[1] - known[1]) / runs
        print(
            f"| {clusters} | {clusters * SIZE} | {held[0] / runs:.1%} | {held[1] / runs:.1%} | {bias:+.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
