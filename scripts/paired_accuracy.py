"""Accuracy of each setting of a sweep against base on the same samples, all tasks pooled, as a Markdown table.

    python scripts/paired_accuracy.py RESULTS

The difference is paired sample by sample; its 95 % interval resamples clusters (`metrics/statistics.py`).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.metrics.statistics import cluster_bootstrap, cluster_totals


def records(results: Path, setting: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return a setting's answered choice records, by task and id."""
    found = {}
    for file in sorted(results.glob(f"*/*/{setting}/samples.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["error"] is None and "correct" in record:
                found[file.parts[-4], record["id"]] = record
    return found


def main() -> None:
    """Print a row a setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder that a sweep wrote")
    results = parser.parse_args().results
    base = records(results, "base-0")
    settings = sorted({file.parent.name for file in results.glob("*/*/*/samples.jsonl")})
    headings = ("setting", "n", "accuracy", "against base", "95 % interval", "LLM prefill, ms (median)")
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for setting in settings:
        own = records(results, setting)
        both = sorted(own.keys() & base.keys())
        difference = [[own[key]["correct"] - base[key]["correct"], 1] for key in both]
        clusters = [f"{task}:{own[task, id_]['cluster']}" for task, id_ in both]
        totals = cluster_totals(difference, clusters)
        (interval,) = cluster_bootstrap(totals, lambda sums: sums[..., :1] / sums[..., 1:], seed=42)
        span = f"[{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else "–"
        accuracy = np.mean([own[key]["correct"] for key in both])
        prefill = 1000 * np.median([own[key]["time"]["llm_prefill"] for key in both])
        against = np.mean([row[0] for row in difference])
        print(f"| `{setting}` | {len(both)} | {accuracy:.3f} | {against:+.3f} | {span} | {prefill:.0f} |")


if __name__ == "__main__":
    main()
