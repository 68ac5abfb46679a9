"""Pruning decides what the model hears: without the needle's tokens it guesses, with them it answers as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from conftest import ALL

from audiomarathon.audio import decode as audio
from audiomarathon.benchmarks import get_task
from audiomarathon.compression.method import Base, kept_count
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.embedded import CHECKPOINT, mini_benchmark
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.engine.run import run
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni
from audiomarathon.records import Record
from audiomarathon.settings import RunSettings

TASKS = ("desed", "slue", "race", "had")
MARGIN = 0.1  # seconds on both sides, because tokens on an edge belong to the needle too


@dataclass(frozen=True)
class DropNeedle(TokenPruner):
    """Drop the needle's tokens, and random others up to the ratio."""

    key: ClassVar[str] = "drop_needle"
    title: ClassVar[str] = "all but what decides the answer"
    worth: ClassVar[float] = -1.0

    layer: int = 0
    needle: tuple[int, int] = (0, 0)

    def select(self, evidence: Evidence) -> torch.Tensor:
        places = torch.arange(len(evidence.positions))
        inside = (places >= self.needle[0]) & (places < self.needle[1])
        chance = torch.rand(len(places), generator=torch.Generator().manual_seed(evidence.seed))
        return (chance + self.worth * inside).topk(evidence.n_keep).indices


@dataclass(frozen=True)
class KeepNeedle(DropNeedle):
    """Keep the needle's tokens, and drop random others up to the ratio."""

    key: ClassVar[str] = "keep_needle"
    title: ClassVar[str] = "what decides the answer, and some more"
    worth: ClassVar[float] = 1.0


@pytest.fixture(scope="module")
def lm() -> AudioLM:
    return Qwen2_5Omni.load(CHECKPOINT, device="cpu", dtype="float32", attn_implementation="sdpa")


def verdicts(lm: AudioLM, root: Path, name: str) -> Iterator[dict[str, bool]]:
    """Yield whether base, and both methods at two ratios, are right on up to six samples with a needle.

    `make test` uses only 40 s of each clip, around the needle.
    """
    task = get_task(name)
    holding = [sample for sample in task.load(root / name).samples if sample.meta.get("event_onset") is not None]
    decode = cache(audio.decode)
    for sample in holding[:6]:
        clip, onset = decode(sample.clips[0], lm.sampling_rate), float(sample.meta["event_onset"])
        begin = 0 if ALL else max(0, round(onset) - 18)
        clip = clip if ALL else clip[begin * lm.sampling_rate :][: 40 * lm.sampling_rate]
        inputs = lm.prepare([Prompt(task.prompt(sample), (clip,), seed=1)])
        (total,), onset = inputs.audio_tokens, onset - begin
        end = onset + float(sample.meta["event_seconds"])
        needle = int((onset - MARGIN) * 25), int((end + MARGIN) * 25) + 1
        alone = round((needle[1] - needle[0]) / total, 6)
        assert kept_count(total, alone) == total - (needle[1] - needle[0])
        answers = {}
        with encoder_shared(lm):
            for label, method in {
                "base": Base(),
                "dropped": DropNeedle(alone, needle=needle),
                "kept": KeepNeedle(alone, needle=needle),
                "dropped of 0.9": DropNeedle(0.9, needle=needle),
                "kept of 0.9": KeepNeedle(0.9, needle=needle),
            }.items():
                done = method.generate(lm, inputs, max_new_tokens=4)
                if label == "dropped":
                    audio_tokens = inputs.audio_mask[0].nonzero().flatten()
                    left = torch.isin(audio_tokens, done.kept_positions[0])
                    assert torch.equal(left.logical_not().nonzero().flatten(), torch.arange(*needle))
                record = Record(sample.id, reply=done.replies[0].text, reference=task.reference(sample))
                answers[label] = task.scorer.judge(record)["correct"]
        yield answers


@pytest.mark.parametrize("name", [TASKS[0], *(pytest.param(name, marks=pytest.mark.long) for name in TASKS[1:])])
def test_replies_are_correct_only_if_the_tokens_of_the_planted_sound_are_kept(
    lm: AudioLM, tmp_path: Path, name: str
) -> None:
    root = mini_benchmark.generate(tmp_path, progress=False, tasks=[name], limit=8 if ALL else 3)
    answers = list(verdicts(lm, root, name))
    right = {label: sum(answer[label] for answer in answers) for label in answers[0]}
    assert right["base"] >= len(answers) - 1, "there is little to lose"
    assert right["kept"] == right["base"]
    assert right["kept of 0.9"] >= right["base"]
    assert right["dropped"] <= len(answers) / 3, "chance is a quarter; for had the absence of a needle is an answer"
    assert right["dropped of 0.9"] <= len(answers) / 3


@pytest.mark.long
def test_random_pruning_of_the_embedded_model_costs_far_more_at_the_input_than_at_layer_2(tmp_path: Path) -> None:
    data = mini_benchmark.generate(tmp_path / "mini", progress=False, tasks=TASKS)
    settings = RunSettings(data=str(data), results=tmp_path / "results", timing=False, max_new_tokens=8)
    methods = [Base(), get_method("random", 0.9, at="input"), get_method("random", 0.9, layer=2)]
    scores: dict[str, list[float]] = {method.label: [] for method in methods}
    for finished in run(TASKS, "embedded", settings, methods, progress=False):
        scores[finished.folder.name].append(finished.summary["macro_f1"])
    base, at_input, at_layer_2 = (sum(of_method) / len(TASKS) for of_method in scores.values())
    assert base >= 0.9
    assert base - at_input >= 0.3
    assert base - at_layer_2 < 0.1
