"""The loop over samples and settings, watched through a model that only writes down what it is asked."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import task_folders
import torch

from audiomarathon.evaluation.batches import Plan
from audiomarathon.evaluation.evaluate import Job, evaluate
from audiomarathon.evaluation.records import RunFolder
from audiomarathon.evaluation.timing import Stages
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation, Reply
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.pruning.method import Method
from audiomarathon.pruning.registry import get_method
from audiomarathon.tasks import Sample, get_task

METHODS = (get_method("base"), get_method("frame", 0.5), get_method("random", 0.9))
BASE, FRAME, RANDOM = (method.label for method in METHODS)


class Tower(torch.nn.Module):
    """An audio tower that counts its runs."""

    runs = 0

    def forward(self) -> int:
        self.runs += 1
        return self.runs


@dataclass
class FakeLM:
    """Writes down what is prepared and generated; a call takes as many seconds in the tower as the tower has runs.

    Attributes
    ----------
    fails
        Given a setting's label and the ids of a batch, whether the call is to fail after the tower has run.
    on_generate
        Called at the beginning of each call.
    peaks
        Of memory in the LLM, by setting; the tower's is 50 where it runs, 5 where it is answered from memory.
    """

    fails: Callable[[str, tuple[str, ...]], bool] = lambda _label, _ids: False
    on_generate: Callable[[], object] = lambda: None
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    prepared: list[tuple[str, ...]] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    audio_tower: Tower = field(default_factory=Tower)
    sampling_rate = 16000
    device = torch.device("cpu")

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        ids = tuple(prompt.text for prompt in prompts)
        self.prepared.append(ids)
        self.seeds |= {prompt.text: prompt.seed for prompt in prompts}
        mask = torch.ones(len(ids), 4, dtype=torch.long)
        return Inputs({"input_ids": mask, "attention_mask": mask}, mask.bool(), tuple(p.seed for p in prompts))

    def generate(self, inputs: Inputs, method: Method, *, max_new_tokens: int, **_more: object) -> Generation:
        ids = tuple(next(id_ for id_, own in self.seeds.items() if own == seed) for seed in inputs.seeds)
        self.on_generate()
        self.calls.append((method.label, ids))
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
        """The settings under which a sample was run, in their order."""
        return [label for label, ids in self.calls if id_ in ids]


class IdTask(type(get_task("tau"))):  # type: ignore[misc]
    """TAU, but what is asked is the sample's id."""

    def prompt(self, sample: Sample) -> str:
        return sample.id


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return task_folders.write_clip(tmp_path_factory.mktemp("clip") / "a.wav", seconds=0.1)


@pytest.fixture
def plan(clip: Path) -> Callable[..., Plan]:
    """Make a plan over samples of these ids."""

    def make(ids: Sequence[str], **settings: Any) -> Plan:
        labels = ("bus", "tram")
        samples = tuple(Sample(id_, (clip,), "Which?", "A", id_, labels, labels) for id_ in ids)
        return Plan(IdTask(), samples, 8, **{"warm_up": False, **settings})

    return make


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[..., list[Job]]]:
    """Make jobs of methods, their folders entered."""
    with ExitStack() as stack:

        def make(*methods: Method) -> list[Job]:
            return [
                Job(method, stack.enter_context(RunFolder(tmp_path / method.label, {"method": method.label})))
                for method in methods
            ]

        yield make


def lines(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.folder.samples_file.read_text().splitlines()]


def test_settings_take_turns_at_going_first(plan, jobs) -> None:
    lm = FakeLM()
    evaluate(lm, plan(["a", "b", "c", "d"]), jobs(*METHODS), progress=False)
    assert [lm.labels(id_) for id_ in "abcd"] == [
        [BASE, FRAME, RANDOM],
        [FRAME, RANDOM, BASE],
        [RANDOM, BASE, FRAME],
        [BASE, FRAME, RANDOM],
    ]


class TestSharedEncoder:
    def test_the_tower_runs_once_a_sample_and_its_time_is_everybodys(self, plan, jobs) -> None:
        lm, made = FakeLM(), jobs(*METHODS)
        evaluate(lm, plan(["a", "b"]), made, progress=False)
        assert lm.audio_tower.runs == 2
        assert [[line["time"]["encoder"] for line in lines(job)] for job in made] == [[101.0, 102.0]] * 3

    def test_the_towers_peak_of_memory_is_everybodys_and_the_llms_its_own(self, plan, jobs) -> None:
        lm, made = FakeLM(peaks={BASE: 80, FRAME: 60, RANDOM: 20}), jobs(*METHODS)
        evaluate(lm, plan(["a", "b", "c"]), made, progress=False)
        found = [[line["peak_memory_bytes"] for line in lines(job)] for job in made]
        assert found == [[80] * 3, [60] * 3, [50] * 3]  # whoever went first

    def test_a_first_setting_that_fails_leaves_no_output_whose_time_nobody_knows(self, plan, jobs) -> None:
        lm = FakeLM(fails=lambda label, _ids: label == BASE)
        base, *others = jobs(*METHODS)
        evaluate(lm, plan(["a"]), [base, *others], progress=False)
        assert lm.audio_tower.runs == 2
        assert [line["error"] for line in lines(base)] == ["RuntimeError: no"]
        assert [line["time"]["encoder"] for job in others for line in lines(job)] == [102.0, 102.0]

    def test_a_later_setting_that_fails_costs_no_second_run(self, plan, jobs) -> None:
        lm, made = FakeLM(fails=lambda label, _ids: label == FRAME), jobs(*METHODS)
        evaluate(lm, plan(["a"]), made, progress=False)
        assert lm.audio_tower.runs == 1
        assert [lines(job)[0]["time"]["encoder"] for job in (made[0], made[2])] == [101.0, 101.0]


class TestWarmUp:
    def test_runs_every_setting_once_and_is_not_recorded(self, plan, jobs) -> None:
        lm, made = FakeLM(), jobs(*METHODS)
        evaluate(lm, plan(["a", "b", "c"], warm_up=True), made, progress=False)
        assert Counter(lm.calls) == Counter(
            {(method.label, (id_,)): 2 if id_ == "a" else 1 for method in METHODS for id_ in "abc"}
        )
        assert lm.labels("a")[:3] == [BASE, FRAME, RANDOM]
        assert [[line["id"] for line in lines(job)] for job in made] == [["a", "b", "c"]] * 3
        # The tower ran once a setting to warm up, then once a sample, which alone is recorded.
        assert [line["time"]["encoder"] for line in lines(made[0])] == [104.0, 105.0, 106.0]

    def test_of_a_killed_sweep_warms_up_what_its_first_sample_no_longer_lacks(self, plan, jobs) -> None:
        made = jobs(*METHODS[:2])
        evaluate(FakeLM(), plan(["a"]), made[:1], progress=False)
        evaluate(lm := FakeLM(), plan(["a", "b"], warm_up=True), made, progress=False)
        assert Counter(lm.calls) == {(FRAME, ("a",)): 2, (BASE, ("a",)): 1, (BASE, ("b",)): 1, (FRAME, ("b",)): 1}

    def test_is_for_times_only(self, plan, jobs) -> None:
        lm = FakeLM()
        evaluate(lm, plan(["a", "b"], warm_up=True, batch_size=1), jobs(METHODS[0]), progress=False)
        assert lm.calls == [(BASE, ("a",)), (BASE, ("b",))]

    def test_that_fails_leaves_the_record_to_the_counted_run(self, plan, jobs) -> None:
        lm, (job,) = FakeLM(fails=lambda _label, _ids: len(lm.calls) == 1), jobs(METHODS[0])
        evaluate(lm, plan(["a", "b"], warm_up=True), [job], progress=False)
        assert lm.labels("a") == [BASE, BASE]
        assert [(line["id"], line["error"]) for line in lines(job)] == [("a", None), ("b", None)]


class TestPrefetching:
    def test_works_while_the_model_does_and_no_further_than_two_batches_ahead(self, plan, jobs) -> None:
        begun = threading.Event()
        ahead: list[int] = []

        def watch() -> None:
            if not ahead:
                begun.wait(20)
                time.sleep(0.2)  # a queue without an end would fill here
            ahead.append(len(lm.prepared) - len(lm.calls) - 1)

        @dataclass
        class Watched(FakeLM):
            def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
                found = super().prepare(prompts)
                if len(self.prepared) > 1:
                    begun.set()
                return found

        lm = Watched(on_generate=watch)
        ids = [f"{number:02}" for number in range(24)]
        (job,) = jobs(METHODS[0])
        evaluate(lm, plan(ids, batch_size=2), [job], progress=False)
        assert [ids for _label, ids in lm.calls] == list(zip(ids[::2], ids[1::2], strict=True))
        assert 1 <= ahead[0] <= 2
        assert max(ahead) <= 2
        assert [line["error"] for line in lines(job)] == [None] * 24

    def test_nothing_is_prepared_ahead_while_times_are_taken(self, plan, jobs) -> None:
        ahead: list[int] = []
        lm = FakeLM(on_generate=lambda: ahead.append(len(lm.prepared) - len(lm.calls) - 1))
        evaluate(lm, plan(["a", "b", "c"]), jobs(METHODS[0]), progress=False)
        assert ahead == [0, 0, 0]


class TestResumedBatches:
    def test_samples_with_the_same_settings_to_do_are_one_batch(self, plan, jobs) -> None:
        lm = FakeLM()
        evaluate(lm, plan(["a", "b"], batch_size=2), jobs(METHODS[0], METHODS[1]), progress=False)
        assert lm.calls == [(BASE, ("a", "b")), (FRAME, ("a", "b"))]

    @pytest.mark.parametrize("recorded", ["a", "b"])
    def test_samples_with_different_settings_to_do_are_not(self, plan, jobs, recorded: str) -> None:
        lm, made = FakeLM(), jobs(METHODS[0], METHODS[1])
        made[0].folder.append({"id": recorded, "error": None, "reply": "kept"})
        evaluate(lm, plan(["a", "b"], batch_size=2), made, progress=False)
        todo = {(FRAME, ("a",)), (FRAME, ("b",)), (BASE, ("b" if recorded == "a" else "a",))}
        assert Counter(lm.calls) == Counter(todo)
        assert [sorted(line["id"] for line in lines(job)) for job in made] == [["a", "b"]] * 2
        assert made[0].folder.records[recorded]["reply"] == "kept"

    def test_a_batch_that_fails_under_one_setting_keeps_what_the_others_recorded(self, plan, jobs) -> None:
        lm, made = FakeLM(fails=lambda label, ids: label == FRAME and "b" in ids), jobs(METHODS[0], METHODS[1])
        evaluate(lm, plan(["a", "b"], batch_size=2), made, progress=False)
        assert lm.calls == [(BASE, ("a", "b")), (FRAME, ("a", "b")), (FRAME, ("a",)), (FRAME, ("b",))]
        assert [line["error"] for line in lines(made[1])] == [None, "RuntimeError: no"]


class TestSeeds:
    def test_come_from_the_run_and_the_sample_alone(self, plan, jobs) -> None:
        (job,) = jobs(METHODS[0])

        def seeds(ids: str, **settings: Any) -> dict[str, int]:
            lm = FakeLM()
            job.folder.records.clear()
            evaluate(lm, plan(list(ids), **settings), [job], progress=False)
            return lm.seeds

        found = seeds("abc")
        assert len(set(found.values())) == 3
        assert found["a"] == 0x97134479  # printf 42:a | sha256sum: the same on every machine
        assert seeds("cba", batch_size=2) == found
        assert seeds("b") == {"b": found["b"]}
        other = seeds("abc", seed=43)
        assert not set(other.values()) & set(found.values())


class TestScoringTime:
    def test_is_what_the_model_reports(self, plan, jobs) -> None:
        (job,) = jobs(METHODS[1])
        evaluate(FakeLM(), plan(["a"]), [job], progress=False)
        assert lines(job)[0]["time"]["scoring"] == 0.25

    @pytest.mark.parametrize("name", ["fast_v", "dart", "snapkv"])
    def test_of_a_method_that_scores_is_a_part_of_prefill(self, name: str, lm: AudioLM, plan, jobs) -> None:
        scoring, base = jobs(get_method(name, 0.5), METHODS[0])
        evaluate(lm, plan(["a"]), [scoring, base], progress=False)
        times = lines(scoring)[0]["time"]
        assert 0 < times["scoring"] < times["llm_prefill"]
        assert lines(base)[0]["time"]["scoring"] == 0
