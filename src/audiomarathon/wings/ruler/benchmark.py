"""The ruler as a benchmark."""

from __future__ import annotations

from audiomarathon.benchmarks.benchmark import Benchmark
from audiomarathon.wings.ruler.task import After, Count, Order, Word

RULER = Benchmark(
    key="ruler",
    title="Does a model find a word or a bell anywhere in up to an hour of audio?",
    tasks=(Word(), Count(), Order(), After()),
)
