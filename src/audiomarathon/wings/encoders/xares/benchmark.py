"""X-ARES as a benchmark: its tasks, grouped by domain (speech, environment, music).

Our means give all tasks equal weights, not the published weights.
"""

from __future__ import annotations

from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.wings.encoders.xares.tasks import TASKS

XARES = Benchmark(
    key="xares",
    title="What does an audio encoder know of speech, environment and music?",
    tasks=TASKS,
    facts={task.key: TaskFacts(task.formal_name, task.domain, task.n_test, None) for task in TASKS},
)
