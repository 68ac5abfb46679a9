"""Which tasks a mean is taken over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audiomarathon.benchmarks import registry
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts
from audiomarathon.results.scopes import kind_of, scopes_of


def test_means_over_tasks_are_formed_for_each_task_group_and_for_all_tasks() -> None:
    scopes = scopes_of(["vox", "tau", "race", "had", "gtzan"])
    assert scopes == {
        "audio classification": ["tau", "gtzan"],
        "speaker": ["vox", "had"],
        "overall": ["vox", "tau", "race", "had", "gtzan"],
    }
    assert list(scopes) == ["audio classification", "speaker", "overall"]


def test_tasks_that_are_all_of_one_group_have_only_the_overall_mean() -> None:
    assert scopes_of(["tau", "gtzan"]) == {"overall": ["tau", "gtzan"]}
    assert scopes_of(["tau"]) == {}


def test_tasks_without_a_benchmark_are_left_out_of_the_mean_over_tasks() -> None:
    assert scopes_of(["tau", "gtzan", "birds", "bells"]) == {"overall": ["tau", "gtzan"]}
    assert scopes_of(["birds", "bells"]) == {}


def test_tasks_of_two_benchmarks_never_share_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of the same name in two benchmarks are two groups."""
    tasks = tuple(type("Made", (Tau,), {"key": f"made/{name}", "aliases": ()})() for name in "abcd")
    facts = {
        task.key: TaskFacts("", group, 1, (0, 1)) for task, group in zip(tasks, ["speaker"] * 3 + ["x"], strict=True)
    }
    made = (AUDIOMARATHON, Benchmark("made", "Made", tasks, facts))
    monkeypatch.setattr(registry, "built_in", lambda: made)
    scopes = scopes_of(["vox", "had", "tau", *(task.key for task in tasks)])
    assert scopes == {
        "audiomarathon speaker": ["vox", "had"],
        "audiomarathon overall": ["vox", "had", "tau"],
        "made speaker": ["made/a", "made/b", "made/c"],
        "made overall": [task.key for task in tasks],
    }
    assert {kind_of(scope, members) for scope, members in scopes.items()} == {"group", "overall"}


def test_task_weights_of_a_benchmark_are_scaled_to_a_mean_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.weights_of(["tau", "vox"]) == [1.0, 1.0]
    made = (replace(AUDIOMARATHON, weights={"tau": 3.0, "vox": 1.0}),)
    monkeypatch.setattr(registry, "built_in", lambda: made)
    assert registry.weights_of(["tau", "vox"]) == [1.5, 0.5]


def test_scores_on_different_scales_have_no_mean() -> None:
    """CIDEr-D reaches 10, accuracy 1."""
    assert scopes_of(["lalm/clotho", "lalm/mmau_pro"]) == {}
    assert scopes_of(["lalm/clotho", "lalm/audiocaps"]) == {"overall": ["lalm/clotho", "lalm/audiocaps"]}
    assert scopes_of(["lalm/clotho", "lalm/audiocaps", "lalm/mmau_pro"]) == {
        "captioning": ["lalm/clotho", "lalm/audiocaps"]
    }
