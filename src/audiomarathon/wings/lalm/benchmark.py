"""LALM Bench as a benchmark: its tasks, with each task's number of samples, range of durations and hub id, if any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.benchmarks.declared import Declared, read_task
from audiomarathon.wings.lalm.captions import AudioCaps, Clotho
from audiomarathon.wings.lalm.mmau_pro import MmauPro


def _shipped(name: str, *aliases: str) -> Declared:
    task = read_task(Path(__file__).parent / "texts" / f"{name}.toml")
    return replace(task, key=f"lalm/{name}", aliases=(name, *aliases))


LALM_BENCH = Benchmark(
    key="lalm",
    title="Does a model describe what it hears, and answer every kind of question about it?",
    tasks=(
        Clotho(),
        AudioCaps(),
        MmauPro(),
        _shipped("mmau_mini", "mmau-mini", "mmau"),
        _shipped("mmar"),
        _shipped("mmsu"),
    ),
    facts={
        "lalm/clotho": TaskFacts("Clotho", "captioning", 1045, (15.0, 30.0)),
        "lalm/audiocaps": TaskFacts("AudioCaps", "captioning", 975, (1.0, 10.0)),
        # The papers of these tasks state no durations.
        "lalm/mmau_pro": TaskFacts("MMAU-Pro", "understanding", 5305, (0.0, 3600.0)),
        "lalm/mmau_mini": TaskFacts("MMAU-mini", "understanding", 1000, (0.0, 3600.0)),
        "lalm/mmar": TaskFacts("MMAR", "understanding", 1000, (0.0, 3600.0)),
        "lalm/mmsu": TaskFacts("MMSU", "understanding", 5000, (0.0, 3600.0)),
    },
    hubs={"lalm/clotho": "woongvy/clotho-v2.1", "lalm/mmau_pro": "gamma-lab-umd/MMAU-Pro"},
)
