"""A stand-in for a model that only records its calls, and a task whose prompts are the samples' ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from audiomarathon.benchmarks import Sample, get_task
from audiomarathon.compression.method import Method
from audiomarathon.engine.batches import Plan
from audiomarathon.engine.engine import LocalEngine
from audiomarathon.models.generation import Generation, Reply
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.timing import Clock, Stages
from audiomarathon.runs.folder import Job


def evaluate(lm: Any, plan: Plan, jobs: Sequence[Job], say: Callable[[str], None] = lambda _line: None) -> None:
    """Evaluate a model on a plan's samples, under the settings of run folders that are already open."""
    LocalEngine(None, None, lm).evaluate(plan, jobs, say=say, progress=False)  # type: ignore[arg-type]


class Tower(torch.nn.Module):
    """An audio tower that counts its runs."""

    runs = 0

    def forward(self) -> int:
        self.runs += 1
        return self.runs


@dataclass
class FakeLM:
    """Records which samples are prepared and generated. The tower's n-th run takes 100 + n seconds on its clock.

    Attributes
    ----------
    fails
        Returns whether a call fails after the tower has run, given a setting's label and the ids of a batch.
    on_generate
        Called at the beginning of each `generate`.
    peaks
        Peak memory of the LLM by setting. The tower's peak is 50 if it runs, and 5 if its output is reused.
    """

    fails: Callable[[str, tuple[str, ...]], bool] = lambda _label, _ids: False
    on_generate: Callable[[], object] = lambda: None
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    prepared: list[tuple[str, ...]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    audio_tower: Tower = field(default_factory=Tower)
    sampling_rate = 16000
    shares_tower = True
    clock = Clock()
    device = torch.device("cpu")

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        ids = tuple(prompt.text for prompt in prompts)
        self.prepared.append(ids)
        self.seeds |= {prompt.text: prompt.seed for prompt in prompts}
        mask = torch.ones(len(ids), 4, dtype=torch.long)
        return Inputs({"input_ids": mask, "attention_mask": mask}, mask.bool(), tuple(p.seed for p in prompts))

    def generate(self, inputs: Inputs, applied: Any, *, max_new_tokens: int, **_more: object) -> Generation:
        method: Method = applied.args[0]  # the context manager of `Method.applied_to` keeps its arguments
        ids = tuple(next(id_ for id_, own_seed in self.seeds.items() if own_seed == seed) for seed in inputs.seeds)
        self.on_generate()
        self.calls.append((method.label, ids))
        self.limits.append(max_new_tokens)
        before = self.audio_tower.runs
        self.audio_tower.forward()
        if self.fails(method.label, ids):
            raise RuntimeError("no")
        ran = self.audio_tower.runs > before
        encoder = 100.0 + self.audio_tower.runs if ran else 0.001
        tower_peak = (50 if ran else 5) if self.peaks else None
        return Generation(
            replies=tuple(Reply("A", "stop", 2, (1, 2)) for _ in ids),
            stages=Stages(encoder, 2.0, 1.0),
            kept_audio_tokens=(1,) * len(ids),
            kv_lengths=(4,),
            kv_bytes=8,
            peak_memory_bytes=max(tower_peak, self.peaks[method.label]) if tower_peak else None,
            encoder_peak_memory_bytes=tower_peak,
            scoring=0.25,
        )

    def labels(self, id_: str) -> list[str]:
        """Return the settings under which a sample was run, in order."""
        return [label for label, ids in self.calls if id_ in ids]


class IdTask(type(get_task("tau"))):  # type: ignore[misc]
    """TAU, but each prompt is the sample's id."""

    def prompt(self, sample: Sample) -> str:
        return sample.id
