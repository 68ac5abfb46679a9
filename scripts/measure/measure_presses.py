"""Count for how many tokens replies equal base's under each press, on the embedded model.

The counts are the column "measured" of kvpress/README.md.

  python scripts/measure/measure_presses.py

A reply's first token comes from prefill, which no press changes, so one-letter answers never change. Therefore the
model transcribes the mini benchmark's speech for exactly 48 tokens, and the script counts the tokens before the first
that differs from base's.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks import get_task
from audiomarathon.compression.method import Base
from audiomarathon.compression.press import KVPress
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.embedded.mini_benchmark import mini_benchmark
from audiomarathon.engine.batches import sample_seed
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.engine.engine import open_local
from audiomarathon.models.prompt import Prompt
from audiomarathon.settings import RunSettings


def shared_beginning(tokens: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the number of equal tokens at the beginning of two replies of equal length."""
    return next((i for i, (a, b) in enumerate(zip(tokens, other, strict=True)) if a != b), len(tokens))


def main() -> None:
    """Generate without compression (base) and with every press on each clip; print one row per press."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratio", type=float, default=0.9)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    flags = parser.parse_args()
    if flags.threads:
        torch.set_num_threads(flags.threads)
    lm = open_local("embedded", RunSettings()).lm
    task = get_task("librispeech")
    samples = task.load(task.find(mini_benchmark())).samples
    presses = [get_method(method.key, flags.ratio) for method in all_methods() if isinstance(method, KVPress)]
    same: dict[str, list[int]] = {press.key: [] for press in presses}
    cache: dict[str, list[int]] = {press.key: [] for press in (Base(), *presses)}
    for sample in samples:
        clips = tuple(decode(path, lm.sampling_rate) for path in sample.clips)
        inputs = lm.prepare([Prompt(task.prompt(sample), clips, sample_seed(42, sample.id))])
        with encoder_shared(lm):
            base = Base().generate(lm, inputs, max_new_tokens=flags.tokens, ignore_end=True)
            cache["base"].append(base.kv_bytes)
            for press in presses:
                generation = press.generate(lm, inputs, max_new_tokens=flags.tokens, ignore_end=True)
                cache[press.key].append(generation.kv_bytes)
                same[press.key].append(shared_beginning(base.replies[0].token_ids, generation.replies[0].token_ids))
    print(
        f"{len(samples)} clips, ratio {flags.ratio:g}, KV cache of base {statistics.mean(cache['base']) / 1e6:.2f} MB"
    )
    for press in presses:
        kept = statistics.mean(cache[press.key]) / 1e6
        print(
            f"{press.key:20} {statistics.mean(same[press.key]):5.1f} of {flags.tokens} tokens, KV cache {kept:.2f} MB"
        )


if __name__ == "__main__":
    main()
