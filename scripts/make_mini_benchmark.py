"""Write the synthetic mini benchmark into a folder: `python scripts/make_mini_benchmark.py data/mini`."""

import argparse
from pathlib import Path

from audiomarathon.embedded.mini_benchmark import generate
from audiomarathon.wing import asked

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder to write into; for a run, set AUDIOMARATHON_DATA to it")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--workers", type=int, default=None, help="number of threads (default: one per core)")
    arguments = parser.parse_args()
    generate(arguments.root, seed=arguments.seed, workers=arguments.workers)
    asked(lambda wing: wing.mini(arguments.root))
