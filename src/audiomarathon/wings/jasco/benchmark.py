"""JASCO as a benchmark: its only task, the size, source and licence of its data, and the published scores of models."""

from __future__ import annotations

from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.wings.jasco.task import Jasco

#: What a reply may depend on: the clip's sound ("audio"), its speech, both or neither.
LEANINGS = ("audio", "both", "speech", "neither")

#: Published figures of each model, judged by three judges (prompt v2), and by Llama-3.1-70B alone (prompt v1, README of
#: commit e728f83). Each row is best-mean, then the shares of replies that depend on audio, on both and on speech.
DEPENDENCE = {
    "WavLLM-7B": ((0.31, 0.12, 0.11, 0.77), (0.49, 0.09, 0.17, 0.74)),
    "LTU-AS-7B": ((0.99, 0.23, 0.40, 0.37), (1.04, 0.19, 0.49, 0.32)),
    "SALMONN-7B": ((1.10, 0.31, 0.42, 0.27), (1.21, 0.27, 0.48, 0.25)),
    "Qwen2-Audio-Instruct-7B": ((1.23, 0.16, 0.50, 0.34), (1.38, 0.13, 0.56, 0.31)),
}

#: The paper's judges.
JUDGES = ("llama-3.1-70b", "qwen2.5-72b", "mistral-large-2411")

JASCO = Benchmark(
    key="jasco",
    title="Does a model use the sound and the speech of a clip together?",
    tasks=(Jasco(),),
    facts={"jasco": TaskFacts("JASCO", "", 640, (1.6, 10.0))},
    published={model: {"jasco": panel[0]} for model, (panel, _llama) in DEPENDENCE.items()},
    archive="https://github.com/BenoitWang/What_Are_They_Doing/archive/refs/heads/main.zip",
    licence="CC-BY-NC-4.0",  # licence of the data; the code is Apache-2.0
    models=dict.fromkeys(("qwen2-audio", "qwen2-audio-30s"), "Qwen2-Audio-Instruct-7B"),
)
