"""Measure what capturing attention costs: CPU seconds against one prefill, file size against whole attention maps.

  python scripts/measure/benchmark_attention.py # a random model of 28 layers with 28 heads
  python scripts/measure/benchmark_attention.py --model qwen2-audio --model-path FOLDER --seconds 30

Captures and prefills alternate, and the ratio is that of their medians. Both are calls of `generate` for one token that
share the audio tower's output.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from efficiency.random_models import random_model

from audiomarathon.cli.output import reporting_errors
from audiomarathon.compression.method import Base
from audiomarathon.engine.attention_capture import capture
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.engine.engine import open_local
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.runs.attention import Attention
from audiomarathon.settings import own_settings

REPLY = 8  # tokens


def measured(lm: AudioLM, seconds: float, repeats: int) -> tuple[list[tuple[float, float]], Attention]:
    """Return ((CPU seconds of a prefill, of the capture after it) per repeat, the captured attention)."""
    noise = np.random.default_rng(0).standard_normal(round(seconds * lm.sampling_rate))
    prompt = Prompt("What is heard in this recording, and when?", ((0.1 * noise).astype(np.float32),))
    inputs, base, pairs = lm.prepare([prompt]), Base(), []
    with encoder_shared(lm):
        base.generate(lm, inputs, max_new_tokens=1)
        for _ in range(repeats):
            start = time.process_time()
            base.generate(lm, inputs, max_new_tokens=1)
            middle = time.process_time()
            capture(lm, inputs, base, prompt, max_new_tokens=1)
            pairs.append((middle - start, time.process_time() - middle))
        return pairs, capture(lm, inputs, base, prompt, max_new_tokens=REPLY)  # a file without a reply is smaller


@reporting_errors
def main() -> None:
    """Measure each length of audio, and print a line per length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's name; default: a random model")
    parser.add_argument("--model-path", help="its checkpoint")
    parser.add_argument(
        "--config", default="attention", help="size of the random model (scripts/measure/efficiency/random_models.py)"
    )
    parser.add_argument("--seconds", default="30,300", help="lengths of audio, joined by commas")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    if asked.model:
        lm = open_local(asked.model, own_settings(model_path=asked.model_path)).lm
    else:
        lm = random_model(asked.config, "cpu", "float32", "sdpa")
    for seconds in map(float, asked.seconds.split(",")):
        pairs, seen = measured(lm, seconds, asked.repeats)
        prefill, captured = (statistics.median(column) for column in zip(*pairs, strict=True))
        with tempfile.TemporaryDirectory() as place:
            size = seen.save(Path(place) / "one.npz")
        _, layers, heads, _ = seen.mass.shape
        whole = 4 * layers * len(seen.tokens) ** 2
        print(
            f"{seconds:g} s, {len(seen.tokens):,} tokens, {layers} layers, {heads} heads: prefill {prefill:.2f} CPU s, "
            f"capture {captured:.2f}, ratio {captured / prefill:.2f}; file {size / 1e6:.2f} MB, whole maps "
            f"{whole / 1e6:,.0f} MB: 1/{whole / size:,.0f}"
        )


if __name__ == "__main__":
    main()
