"""Simulate how often the 95 % intervals hold the truth, for a task and for a mean over tasks, by number of clusters.

    python scripts/measure_coverage.py [--runs 2000]

Each run draws a synthetic task (four classes; clusters of five samples that share a skill), computes the interval with
the project's functions, and checks whether the true figure, known from a draw of 400,000 samples, lies inside. The
second table does the same for the mean over such tasks with different numbers of clusters. Some of them are so easy
that sometimes every reply is right.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from audiomarathon.metrics.classification import choice_sums
from audiomarathon.metrics.statistics import Estimate, Resampler, mean_over

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


def main() -> None:
    """Print two Markdown tables."""
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


if __name__ == "__main__":
    main()
