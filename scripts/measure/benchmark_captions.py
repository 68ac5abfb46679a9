"""Measure the cost of CIDEr-D, and its tokenizer's share.

    python scripts/measure/benchmark_captions.py [--items 1045] [--rounds 5]

Captions are synthetic, with five references per item, and all texts differ. Three tasks alternate with empty caches:
CIDEr-D from raw text (tokens, n-grams, frequencies, scores), its tokenizer alone, and splitting the texts at spaces.
CPU seconds are compared.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from audiomarathon.metrics.captions import cider_d as module
from audiomarathon.metrics.captions import ptb
from audiomarathon.metrics.captions.cider_d import Frequencies, cider_d
from audiomarathon.metrics.captions.ptb import tokens

WORDS = [
    *("a", "the", "man", "woman", "dog", "bird", "engine", "rain", "wind", "crowd", "is", "are", "speaks", "barks"),
    *("chirps", "hums", "falls", "blows", "cheers", "while", "and", "then", "in", "on", "near", "loudly", "softly"),
    *("background", "distance", "door", "water", "metal", "music", "footsteps", "high-pitched", "someone's", "doesn't"),
]


def main() -> None:
    """Time the three tasks, and print CPU seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1045, help="items (default 1045, Clotho's evaluation split)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in which the sides take turns (default 5)")
    given = parser.parse_args()
    draw = random.Random(0)
    texts = [f"{' '.join(draw.choices(WORDS, k=draw.randint(8, 20)))}." for _ in range(6 * given.items)]
    candidates = texts[: given.items]
    references = [texts[start : start + 5] for start in range(given.items, len(texts), 5)]
    sides: dict[str, Callable[[], object]] = {
        "CIDEr-D": lambda: cider_d(candidates, references, Frequencies.of(references)),
        "tokens": lambda: [tokens(text) for text in texts],
        "split at spaces": lambda: [text.lower().split() for text in texts],
    }
    least = dict.fromkeys(sides, float("inf"))
    for _ in range(given.rounds):
        for name, work in sides.items():
            for remembered in (ptb._remembered, module._remembered, module._kept):
                remembered.cache_clear()
            begin = time.process_time()
            work()
            least[name] = min(least[name], time.process_time() - begin)
    count = sum(len(tokens(text)) for text in texts)
    print(f"{given.items} items, {count} tokens, CPU s:", ", ".join(f"{name} {s:.3f}" for name, s in least.items()))
    print(
        f"tokens: {count / least['tokens']:,.0f} a second, {least['tokens'] / least['CIDEr-D']:.0%} of CIDEr-D,", end=""
    )
    print(f" {least['tokens'] / least['split at spaces']:.0f} × splitting at spaces")


if __name__ == "__main__":
    main()
