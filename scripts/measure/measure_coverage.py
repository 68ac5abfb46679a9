"""Simulate how often 95 % intervals contain the truth, for a task and for a mean over tasks, by number of clusters.

    python scripts/measure/measure_coverage.py [--runs 2000]

Each run draws a synthetic task (four classes; clusters of five samples that share a skill), computes the interval with
the project's functions, and checks whether the true figure, known from a draw of 400,000 samples, lies inside. The
second table does the same for the mean over such tasks with different numbers of clusters. Some of them are so easy
that sometimes every reply is right. The third draws transcripts whose error rates differ between clusters: evenly, by
an exponential distribution, by a log-normal one, or by rare replies that repeat themselves. It also shows what the
expanded percentile interval would cover, and in how many runs the truth lies above and below our interval.

The last two are on the test of a margin (`compare --margin`, docs/lossless.md): how often it is wrong at a true loss
equal to the margin, and how many samples it takes without a loss. `--only margins` prints these two alone.
"""

import argparse
import itertools
import math
from collections.abc import Sequence

import numpy as np

from audiomarathon.metrics.betting import ALPHA, Clusters, fewest_of_any_test
from audiomarathon.metrics.classification import choice_sums
from audiomarathon.metrics.statistics import Estimate, Resampler, expanded_tail, mean_over
from audiomarathon.metrics.wer import transcript_sums

CLASSES, SIZE = 4, 5
USUAL, EASY = (6.0, 3.0), (400.0, 2.0)  # skill is spread over clusters as a Beta distribution, of mean 0.67 and 0.995
FIGURES = ("accuracy", "macro_f1")

#: {name of the row: for each task, its number of clusters and how its skill is distributed over them}.
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
    """Draw a synthetic task; return (true class, chosen class, cluster) of its samples, an array each."""
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
    estimates = Resampler(0, resamples=1000).of_sums(sums)
    return {name: estimates[name] for name in FIGURES}


def truths(skills: tuple[float, float]) -> dict[str, float]:
    """Return the true accuracy and macro-F1 of a task with this distribution of skill, from a large draw."""
    rng = np.random.default_rng(0)
    truth, chosen, _ = drawn(rng, 80_000, skills)
    accuracy = float((truth == chosen).mean())
    f1 = [2 * ((truth == c) & (chosen == c)).sum() / ((truth == c).sum() + (chosen == c).sum()) for c in range(CLASSES)]
    return {"accuracy": accuracy, "macro_f1": float(np.mean(f1))}


def measured(
    seed: int, tasks: Sequence[tuple[int, tuple[float, float]]], runs: int, known: dict[tuple[float, float], dict]
) -> str:
    """Return table cells: the shares of runs whose interval contains the true mean over tasks, and macro-F1's bias."""
    rng, held, bias = np.random.default_rng(seed), dict.fromkeys(FIGURES, 0), 0.0
    true = {name: float(np.mean([known[skills][name] for _, skills in tasks])) for name in FIGURES}
    for _ in range(runs):
        estimates = [figures(*drawn(rng, clusters, skills)) for clusters, skills in tasks]
        means = {name: mean_over([task_estimates[name] for task_estimates in estimates]) for name in FIGURES}
        for name, estimate in means.items():
            held[name] += estimate.interval is not None and estimate.interval[0] <= true[name] <= estimate.interval[1]
        bias += (means["macro_f1"].value - true["macro_f1"]) / runs
    return f"{held['accuracy'] / runs:.1%} | {held['macro_f1'] / runs:.1%} | {bias:+.4f} |"


def transcripts(rng: np.random.Generator, clusters: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw synthetic transcripts; return (errors, words) of each sample, both of shape (clusters, SIZE)."""
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
    """Return table cells: how often the WER's interval, and the expanded percentile interval, contain the truth."""
    rng, names = np.random.default_rng(clusters), [str(place) for place in range(clusters) for _ in range(SIZE)]
    counts = dict.fromkeys(("held", "above", "below", "percentile"), 0)
    for _ in range(runs):
        errors, words = (counts.ravel().tolist() for counts in transcripts(rng, clusters, kind))
        fields = ("errors", "words", "substitutions", "deletions", "insertions")
        samples = [dict(zip(fields, (e, w, e, 0, 0), strict=True)) for e, w in zip(errors, words, strict=True)]
        estimate = Resampler(0, resamples=1000).of_sums(transcript_sums(samples, names))["wer"]
        counts["held"] += estimate.low <= truth <= estimate.high
        counts["above"] += truth > estimate.high
        counts["below"] += truth < estimate.low
        low, high = np.quantile(estimate.drawn, [expanded_tail(clusters), 1 - expanded_tail(clusters)])
        counts["percentile"] += low <= truth <= high
    return " | ".join(f"{count / runs:.1%}" for count in counts.values()) + " |"


SIZES = np.arange(1.0, 21.0)
#: How losses and gains are spread over clusters: {name: function from a cluster's size and a uniform draw to its rate
#: relative to the mean}.
SPREADS = {
    "even": lambda sizes, _draws: np.ones_like(sizes),
    "in a third of the clusters": lambda _sizes, draws: 3.0 * (draws < 1 / 3),
    "in large clusters": lambda sizes, _draws: sizes * np.mean(SIZES) / np.mean(SIZES**2),
}


def paired_clusters(
    rng: np.random.Generator, shape: tuple[int, int], accuracy: float, discordance: float, loss: float, spread: str
) -> Clusters:
    """Draw a setting's and base's scores, where the setting loses `loss` of base's accuracy; base has no compression.

    `shape` is (runs, clusters); clusters have 1 to 20 samples. Base's accuracy differs between clusters. A share of its
    right replies is lost, and a share of its wrong replies gained, at rates that differ between clusters as `spread`
    says. As in `compare`, the size of the task's largest cluster is the limit.
    """
    sizes = rng.choice(SIZES, shape)
    right = rng.binomial(sizes.astype(int), rng.beta(8 * accuracy, 8 * (1 - accuracy), shape))
    rate = SPREADS[spread](sizes, rng.random(shape))
    lost = rng.binomial(right, np.minimum(1, rate * (discordance + loss) / 2 / accuracy))
    gained = rng.binomial(sizes.astype(int) - right, np.minimum(1, rate * (discordance - loss) / 2 / (1 - accuracy)))
    largest = sizes.max(axis=1, keepdims=True)
    return Clusters((gained - lost) / largest, sizes / largest, 1)


def false_verdicts(margin: float, clusters: int, runs: int) -> dict[str, float]:
    """Return how often the test of an allowed loss is wrong if the true loss equals it, in the worst simulated case.

    `margin` is the allowed loss. The cases differ in accuracy, discordance (the share of samples on which the setting
    and base disagree) and spread. "one of 20" is the chance of any wrong verdict among 20 settings under Holm's
    correction, which begins with 20 times the smallest p.
    """
    rng, highest_rates = np.random.default_rng([clusters, round(1000 * margin)]), dict[str, float]()
    cases = itertools.product((0.3, 0.6, 0.95), (margin, 3 * margin, 0.3), SPREADS)
    for accuracy, discordance, spread in cases:
        highest = float(SPREADS[spread](SIZES, np.zeros(20)).max())
        if max((discordance + margin) / accuracy, (discordance - margin) / (1 - accuracy)) * highest / 2 > 1:
            continue  # base has too few right replies to lose, or too few wrong ones to gain
        drawn = paired_clusters(rng, (runs, clusters), accuracy, discordance, margin, spread)
        for worse, each in itertools.product((False, True), repeat=2):
            p = drawn.p(margin, worse=worse, each=each)
            what = f"{'worse' if worse else 'no worse'}, {'each look' if each else 'one look'}"
            rates = {what: float((p <= ALPHA).mean())}
            if each:
                families = p[: len(p) // 20 * 20].reshape(-1, 20).min(axis=1)
                rates[f"{what}, one of 20"] = float((20 * families <= ALPHA).mean())
            highest_rates |= {name: max(highest_rates.get(name, 0.0), rate) for name, rate in rates.items()}
    return highest_rates


def samples_to_decide(margin: float, discordance: float, most: int, runs: int) -> dict[str, float]:
    """Return how many samples the verdict "no worse" takes if there is no loss, in clusters of 1 to `most` samples.

    Keys: `classic` (a z test with known variance, of 80 % power; at least the bound of any test), `fixed` (our test
    with one look at the end, of 80 % power), `stopped` (the median with a look after every cluster).
    """
    rng = np.random.default_rng([most, round(1000 * margin), round(1000 * discordance)])
    classic = max(6.18 * discordance / margin**2, fewest_of_any_test(margin))
    count = int(4 * classic * (2 if most > 1 else 1) / (most + 1) * 2)
    sizes = rng.integers(1, most + 1, (runs, count))
    drawn = rng.binomial(sizes, discordance)
    totals = 2.0 * rng.binomial(drawn, 0.5) - drawn
    rich = Clusters(totals, sizes.astype(float), most).log_wealth(margin) >= math.log(1 / ALPHA)
    taken = sizes.cumsum(axis=1)
    first = np.where(rich.any(axis=1), rich.argmax(axis=1), count - 1)
    short = np.flatnonzero(rich.mean(axis=0) < 0.8)[-1]
    fixed = float(taken[:, short + 1].mean()) if short + 1 < count else math.nan
    stopped = float(np.median(taken[np.arange(runs), first]))
    return {"classic": classic, "fixed": fixed, "stopped": stopped}


def print_margins(runs: int) -> None:
    """Print two Markdown tables on the test of an allowed loss (margin)."""
    names = [
        *("no worse, one look", "no worse, each look", "no worse, each look, one of 20"),
        *("worse, one look", "worse, each look", "worse, each look, one of 20"),
    ]
    print(f"\n| margin | clusters | {' | '.join(names)} |\n|---:|---:|{'---:|' * len(names)}")
    for margin, clusters in itertools.product((0.02, 0.05), (8, 20, 40, 100, 400)):
        results = false_verdicts(margin, clusters, runs)
        print(f"| {margin} | {clusters} | {' | '.join(f'{results[name]:.1%}' for name in names)} |", flush=True)
    columns = "a z test needs | ours, one look | ours, stopped (median) | stopped ÷ one look | saved of 5,000 samples |"
    print(f"\n| margin | discordance | clusters of | {columns}\n|---:|---:|---|{'---:|' * 5}")
    for margin, most in itertools.product((0.02, 0.05), (1, 5)):
        for discordance in (0.0, margin, 0.1, 0.3):
            results = samples_to_decide(margin, discordance, most, min(runs, 400))
            cells = [f"{results[name]:,.0f}" for name in ("classic", "fixed", "stopped")]
            cells += [f"{results['stopped'] / results['fixed']:.2f}", f"{max(0.0, 1 - results['stopped'] / 5000):.0%}"]
            size = "1" if most == 1 else f"1 to {most}"
            print(f"| {margin} | {discordance} | {size} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Simulate, and print five Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="runs a row (default 2000)")
    parser.add_argument("--only", choices=["margins"], help="print only the tables on the test of a margin")
    given = parser.parse_args()
    runs = given.runs
    if given.only:
        print_margins(runs)
        return
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
    print_margins(runs)


if __name__ == "__main__":
    main()
