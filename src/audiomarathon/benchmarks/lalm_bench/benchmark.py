"""LALM Bench as a benchmark: its tasks, and what was published of them."""

from __future__ import annotations

from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.benchmarks.lalm_bench.captions import AudioCaps, Clotho
from audiomarathon.benchmarks.lalm_bench.mmau_pro import MmauPro

LALM_BENCH = Benchmark(
    key="lalm",
    title="Does a model describe what it hears, and answer every kind of question about it?",
    tasks=(Clotho(), AudioCaps(), MmauPro()),
    facts={
        "lalm/clotho": TaskFacts("Clotho", "captioning", 1045, (15.0, 30.0)),
        "lalm/audiocaps": TaskFacts("AudioCaps", "captioning", 975, (1.0, 10.0)),
        "lalm/mmau_pro": TaskFacts("MMAU-Pro", "understanding", 5305, (0.0, 3600.0)),  # not stated
    },
    hubs={"lalm/clotho": "woongvy/clotho-v2.1", "lalm/mmau_pro": "gamma-lab-umd/MMAU-Pro"},
)
