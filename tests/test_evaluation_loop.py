"""The loop over samples and settings, tested with a fake model that records its calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import task_folders
import torch
from builders import a_record, lines_of, typed
from fake_lm import FakeLM, IdTask, evaluate

from audiomarathon import files
from audiomarathon.audio import decode as audio
from audiomarathon.benchmarks import Sample
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.compression.method import Method
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.token_pruner import Evidence
from audiomarathon.costs.memory_plan import largest_batch
from audiomarathon.engine import evaluate as loop
from audiomarathon.engine.batches import Plan, by_length, in_batches, sample_seed
from audiomarathon.engine.engine import Engine
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.records import Record
from audiomarathon.runs.folder import Job, RunFolder
from audiomarathon.runs.record_line import unpack
from audiomarathon.runs.summary import samples_a_second

METHODS = (get_method("base"), get_method("frame", 0.5), get_method("random", 0.9))
BASE, FRAME, RANDOM = (method.label for method in METHODS)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return task_folders.write_clip(tmp_path_factory.mktemp("clip") / "a.wav", seconds=0.5)


def a_sample(id_: str, *clips: Path, **facts: Any) -> Sample:
    """A question with two options about clips."""
    return Sample(id_, clips, "Which?", "A", id_, ("bus", "tram"), ("bus", "tram"), **facts)


@pytest.fixture
def plan(clip: Path) -> Callable[..., Plan]:
    """Make plans for samples with given ids."""

    def make(ids: Sequence[str], **settings: Any) -> Plan:
        return Plan(IdTask(), tuple(a_sample(id_, clip) for id_ in ids), 8, **{"warm_up": False, **settings})

    return make


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[..., list[Job]]]:
    """Make a job for each method and open its run folder."""
    with ExitStack() as stack:

        def make(*methods: Method) -> list[Job]:
            return [
                Job(method, stack.enter_context(RunFolder(tmp_path / method.label, {"method": method.label})))
                for method in methods
            ]

        yield make


def lines(job: Job) -> list[dict[str, Any]]:
    return lines_of(job.folder.samples_file)


@pytest.fixture
def base_lines(plan, jobs) -> Callable[..., list[dict[str, Any]]]:
    """Run base on samples with given ids; return the lines of its records."""

    def run(ids: Sequence[str], lm: FakeLM | None = None, **settings: Any) -> list[dict[str, Any]]:
        (job,) = jobs(METHODS[0])
        evaluate(lm or FakeLM(), plan(ids, **settings), [job])
        return lines(job)

    return run


def test_the_evaluation_loop_records_replies_without_scoring_them(base_lines, monkeypatch) -> None:
    monkeypatch.setattr(type(IdTask.scorer), "judge", lambda *_: pytest.fail("was asked"))
    assert [(line["id"], line["error"]) for line in base_lines("abc")] == [("a", None), ("b", None), ("c", None)]


@pytest.mark.parametrize("size", [None, 3])
def test_an_invalid_token_selection_by_a_pruner_is_an_error_record_of_that_sample_only(
    lm: AudioLM, plan, jobs, size
) -> None:
    class Repeats(Frame):
        def select(self, evidence: Evidence) -> torch.Tensor:
            sound = super().select(evidence)
            return torch.zeros_like(sound) if evidence.seed == sample_seed(42, "b") else sound

    (job,) = jobs(Repeats(0.3))
    evaluate(lm, plan(["a", "b", "c"], batch_size=size), [job])
    a, b, c = (line["error"] for line in lines(job))
    assert (a, c) == (None, None)
    assert b.startswith("MethodError: frame-0.3-layer2 kept a prompt position twice")


def test_ctrl_c_while_a_record_is_stored_keeps_replies_that_arrived_meanwhile(plan, jobs, monkeypatch) -> None:
    class Endpoint(Engine):
        def answer(self, *_: Any) -> Generator[tuple[str, Record]]:
            try:
                yield BASE, Record(**a_record("a"))
            except KeyboardInterrupt:
                yield from ((BASE, Record(**a_record(id_))) for id_ in "bc")
                raise

    (job,) = jobs(METHODS[0])
    append = job.folder.append

    def interrupted(record: Record) -> None:
        if record.id == "a":
            raise KeyboardInterrupt
        append(record)

    monkeypatch.setattr(job.folder, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Endpoint(None, None).evaluate(plan(["a", "b", "c"]), [job], progress=False)  # type: ignore[arg-type]
    assert [line["id"] for line in lines(job)] == ["b", "c"]


def test_settings_take_turns_in_running_first_on_a_sample(plan, jobs) -> None:
    lm = FakeLM()
    evaluate(lm, plan(["a", "b", "c", "d"]), jobs(*METHODS))
    first = [BASE, FRAME, RANDOM]
    assert [lm.labels(id_) for id_ in "abcd"] == [first, [FRAME, RANDOM, BASE], [RANDOM, BASE, FRAME], first]


class TestWarmPass:
    """On a GPU, each recorded call follows an uncounted one of the same sample and setting."""

    def test_with_a_warm_pass_each_setting_runs_a_sample_once_before_its_recorded_call(self, plan, jobs) -> None:
        lm = FakeLM()
        evaluate(lm, plan(["a", "b"], warm=True, warm_up=True), jobs(*METHODS[:2]))
        assert lm.labels("a") == [BASE, BASE, FRAME, FRAME]
        assert lm.labels("b") == [FRAME, FRAME, BASE, BASE]

    def test_with_a_warm_pass_the_audio_tower_is_timed_once_per_sample_for_all_settings(self, plan, jobs) -> None:
        """The fake tower reports 100 s plus its number of runs: one warm run, then one for the records."""
        lm, both = FakeLM(), jobs(*METHODS[:2])
        evaluate(lm, plan(["a", "b"], warm=True), both)
        times = [(line["time"]["encoder"], line["encoder_shared"]) for job in both for line in lines(job)]
        assert times == [(102.0, True), (104.0, True)] * 2
        assert all(line["warmed"] > 0 for job in both for line in lines(job))

    def test_an_error_in_the_warm_pass_is_recorded_only_if_the_recorded_call_fails_too(self, plan, jobs) -> None:
        lm, both = FakeLM(fails=lambda label, _ids: label == BASE), jobs(*METHODS[:2])
        evaluate(lm, plan(["a"], warm=True), both)
        assert [[line["error"] for line in lines(job)] for job in both] == [["RuntimeError: no"], [None]]
        assert lines(both[1])[0]["time"]["encoder"] == 100.0 + lm.audio_tower.runs


class TestBusySeconds:
    """After a sample's last record, each setting runs once more under the profiler, which updates the record."""

    @pytest.fixture(autouse=True)
    def no_gpu(self, monkeypatch) -> None:
        monkeypatch.setattr(loop, "busy_seconds", lambda _lm: nullcontext())

    def test_gpu_busy_seconds_are_recorded_only_for_the_profiled_samples(self, plan, jobs) -> None:
        lm, both = FakeLM(), jobs(*METHODS[:2])
        evaluate(lm, plan(["a", "b"], profiled=frozenset("a")), both)
        assert lm.labels("a") == [BASE, FRAME, BASE, FRAME]
        for job in both:
            first, second = lines(job)
            assert first["busy"] == {"encoder": 102.0, "llm_prefill": 2.0, "decode": 1.0, "steps": 1}
            assert first["time"]["encoder"] == 101.0
            assert "busy" not in second

    def test_if_profiling_fails_records_lack_gpu_busy_seconds_and_one_message_says_so(self, plan, jobs) -> None:
        said, calls = list[str](), Counter[str]()

        def fails(label: str, _ids: tuple[str, ...]) -> bool:
            calls[label] += 1
            return label == BASE and calls[label] % 2 == 0

        both = jobs(*METHODS[:2])
        evaluate(FakeLM(fails=fails), plan(["a", "b"], profiled=frozenset("ab")), both, said.append)
        assert [["busy" in line for line in lines(job)] for job in both] == [[False, False], [True, True]]
        assert [line["reply"] for job in both for line in lines(job)] == ["A"] * 4
        assert said == ["tau: busy seconds of the GPU are missing: RuntimeError: no"]

    def test_gpu_busy_seconds_are_profiled_over_at_most_64_tokens_of_a_reply(self, plan, jobs) -> None:
        """The profiler keeps a limited number of kernels."""
        evaluate(lm := FakeLM(), replace(plan(["a"], profiled=frozenset("a")), max_new_tokens=500), jobs(METHODS[0]))
        assert lm.limits == [500, 64]

    @pytest.mark.parametrize("calls", [1, 2], ids=["while another setting runs", "while they are measured"])
    def test_profiling_interrupted_by_ctrl_c_loses_no_record(self, plan, jobs, calls: int) -> None:
        lm, both = FakeLM(), jobs(*METHODS[:2])

        def interrupt() -> None:
            if len(lm.calls) == calls:
                raise KeyboardInterrupt

        lm.on_generate = interrupt
        with pytest.raises(KeyboardInterrupt):
            evaluate(lm, plan(["a"], profiled=frozenset("a")), both)
        assert [line["reply"] for job in both[:calls] for line in lines(job)] == ["A"] * calls


class TestRecords:
    """Which facts of a batch each record contains."""

    class Telling(FakeLM):
        """Report different facts for each row."""

        def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
            count = len(prompts)
            heard = tuple(float(row) for row in range(1, count + 1))
            return replace(super().prepare(prompts), truncated=(False, True)[:count], heard_seconds=heard)

        def generate(self, inputs: Inputs, applied: Any, **options: Any) -> Generation:
            done = super().generate(inputs, applied, **options)
            kept = (torch.tensor([0, 1]), torch.tensor([2, 3]))[: len(done.replies)]
            replies = tuple(replace(reply, transcript="so") for reply in done.replies)
            return replace(done, replies=replies, kept_positions=kept, kept_audio_tokens=(2, 3)[: len(kept)])

    def test_each_record_of_a_batch_holds_the_values_of_its_own_sample(self, base_lines) -> None:
        records = base_lines("ab", self.Telling(), batch_size=2)
        facts = [(line["truncated"], line["clip_seconds"], line["kept_audio_tokens"]) for line in records]
        assert facts == [(False, 1.0, 2), (True, 2.0, 3)]
        assert [unpack(line["kept_audio_bits"], 4).tolist() for line in records] == [[1, 1, 0, 0], [0, 0, 1, 1]]

    @pytest.mark.parametrize("size", [None, 1, 2])
    def test_cache_sizes_are_recorded_unless_several_samples_are_batched(self, base_lines, size) -> None:
        sizes = (None, None, None) if size == 2 else ([4], 8, 80)
        for line in base_lines("ab", FakeLM(peaks={BASE: 80}), batch_size=size, session="s"):
            assert (line["kv_lengths"], line["kv_bytes"], line["peak_memory_bytes"]) == sizes
            untimed, batched = size is not None, size == 2
            assert [line.get(name) is None for name in ("time", "encoder_shared")] == [untimed] * 2
            assert (line.get("session") is None, "batch" in line) == (untimed and not batched, batched)

    @pytest.mark.parametrize("transcribes", [True, False])
    def test_records_hold_a_transcript_only_in_transcription_tasks(self, base_lines, monkeypatch, transcribes) -> None:
        monkeypatch.setattr(IdTask, "transcribes", transcribes)
        assert base_lines("a", self.Telling())[0].get("transcript") == ("so" if transcribes else None)

    def test_records_hold_the_session_of_the_run_and_the_kind_of_audio_control(self, base_lines) -> None:
        lm = FakeLM(fails=lambda _label, ids: ids == ("a",))
        failed, answered = base_lines("ab", lm, session="now 1", control="silence")
        assert (bool(failed["error"]), bool(answered["error"])) == (True, False)
        assert (failed["session"], answered["session"], answered["control"]) == ("now 1", "now 1", "silence")

    def test_a_record_holds_the_total_duration_of_all_clips_of_its_sample(self, plan, jobs) -> None:
        asked, (job,) = plan(["a"]), jobs(METHODS[0])
        (sample,) = asked.samples
        evaluate(FakeLM(), replace(asked, samples=(replace(sample, clips=sample.clips * 3),)), [job])
        assert lines(job)[0]["clip_seconds"] == 1.5

    def test_samples_about_one_clip_share_one_run_of_the_audio_tower(self, plan, jobs) -> None:
        """The samples form a bundle about one clip, and there is only one setting."""
        lm, asked, (job,) = FakeLM(), plan(["a", "b"]), jobs(METHODS[0])
        bundled = tuple(replace(sample, bundle="one") for sample in asked.samples)
        evaluate(lm, replace(asked, samples=bundled), [job])
        assert lm.audio_tower.runs == 1
        towers = [(line["encoder_shared"], line["time"]["encoder"]) for line in lines(job)]
        assert towers == [(False, 101.0), (True, 101.0)]


class TestSharedEncoder:
    def test_the_encoder_runs_once_per_sample_and_every_setting_records_its_time(self, plan, jobs) -> None:
        lm, made = FakeLM(), jobs(*METHODS)
        evaluate(lm, plan(["a", "b"]), made)
        assert lm.audio_tower.runs == 2
        assert [[line["time"]["encoder"] for line in lines(job)] for job in made] == [[101.0, 102.0]] * 3

    def test_peak_memory_of_the_encoder_counts_for_every_setting(self, plan, jobs) -> None:
        lm, made = FakeLM(peaks={BASE: 80, FRAME: 60, RANDOM: 20}), jobs(*METHODS)
        evaluate(lm, plan(["a", "b", "c"]), made)
        peaks = [[line["peak_memory_bytes"] for line in lines(job)] for job in made]
        assert peaks == [[80] * 3, [60] * 3, [50] * 3]  # in any order of settings

    @pytest.mark.parametrize(("failing", "runs"), [(0, 2), (1, 1)])
    def test_the_encoder_runs_again_only_if_the_first_setting_fails(self, plan, jobs, failing: int, runs: int) -> None:
        lm, made = FakeLM(fails=lambda label, _ids: label == METHODS[failing].label), jobs(*METHODS)
        evaluate(lm, plan(["a"]), made)
        assert lm.audio_tower.runs == runs
        assert [line["error"] for line in lines(made.pop(failing))] == ["RuntimeError: no"]
        assert [line["time"]["encoder"] for job in made for line in lines(job)] == [100.0 + runs] * 2


class TestWarmUp:
    def test_the_warm_up_runs_every_setting_once_without_recording_it(self, plan, jobs) -> None:
        lm, made = FakeLM(), jobs(*METHODS)
        evaluate(lm, plan(["a", "b", "c"], warm_up=True), made)
        assert Counter(lm.calls) == Counter(
            {(method.label, (id_,)): 2 if id_ == "a" else 1 for method in METHODS for id_ in "abc"}
        )
        assert lm.labels("a")[:3] == [BASE, FRAME, RANDOM]
        assert [[line["id"] for line in lines(job)] for job in made] == [["a", "b", "c"]] * 3
        # The tower ran once per setting to warm up, then once per sample. Only the latter is recorded.
        assert [line["time"]["encoder"] for line in lines(made[0])] == [104.0, 105.0, 106.0]

    def test_the_warm_up_of_a_resumed_sweep_also_runs_settings_recorded_before(self, plan, jobs) -> None:
        made = jobs(*METHODS[:2])
        evaluate(FakeLM(), plan(["a"]), made[:1])
        evaluate(lm := FakeLM(), plan(["a", "b"], warm_up=True), made)
        assert Counter(lm.calls) == {(FRAME, ("a",)): 2, (BASE, ("a",)): 1, (BASE, ("b",)): 1, (FRAME, ("b",)): 1}

    def test_the_warm_up_uses_the_first_sample_whose_clip_can_be_read(self, plan, jobs, tmp_path: Path) -> None:
        asked, lm, (job,) = plan(["a", "b", "c"], warm_up=True), FakeLM(), jobs(METHODS[0])
        gone = replace(asked.samples[0], clips=(tmp_path / "gone.wav",))
        evaluate(lm, replace(asked, samples=(gone, *asked.samples[1:])), [job])
        assert [lm.labels(id_) for id_ in "abc"] == [[], [BASE, BASE], [BASE]]
        assert [bool(line["error"]) for line in lines(job)] == [True, False, False]

    def test_the_warm_up_is_left_out_in_untimed_runs(self, base_lines) -> None:
        base_lines("ab", lm := FakeLM(), warm_up=True, batch_size=1)
        assert lm.calls == [(BASE, ("a",)), (BASE, ("b",))]

    def test_a_warm_up_that_fails_leaves_no_error_record(self, base_lines) -> None:
        lm = FakeLM(fails=lambda _label, _ids: len(lm.calls) == 1)
        records = base_lines("ab", lm, warm_up=True)
        assert lm.labels("a") == [BASE, BASE]
        assert [(line["id"], line["error"]) for line in records] == [("a", None), ("b", None)]


class TestPrefetching:
    def test_at_most_two_batches_are_prepared_ahead_while_the_model_runs(self, base_lines) -> None:
        ahead: list[int] = []

        def watch() -> None:
            end = time.monotonic() + 20
            while not ahead and len(lm.prepared) < 2 and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0 if ahead else 0.1)  # an unbounded queue would fill here
            ahead.append(len(lm.prepared) - len(lm.calls) - 1)

        lm = FakeLM(on_generate=watch)
        ids = [f"{number:02}" for number in range(24)]
        assert [line["error"] for line in base_lines(ids, lm, batch_size=2)] == [None] * 24
        assert [ids for _label, ids in lm.calls] == list(zip(ids[::2], ids[1::2], strict=True))
        assert 1 <= ahead[0] <= 2
        assert max(ahead) <= 2

    def test_no_batch_is_prepared_ahead_in_a_timed_run(self, base_lines) -> None:
        ahead: list[int] = []
        lm = FakeLM(on_generate=lambda: ahead.append(len(lm.prepared) - len(lm.calls) - 1))
        base_lines("abc", lm)
        assert ahead == [0, 0, 0]


class TestReplacedClips:
    """A record names the heard clip by its hash. A sample whose clip has changed is an error."""

    @pytest.fixture(params=[0, files._TICK_NS], ids=["hashes kept", "clips too new to keep their hashes"])
    def samples(self, tmp_path: Path, request, monkeypatch: pytest.MonkeyPatch) -> tuple[Sample, ...]:
        monkeypatch.setattr(files, "_TICK_NS", request.param)
        clips = {id_: task_folders.write_clip(tmp_path / f"{id_}.wav", seconds=0.1) for id_ in "abc"}
        time.sleep(0.02 if request.param == 0 else 0)  # two changes in one tick of the clock have the same time
        return tuple(a_sample(id_, clip) for id_, clip in clips.items())

    @pytest.mark.parametrize("size", [None, 1], ids=["timed", "prefetched"])
    def test_a_clip_replaced_during_a_run_gives_an_error_record(self, samples, jobs, size) -> None:
        def replace_last() -> None:
            task_folders.write_clip(samples[2].clips[0], seconds=0.1, hertz=880.0)

        plan = Plan(IdTask(), samples[::2], 8, batch_size=size, clips=clip_hashes(samples))
        (job,) = jobs(METHODS[0])
        if size:  # batches are prepared ahead, while the model is at work
            replace_last()
        lm = FakeLM() if size else FakeLM(on_generate=replace_last)
        evaluate(lm, plan, [job])  # type: ignore[arg-type]
        heard, replaced = (job.folder.records[id_] for id_ in "ac")
        assert heard.error is None
        assert "c.wav: changed since the run began" in str(replaced.error)
        assert job.folder.done(clip_hashes(samples)) == {"a"}

    @pytest.mark.parametrize("then", ["the clip is back", "the clip is gone"])
    def test_a_clip_replaced_only_while_it_is_decoded_gives_an_error_record(
        self, samples, jobs, monkeypatch, then
    ) -> None:
        decode, clip, content = audio.decode, samples[0].clips[0], samples[0].clips[0].read_bytes()

        def decode_another(path: Path, rate: int) -> object:
            clip.unlink()
            task_folders.write_clip(clip, seconds=0.1, hertz=880.0)
            decoded = decode(path, rate)
            clip.unlink()
            if then == "the clip is back":
                clip.write_bytes(content)
            return decoded

        monkeypatch.setattr(audio, "decode", decode_another)
        plan = Plan(IdTask(), samples[:1], 8, clips=clip_hashes(samples))
        (job,) = jobs(METHODS[0])
        evaluate(FakeLM(), plan, [job])  # type: ignore[arg-type]
        assert "changed since the run began" in str(job.folder.records["a"].error)


class TestResumedBatches:
    @pytest.mark.parametrize("recorded", ["a", "b"])
    def test_in_a_resumed_run_samples_that_need_different_settings_are_batched_separately(
        self, plan, jobs, recorded: str
    ) -> None:
        lm, made = FakeLM(), jobs(METHODS[0], METHODS[1])
        made[0].folder.append(typed(a_record(recorded, reply="kept")))
        evaluate(lm, plan(["a", "b"], batch_size=2), made)
        todo = {(FRAME, ("a",)), (FRAME, ("b",)), (BASE, ("b" if recorded == "a" else "a",))}
        assert Counter(lm.calls) == Counter(todo)
        assert [sorted(line["id"] for line in lines(job)) for job in made] == [["a", "b"]] * 2
        assert made[0].folder.records[recorded].reply == "kept"

    def test_a_batch_that_fails_under_one_setting_is_retried_singly_under_that_setting_only(self, plan, jobs) -> None:
        lm, made = FakeLM(fails=lambda label, ids: label == FRAME and "b" in ids), jobs(METHODS[0], METHODS[1])
        evaluate(lm, plan(["a", "b"], batch_size=2), made)
        assert lm.calls == [(BASE, ("a", "b")), (FRAME, ("a", "b")), (FRAME, ("a",)), (FRAME, ("b",))]
        assert [line["error"] for line in lines(made[1])] == [None, "RuntimeError: no"]


class TestOutOfMemory:
    """Batches are halved until they fit, with a single message."""

    @staticmethod
    def full(most: int, error: type[Exception] = torch.OutOfMemoryError) -> Callable[[str, tuple[str, ...]], bool]:
        def fails(_label: str, ids: tuple[str, ...]) -> bool:
            if len(ids) > most or "big" in ids:
                raise error("CUDA out of memory. " + "Tried to allocate " * 100)
            return False

        return fails

    def test_a_batch_is_halved_until_it_fits_into_memory(self, plan, jobs) -> None:
        lm, said, (job,) = FakeLM(fails=self.full(2)), [], jobs(METHODS[0])
        evaluate(lm, plan("abcdefghi", batch_size=8), [job], say=said.append)
        assert ["".join(ids) for _, ids in lm.calls] == ["abcdefgh", "abcd", "ab", "cd", "efgh", "ef", "gh", "i"]
        assert [line["error"] for line in lines(job)] == [None] * 9
        (line,) = [line for line in said if "memory" in line]
        assert line.startswith("tau: BATCH_SIZE=8 ")
        assert "halved" in line

    def test_running_out_of_memory_under_one_setting_halves_only_the_batches_of_that_setting(self, plan, jobs) -> None:
        lm = FakeLM(fails=lambda label, ids: label == FRAME and self.full(2)(label, ids))
        both = jobs(*METHODS[:2])
        evaluate(lm, plan("abcd", batch_size=4), both)
        assert lm.calls == [(BASE, tuple("abcd")), (FRAME, tuple("abcd")), (FRAME, ("a", "b")), (FRAME, ("c", "d"))]
        assert [[line["error"] for line in lines(job)] for job in both] == [[None] * 4] * 2

    @pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
    @pytest.mark.parametrize("size", [None, 4])
    def test_a_single_sample_out_of_memory_gives_an_error_naming_the_settings_that_help(
        self, base_lines, size: int | None, error: type[Exception]
    ) -> None:
        records = base_lines(["a", "big", "c"], FakeLM(fails=self.full(4, error)), batch_size=size)
        failed = {line["id"]: line["error"] for line in records if line["error"]}
        assert list(failed) == ["big"]
        assert len(failed["big"]) <= 500
        for words in ("DTYPE", "DEVICE_MAP", error.__name__):
            assert words in failed["big"]


def test_the_seed_of_a_sample_depends_only_on_the_seed_of_the_run_and_the_sample_id(plan, jobs) -> None:
    (job,) = jobs(METHODS[0])

    def seeds(ids: str, **settings: Any) -> dict[str, int]:
        lm = FakeLM()
        job.folder.records.clear()
        evaluate(lm, plan(ids, **settings), [job])
        return lm.seeds

    by_sample = seeds("abc")
    assert len(set(by_sample.values())) == 3
    assert by_sample["a"] == 0x97134479  # printf 42:a | sha256sum: the same on every machine
    assert seeds("cba", batch_size=2) == by_sample
    assert seeds("b") == {"b": by_sample["b"]}
    assert not set(seeds("abc", seed=43).values()) & set(by_sample.values())


def test_the_token_scoring_time_in_a_record_is_the_time_that_the_model_reports(base_lines) -> None:
    assert base_lines("a")[0]["time"]["scoring"] == 0.25


def test_token_scoring_time_is_part_of_the_prefill_time_and_zero_for_base(lm: AudioLM, plan, jobs) -> None:
    *scoring, base = made = jobs(*(get_method(name, 0.5) for name in ("fast_v", "dart", "snapkv")), METHODS[0])
    evaluate(lm, replace(plan("a"), max_new_tokens=1), made)
    for times in (lines(job)[0]["time"] for job in scoring):
        assert 0 < times["scoring"] < times["llm_prefill"]
    assert lines(base)[0]["time"]["scoring"] == 0


def test_the_longest_samples_come_first_and_samples_about_one_clip_share_a_batch(tmp_path: Path) -> None:
    seconds = {"a": 0.1, "b": 0.4, "c": 0.2, "d": 0.3, "e": 0.4}
    samples = tuple(
        a_sample(id_, task_folders.write_clip(tmp_path / f"{id_}.wav", seconds=length), bundle="x" * (id_ in "ce"))
        for id_, length in seconds.items()
    )
    assert by_length(Plan(IdTask(), samples, 8, batch_size=1), samples) == list(samples)
    ordered = by_length(Plan(IdTask(), samples, 8, batch_size=2), samples)
    for size, ids in ((2, ["b", "ce", "da"]), (3, ["bce", "da"]), (1, ["b", "c", "e", "d", "a"])):
        assert ["".join(sample.id for sample in batch) for batch in in_batches(ordered, size)] == ids


class TestAuto:
    def test_each_setting_has_batches_of_its_planned_size(self, plan, jobs) -> None:
        lm, made = FakeLM(), jobs(METHODS[0], METHODS[1])
        evaluate(lm, plan("abcde", batch_size=3, sizes={BASE: 2, FRAME: 3}), made)
        assert [len(ids) for label, ids in lm.calls if label == BASE] == [2, 2, 1]
        assert [len(ids) for label, ids in lm.calls if label == FRAME] == [3, 2]
        for job, planned in zip(made, (2, 3), strict=True):
            assert [line["batch"]["planned"] for line in lines(job)] == [planned] * 5

    def test_after_out_of_memory_later_batches_are_smaller_too(self, plan, jobs) -> None:
        lm, said, (job,) = FakeLM(fails=TestOutOfMemory().full(3)), list[str](), jobs(METHODS[0])
        evaluate(lm, plan("abcdefghijkl", batch_size=8, sizes={BASE: 8}), [job], say=said.append)
        assert [len(ids) for _, ids in lm.calls] == [8, 4, 2, 2, 4, 2, 2, 2, 2]
        assert [line["batch"]["samples"] for line in lines(job)] == [2] * 12
        assert all(line["error"] is None for line in lines(job))
        assert any("halved" in line for line in said)

    def test_records_of_a_batch_hold_the_stage_times_of_the_batch(self, plan, jobs) -> None:
        (job,) = jobs(METHODS[0])
        evaluate(FakeLM(peaks={BASE: 80}), plan("abc", batch_size=2), [job])
        first, second, third = (line["batch"] for line in lines(job))
        assert first == second
        assert (first["samples"], third["samples"]) == (2, 1)
        assert (first["llm_prefill"], first["decode"], first["peak_memory_bytes"]) == (2.0, 1.0, 80)
        assert first["encoder"] > 100
        assert samples_a_second(list(job.folder.records.values())) == pytest.approx(
            3 / (first["encoder"] + third["encoder"] + 6)
        )


def test_records_of_a_batch_hold_the_share_of_padding_in_it(lm: AudioLM, tmp_path: Path, jobs) -> None:
    clips = [task_folders.write_clip(tmp_path / f"{seconds}.wav", seconds=seconds) for seconds in (1, 2)]
    (job,) = jobs(METHODS[0])
    evaluate(lm, Plan(IdTask(), tuple(map(a_sample, "ab", clips)), 2, batch_size=2), [job])
    longer, shorter = lines(job)
    assert (longer["id"], longer["prompt_tokens"] - shorter["prompt_tokens"]) == ("b", 25)
    assert longer["batch"]["padding"] == pytest.approx(25 / (2 * longer["prompt_tokens"]))


def test_the_planned_batch_size_is_limited_by_memory() -> None:
    facts = SimpleNamespace(weight_bytes=1e9, memory=lambda tokens, chunk: {"weights": 1e9, "KV cache": 1e6 * tokens})
    assert [largest_batch(facts, 1000, room) for room in (1e8, 1.1e9, 8.5e9, 1e13, None)] == [1, 1, 8, 64, 64]  # type: ignore[arg-type]
