"""A transcriber and a text LLM as one system: `audiomarathon transcribe` and `audiomarathon cascade`."""

from __future__ import annotations

import json
import shlex
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import caption_folders
import jasco_folders
import lalm_folders
import pytest
import task_folders
import tiny_text_llm
import tiny_whisper
import torch
from builders import STAGES, a_failed_record, a_record, lines_of, write_records, write_run
from conftest import call, succeed
from endpoint_server import KEY, Server
from transformers import AutoModelForCausalLM, AutoTokenizer

from audiomarathon.benchmarks import Loaded, get_task, selected
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.engine import calibration
from audiomarathon.engine.cascade import find_transcribers
from audiomarathon.engine.transcripts import NO_WORDS, Reading, Transcriber, made_by
from audiomarathon.errors import SettingsError
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.text_llm import TextLLM
from audiomarathon.records import Record
from audiomarathon.results.beside import timed_pairs
from audiomarathon.results.compare import compare_with
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.read import Run
from audiomarathon.scoring.heard import words_of
from audiomarathon.settings import RunSettings

Texts = Mapping[str, str]
FRAME = {"method": "frame", "ratio": 0.5, "at": "input"}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_llm.checkpoint(tmp_path_factory.mktemp("llm") / "tiny-llm")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    task_folders.build_all(root, ("tau", "race", "librispeech"))
    for name in ("jasco", "mmau", "clotho"):
        (root / name).mkdir()
    jasco_folders.build_jasco(root / "jasco", (1, 2))
    lalm_folders.mmau_pro_folder(root / "mmau")
    caption_folders.clotho_folder(root / "clotho")
    return root


def loaded(task: str, root: Path) -> Loaded:
    benchmark_task = get_task(task)
    return benchmark_task.load(benchmark_task.find(root))


def a_transcript(clips: str, text: str, **changes: Any) -> dict[str, Any]:
    """The timed record of a transcript: 0.4 s for tower, prefill and decode together, 0.1 s to read the clip."""
    times = STAGES | {"encoder": 0.1, "llm_prefill": 0.1, "prefill": 0.2, "decode": 0.2}
    fields = {"reply": text, "reference": {}, "clips": clips, "time": times, "session": "asr 1", "clip_seconds": 2.0}
    return a_record(clips, **fields | {"audio_tokens": 100, "kept_audio_tokens": 50} | changes)


def transcribed(
    folder: Path, task: str, root: Path, texts: Texts | str = "a bell rings", *, without: int = 0, **identity: Any
) -> Path:
    """Write a run as `transcribe` does, with given transcripts by clip. Leave out the last `without` clips."""
    samples = loaded(f"transcripts/{task}", root).samples
    hashes = clip_hashes(samples)
    said = {sample.id: texts if isinstance(texts, str) else texts.get(sample.id, "a bell rings") for sample in samples}
    records = [a_transcript(hashes[id_], text) for id_, text in said.items()][: len(samples) - without]
    run_identity = {"checkpoint": "asr", "dtype": "float32", "seed": 42, "device": "a cpu", "data": task}
    run_identity |= {"prompts": "p", "method": "base", "ratio": 0.0, **identity}
    label = f"{run_identity['method']}-{run_identity['ratio']:g}" + "-input" * ("at" in run_identity)
    facts = {"schema_version": 2, "task": f"transcripts/{task}", "method": label, "model": "whisper-base"}
    facts |= {"checkpoint": "/m/asr", "checkpoint_name": "asr", "identity": run_identity, "settings": {"seed": 42}}
    return write_run(folder / "transcripts" / task / "asr" / label, facts, records)


def flags_of(**settings: object) -> list[object]:
    """Return settings as command options. A setting that is True takes no value."""
    options = [(f"--{name.replace('_', '-')}", value) for name, value in settings.items()]
    return [part for name, value in options for part in ((name,) if value is True else (name, value))]


def cascade(results: Path, data: Path, llm: object, *tasks: str, **more: object) -> tuple[int, str]:
    """Run a cascade on the transcripts in a results folder; replies are short, unless more is said."""
    where = ("--with", llm, "--data", data, "--results", results)
    return call("cascade", results / "transcripts", *tasks, *where, *flags_of(**{"max_new_tokens": 2} | more))


def answer(results: Path, data: Path, llm: object, *tasks: str, **more: object) -> Path:
    """Run a cascade that must succeed; return the first task's run of base."""
    code, output = cascade(results, data, llm, *tasks, **more)
    assert code == 0, output
    return next(iter(sorted((results / tasks[0]).glob("asr+*/base-0"))))


def records_of(run: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in lines_of(run / "samples.jsonl")}


def test_transcripts_are_made_once_per_clip_and_shared_by_all_its_questions(
    data: Path, llm: Path, tmp_path: Path
) -> None:
    whisper = tiny_whisper.checkpoint(tmp_path / "tiny-whisper")
    flags = ("--model", "whisper-base", "--model-path", whisper, "--data", data, "--results", tmp_path)
    pruned = ("--methods", "frame", "--ratios", "0.5", "--at", "input", "--max-new-tokens", "4", "--limit", "2")
    succeed("transcribe", "race", "tau", *flags, *pruned)
    runs = {label: tmp_path / "transcripts/race/tiny-whisper" / label for label in ("base-0", "frame-0.5-input")}
    assert [len(records_of(run)) for run in runs.values()] == [2, 2]  # of three questions, two on one clip
    assert cascade(tmp_path, data, llm, "race", "tau", limit=2)[0] == 0
    for label, transcripts in runs.items():
        records = records_of(tmp_path / "race/tiny-whisper+tiny-llm" / label)
        by_clip = {record["clips"]: record["reply"] for record in records_of(transcripts).values()}
        assert {tuple(record["transcripts_read"]) for record in records.values()} == {
            (by_clip[record["clips"]].strip(),) for record in records.values()
        }
    assert call("score", tmp_path / "transcripts")[0] == 0


def test_a_transcription_run_with_a_limit_covers_the_clips_the_task_selects_with_that_limit(data: Path) -> None:
    task, settings = get_task("tau"), RunSettings(limit=3)
    samples = selected(task.load(task.find(data)), settings)
    clips = selected(loaded("transcripts/tau", data), settings)
    assert {sample.clips for sample in clips} == {sample.clips for sample in samples}


def test_transcripts_without_a_reference_are_scored_by_the_share_of_clips_with_words(
    data: Path, tmp_path: Path
) -> None:
    first = loaded("transcripts/tau", data).samples[0].id
    run = transcribed(tmp_path, "tau", data, {first: " ♪ ... "})
    assert call("score", run)[0] == 0
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["headline"], summary["score"]) == ("heard", 0.9)
    assert summary["words_a_minute"] == pytest.approx(9 * 3 / (10 * 2 / 60))
    assert words_of("♪ so, … 3 -") == ["so,", "3"]


def test_a_task_file_in_a_folder_named_transcripts_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "transcripts"
    folder.mkdir()
    (folder / "q.toml").write_text('key = "q"\nrows = "q.jsonl"\nclips = "c"\ntranscript = "t"\n')
    (folder / "own.py").write_text(
        "from audiomarathon.benchmarks.audiomarathon.librispeech import LibriSpeech\n"
        "class Mine(LibriSpeech):\n    key = 'mine'\n"
    )
    monkeypatch.chdir(tmp_path)
    assert get_task("transcripts/q.toml").key == "own-transcript/q"
    assert get_task("transcripts/transcripts/q.toml").key == "transcripts/own-transcript/q"
    assert get_task("transcripts/own.py:Mine").key.endswith("mine")
    monkeypatch.chdir(folder)
    assert get_task("transcripts/q.toml").key == "transcripts/own-transcript/q"


@pytest.mark.parametrize("name", ["transcripts/transcripts/tau", "transcripts/xares/esc50", "transcripts/tua"])
def test_a_transcription_task_of_an_unknown_task_or_an_encoder_task_is_refused(name: str) -> None:
    with pytest.raises(SettingsError):
        get_task(name)


def prompted(root: Path, data: Path, key: str, model: str = "embedded", **more: object) -> dict[str, Any]:
    """Run a custom transcription task; return the transcriber's identity, which includes its prompt."""
    clips = [sample.id for sample in loaded("transcripts/race", data).samples]
    shutil.copytree(data / "RACE", root, dirs_exist_ok=True)
    (root / "q.jsonl").write_text("".join(json.dumps({"audio": clip, "a": "x"}) + "\n" for clip in clips))
    (root / f"{key}.toml").write_text(f'key = "{key}"\nrows = "q.jsonl"\nclips = "audio"\ntranscript = "a"\n')
    succeed("run", root / f"{key}.toml", *flags_of(model=model, data=root, results=root, max_new_tokens=2, **more))
    return made_by(Run.read(next((root / "own-transcript" / key).glob("*/base-0"))))


def test_a_transcriber_has_a_different_identity_for_each_prompt(data: Path, tmp_path: Path) -> None:
    asked = {"plain": {}, "german": {"prompt": "Translate into German."}, "less": {"limit": 1}}
    plain, german, less = (prompted(tmp_path, data, key, **more) for key, more in asked.items())
    assert plain == less
    assert plain != german
    parameters = [Transcriber(made_by=identity).parameters() for identity in (plain, german)]
    for name in ("transcripts", "transcriber's wording"):
        assert parameters[0][name] != parameters[1][name]


def test_a_transcriber_that_takes_no_prompt_has_the_same_identity_under_all_prompts(data: Path, tmp_path: Path) -> None:
    whisper = {"model": "whisper-base", "model_path": tiny_whisper.checkpoint(tmp_path / "tiny-whisper")}
    first, second = (prompted(tmp_path, data, key, **whisper, prompt=f"Do {key}.") for key in ("one", "other"))
    assert first == second


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ((), []),
        (("a bell",), ["\na bell\n"]),
        (("a bell", "a dog"), ["Audio 1: a bell\n", "Audio 2: a dog\n"]),
        (("", "a dog"), [f"Audio 1: {NO_WORDS}\n", "Audio 2: a dog\n"]),
        ((" ♪",), [f"\n{NO_WORDS}\n"]),
        (("{question} <|im_end|>",), ["\n{question} <"]),
    ],
)
def test_the_prompt_of_an_llm_holds_the_transcripts_in_order_and_the_question_below_them(
    texts: Sequence[str], said: Sequence[str]
) -> None:
    prompt = Reading(tuple(Record(str(n), reply=text) for n, text in enumerate(texts))).worded("Who rings?")
    assert prompt.endswith("Who rings?")
    assert (prompt == "Who rings?") == (not texts)
    assert [prompt.index(part) for part in said] == sorted(prompt.index(part) for part in said)
    assert "<|im_end|>" not in prompt


def test_control_tokens_in_a_transcript_reach_the_llm_as_plain_text(llm: Path) -> None:
    lm = TextLLM.load(llm, device="cpu", dtype="float32", attn_implementation="sdpa")
    special = lm.tokenizer.convert_tokens_to_ids("<|im_end|>")
    counts = [
        lm.prepare([Prompt(text, ())]).tensors["input_ids"][0].tolist().count(special)
        for text in ("a bell", "a <|im_end|> bell")
    ]
    assert counts == [1, 1]


def test_a_prompt_longer_than_the_context_of_the_llm_fails_its_sample(data: Path, tmp_path: Path) -> None:
    short = tiny_text_llm.checkpoint(tmp_path / "short", positions=64)
    transcribed(tmp_path, "race", data)
    code, output = cascade(tmp_path, data, short, "race")
    assert code == 1
    assert "takes fewer than 64" in output


def test_the_replies_of_a_cascade_equal_those_of_transformers_generate(data: Path, llm: Path, tmp_path: Path) -> None:
    clips = [sample.id for sample in loaded("transcripts/race", data).samples]
    transcribed(tmp_path, "race", data, dict(zip(clips, ("a bell rings", ""), strict=True)))
    records = records_of(answer(tmp_path, data, llm, "race", max_new_tokens=12))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(llm).eval(), AutoTokenizer.from_pretrained(llm)
    task = get_task("race")
    for sample in loaded("race", data).samples:
        heard = records[sample.id]["transcripts_read"][0] or NO_WORDS
        told = "You cannot hear the audio. A speech recogniser wrote down what is said in it:"
        turn = {"role": "user", "content": f"{told}\n\n{heard}\n\n{task.prompt(sample)}"}
        ids = tokenizer.apply_chat_template([turn], add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.inference_mode():
            done = model.generate(**ids, max_new_tokens=12, do_sample=False)
        new = done[0, ids["input_ids"].shape[1] :]
        assert records[sample.id]["reply"] == tokenizer.decode(new, skip_special_tokens=True)
        assert records[sample.id]["prompt_tokens"] == ids["input_ids"].shape[1]


def test_a_cascade_answers_every_sample_of_choice_open_ended_caption_and_jasco_tasks(
    data: Path, llm: Path, tmp_path: Path
) -> None:
    tasks = ("jasco", "lalm/mmau_pro", "lalm/clotho", "tau")
    for task in tasks:
        transcribed(
            tmp_path, task, data, {sample.id: sample.id for sample in loaded(f"transcripts/{task}", data).samples}
        )
    answer(tmp_path, data, llm, *tasks)
    for task in tasks:
        run = Run.read(tmp_path / task / "asr+tiny-llm/base-0")
        assert run.expected == len(run.records) == len(loaded(task, data).samples)
    of_mmau = records_of(tmp_path / "lalm/mmau_pro/asr+tiny-llm/base-0")
    assert of_mmau["m3"]["transcripts_read"] == [f"data/m3_{number}.wav" for number in range(3)]


def test_a_cascade_run_records_the_method_and_identity_of_its_transcriber(
    data: Path, llm: Path, tmp_path: Path
) -> None:
    transcribed(tmp_path, "race", data, language="de")
    transcribed(tmp_path, "race", data, language="de", **FRAME)
    base = answer(tmp_path, data, llm, "race")
    pruned = Run.read(base.parent / "frame-0.5-input")
    assert (pruned.method, pruned.checkpoint) == ("frame-0.5-input", "asr+tiny-llm")
    identity = pruned.identity
    assert (identity["origin"], identity["method"], identity["ratio"]) == ("cascade", "frame", 0.5)
    assert (identity["transcriber's checkpoint"], identity["transcriber's language"]) == ("asr", "de")
    assert "{transcripts}" in identity["frame"]
    assert identity["checkpoint"] == Run.read(base).identity["checkpoint"]
    assert [system.method for system in read_systems([tmp_path / "race"])] == ["base-0", "frame-0.5-input"]


def test_a_repeated_cascade_answers_only_samples_whose_transcript_has_changed(
    data: Path, llm: Path, tmp_path: Path
) -> None:
    clips = [sample.id for sample in loaded("transcripts/tau", data).samples]
    transcribed(tmp_path, "tau", data)
    before = lines_of(answer(tmp_path, data, llm, "tau") / "samples.jsonl")
    assert len(lines_of(answer(tmp_path, data, llm, "tau") / "samples.jsonl")) == len(before)
    transcribed(tmp_path, "tau", data, {clips[3]: "a dog barks"})
    after = lines_of(answer(tmp_path, data, llm, "tau") / "samples.jsonl")
    assert [record["transcripts_read"] for record in after[len(before) :]] == [["a dog barks"]]


def test_a_cascade_uses_transcripts_of_another_task_with_identical_clips(data: Path, llm: Path, tmp_path: Path) -> None:
    toml = 'key = "q"\nrows = "q.jsonl"\nclips = "audio"\nquestion = "q"\nanswer = "a"\nanswer_is = "open"\n'
    clip = loaded("librispeech", data).samples[0].clips[0]
    shutil.copy(clip, tmp_path / f"copy{clip.suffix}")
    (tmp_path / "q.jsonl").write_text(json.dumps({"audio": f"copy{clip.suffix}", "q": "Who?", "a": "I"}) + "\n")
    (tmp_path / "q.toml").write_text(toml)
    folder = transcribed(tmp_path, "librispeech", data)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"task": "librispeech"}))
    cascade(tmp_path, tmp_path, llm, tmp_path / "q.toml")
    assert len(records_of(tmp_path / "own-open/q/asr+tiny-llm/base-0")) == 1


def test_a_cascade_reports_how_many_transcripts_are_cut_or_without_words(data: Path, llm: Path, tmp_path: Path) -> None:
    run = transcribed(tmp_path, "race", data, {loaded("transcripts/race", data).samples[1].id: " ♪"})
    first, *others = lines_of(run / "samples.jsonl")
    write_records(run, [first | {"finish": "length"}, *others])
    flaws = "of 2 transcripts, 1 cut by the token limit and 1 without words"
    _code, output = cascade(tmp_path, data, llm, "race", no_timing=True)
    assert output.count(f"race: asr base-0: {flaws}") == 1
    (note,) = json.loads((tmp_path / "race/asr+tiny-llm/base-0/summary.json").read_text())["notes"]
    assert note == flaws  # and no note on times


def test_a_cascade_on_transcripts_of_control_audio_is_marked_as_a_control_run(
    data: Path, llm: Path, tmp_path: Path
) -> None:
    assert call("data", "controls", "tau", "--control", "silence", "--data", data, "-o", tmp_path)[0] == 0
    transcribed(tmp_path, "tau", tmp_path / "silence", "", control={"kind": "silence"})
    run = Run.read(answer(tmp_path, tmp_path / "silence", llm, "tau"))
    assert run.control == "silence"
    assert {record.control for record in run.records.values()} == {"silence"}
    assert all(list(record.transcripts_read or ()) == [""] for record in run.records.values())


def test_a_cascade_can_use_an_llm_behind_an_endpoint(data: Path, tmp_path: Path, no_env: Any) -> None:
    server = Server()
    server.set("keyless=1")  # it replies with the prompt
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    no_env("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    no_env("OPENAI_API_KEY", KEY)
    transcribed(tmp_path, "race", data)
    run = answer(tmp_path, data, "openai:tiny", "race")
    server.shutdown()
    assert run.parent.name == "asr+tiny-endpoint"
    (note,) = json.loads((run / "summary.json").read_text())["notes"]
    assert "latencies include the transcription by asr (on a cpu)" in note
    assert "prefill" not in note
    for record in records_of(run).values():
        assert "\n\na bell rings\n\n" in record["reply"]
        assert record["latency"]["first_token"] > 0.4  # includes the transcription
        assert record["time"] is None


TIMES = {"load": 0.0, "preprocess": 0.1, "encoder": 0.0, "llm_prefill": 1.0, "prefill": 1.0, "decode": 2.0}
LLM = Record("q", time={**TIMES, "scoring": 0.0}, session="llm 2", prompt_tokens=9, new_tokens=3)


def test_the_stage_times_of_transcriber_and_llm_are_summed_in_a_cascade_record() -> None:
    parts = tuple(Record.from_json(a_transcript(clip, "a bell")) for clip in "ab")
    both = Reading(parts).added_to(LLM)
    sums = {"load": 0.2, "preprocess": 0.3, "encoder": 0.8, "prefill": 1.8, "scoring": 0.2}
    assert both.time == pytest.approx({**LLM.time, **sums})
    assert (both.audio_tokens, both.kept_audio_tokens, both.clip_seconds) == (200, 100, 4.0)
    assert both.session == "llm 2 + asr 1"


def test_a_cascade_has_no_recorded_times_if_its_transcription_was_not_timed() -> None:
    untimed = Record.from_json(a_transcript("a", "a bell", time=None))
    assert Reading((untimed,)).added_to(LLM).time is None


def test_the_price_of_a_cascade_sums_its_endpoint_calls_and_counts_a_local_model_as_free() -> None:
    local, billed = (Record.from_json(a_transcript("a", "a bell", **more)) for more in ({}, {"cost": 0.5}))
    llm = replace(LLM, cost=1.0, attempts=1)
    assert Reading((local,)).added_to(llm).cost == 1.0
    assert Reading((replace(billed, attempts=1),)).added_to(llm).cost == 1.5
    assert Reading((replace(billed, attempts=1, cost=None),)).added_to(llm).cost is None


def test_no_speed_up_of_a_cascade_over_an_audio_llm_is_reported(data: Path, llm: Path, tmp_path: Path) -> None:
    for setting in ({}, FRAME):
        transcribed(tmp_path, "race", data, **setting)
    answer(tmp_path, data, llm, "race")
    succeed("run", "race", "--model", "embedded", "--data", data, "--results", tmp_path, "--max-new-tokens", 2)
    rows = compare_with(read_systems([tmp_path / "race"]), "embedded base-0").rows
    assert [(row.side, row.samples) for row in rows] == [
        (f"asr+tiny-llm {label}", 3) for label in ("base-0", "frame-0.5-input")
    ]
    assert {row.timed for row in rows} == {0}
    assert all("s to the first token, the reference" in row.untimed for row in rows)
    summary = json.loads((tmp_path / "race/asr+tiny-llm/base-0/summary.json").read_text())
    assert summary["timing"]["encoder_s"]["p50"] == pytest.approx(0.4)
    assert any("transcription by asr (on a cpu)" in note for note in summary["notes"])
    assert call("report", tmp_path / "race", "-o", tmp_path / "page.html")[0] == 0


def test_costs_are_compared_only_over_samples_answered_by_both_systems() -> None:
    def at(seconds: float, **more: Any) -> Record:
        return Record("q", time={"prefill": seconds}, **more)

    local, identity = {"task": "race", "method": "base-0", "identity": {}}, {"origin": "cascade"}
    reference = Run(local, {"q": at(1.0), "r": at(9.0), "s": at(9.0)})
    asked = Record("q", latency={"first_token": 0.25, "total": 1.0}, attempts=1, cost=0.5)
    cascade = Run({**local, "identity": identity}, {"q": asked})
    timed, _across, why = timed_pairs(cascade, reference, [(at(1.0, peak_memory_bytes=2 * 10**9), asked)])
    assert not timed
    assert "0.25 s to the first token, the reference 1 s;" in why
    assert "unknown of memory at the peak, the reference 2 GB" in why
    assert "cost 0.5, the reference none" in why


def test_a_cascade_with_a_batched_llm_reports_no_audio_throughput(data: Path, llm: Path, tmp_path: Path) -> None:
    transcribed(tmp_path, "race", data)
    run = answer(tmp_path, data, llm, "race", no_timing=True, batch_size=2)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["timing"] == {"audio_seconds_per_second": None}


def test_plan_and_doctor_work_for_a_cascade_llm_whose_weights_are_not_downloaded(
    data: Path, llm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("_PRODUCT_S", "_PREFILL_S"):  # for the speed measurement
        monkeypatch.setattr(calibration, seconds, 0.01)
    transcribed(tmp_path, "tau", data)
    small = tmp_path / "config-only"
    small.mkdir()
    shutil.copy(llm / "config.json", small)
    _code, output = cascade(tmp_path, data, small, "tau", plan=True)
    assert "memory: about" in output
    assert "10 samples" in output
    assert call("doctor", "--model", "text-llm", "--model-path", small)[0] == 0


def refused(*arguments: object, data: Path) -> str:
    """Run a cascade that must fail before its LLM, which does not exist, is looked up; return the error line."""
    code, output = call("cascade", *arguments, "--with", "no/such", "--data", data)
    assert code == 2
    (line,) = (line for line in output.splitlines() if line.startswith("error: "))
    return line


@pytest.mark.parametrize(
    ("made", "arguments", "words"),
    [
        (
            {"task": "tau", "without": 3, **FRAME},
            ["transcripts", "tau"],
            ["3 of 10 clips have no transcript by asr frame-0.5-input",
             "audiomarathon transcribe tau --model whisper-base --methods frame:0.5 --at input"],
        ),
        ({"task": "librispeech"}, ["transcripts", "librispeech"], ["only asks for a transcript"]),
        ({"task": "race"}, ["race"], ["names no folder with runs of transcripts"]),
        ({"task": "race"}, ["transcripts"], ["names no task"]),
    ],
)  # fmt: skip
def test_a_cascade_that_lacks_transcripts_or_a_task_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], arguments: list[str], words: Any
) -> None:
    transcribed(tmp_path, root=data, **made)
    monkeypatch.chdir(tmp_path)
    line = refused(*arguments, data=data)
    assert [word for word in words if word not in line] == []


def test_the_suggested_transcribe_command_repeats_all_settings_of_the_transcription_run(
    data: Path, tmp_path: Path
) -> None:
    run = transcribed(tmp_path, "tau", data, without=3)
    facts = json.loads((run / "run.json").read_text())
    its = {"seed": 7, "language": "de", "max_new_tokens": 99, "dtype": "float16", "timing": False, "batch_size": 4}
    facts["settings"] = {**asdict(RunSettings(results=tmp_path, **its)), "results": "elsewhere", "limit": 3}
    first = {"method": "frame", "ratio": 0.5, "layer": 5}
    facts["identity"] |= {"first": first, "second": {"method": "snapkv", "ratio": 0.3, "scope": "all"}}
    (run / "run.json").write_text(json.dumps(facts, default=str))
    line = refused(run, "tau", "--skip-persons", "1,2", "--split", "all", "--balance", data=data)
    _before, _found, command = line.partition("make them: audiomarathon ")
    words = shlex.split(command.partition(";")[0])
    flags = {"--methods": "frame:0.5+snapkv:0.3", "--layer": "5", "--scope": "all", "--seed": "7"}
    flags |= {"--language": "de", "--max-new-tokens": "99", "--dtype": "float16", "--batch-size": "4"}
    flags |= {"--skip-persons": "1,2", "--split": "all", "--data": str(data), "--model": "whisper-base"}
    assert {*pairwise(words)} >= {*flags.items()}
    assert {"--no-timing", "--balance"} < {*words}
    assert not {"--limit", "--results", "--at", "--decode"} & {*words}


def test_a_failed_transcript_is_refused_with_its_error(data: Path, tmp_path: Path) -> None:
    run = transcribed(tmp_path, "race", data)
    clips = [line["clips"] for line in lines_of(run / "samples.jsonl")]
    failed = a_failed_record(clips[0], "AudioError: no sound", clips=clips[0])
    write_records(run, [failed, a_transcript(clips[1], "a")])
    line = refused(run, "race", data=data)
    assert "1 of 2 clips" in line
    assert "AudioError: no sound" in line


def test_a_transcript_of_a_changed_clip_counts_as_missing(data: Path, tmp_path: Path) -> None:
    root = shutil.copytree(data / "RACE", tmp_path / "data" / "RACE").parent
    transcribed(tmp_path, "race", root)
    task_folders.write_clip(loaded("race", root).samples[0].clips[0], hertz=999)
    assert "1 of 2 clips" in refused(tmp_path / "transcripts", "race", data=root)


@pytest.mark.parametrize("plan", [(), ("--plan",)])
def test_a_cascade_over_all_tasks_leaves_out_transcription_tasks(
    data: Path, tmp_path: Path, plan: Sequence[str]
) -> None:
    transcribed(tmp_path, "tau", data)
    code, output = call("cascade", tmp_path / "transcripts", "all", "--with", "no/such", "--data", data, *plan)
    assert code == 2
    assert "librispeech: left out of all" in output
    assert "error: librispeech" not in output  # the error names another task


@pytest.mark.parametrize(
    ("llm", "plan", "said", "unsaid"),
    [
        *((llm, (), "openai:NAME", "--model-path") for llm in ("openai", "openai:", "endpoint:")),
        ("openai:tiny", ("--plan",), "leave out --plan", "audiomarathon run"),
    ],
)
def test_a_cascade_with_an_unnamed_endpoint_model_or_with_plan_of_an_endpoint_is_refused(
    data: Path, tmp_path: Path, llm: str, plan: tuple[str, ...], said: str, unsaid: str
) -> None:
    run = transcribed(tmp_path, "race", data)
    code, output = call("cascade", run, "race", "--with", llm, "--data", data, *plan)
    assert code == 2
    assert said in output
    assert unsaid not in output


def test_a_task_can_be_run_by_name_though_a_results_folder_has_the_same_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcribed(tmp_path, "race", data, without=1)
    facts = {"schema_version": 2, "task": "race", "method": "base-0", "checkpoint_name": "x", "identity": {}}
    write_run(tmp_path / "race/x/base-0", facts, [a_record("q")])
    (write_run(tmp_path / "race/x/damaged", facts, []) / "run.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert "1 of 2 clips" in refused("transcripts", "race", data=data)
    assert "1 of 2 clips" in refused("transcripts/race", "race", data=data)


@pytest.mark.parametrize(
    ("text", "identity"), [("a bell rings", {"dtype": "bfloat16"}), ("eine Glocke", {"prompts": "another"})]
)
def test_two_different_transcripts_of_one_clip_are_refused(
    data: Path, tmp_path: Path, text: str, identity: dict[str, Any]
) -> None:
    transcribed(tmp_path / "a", "race", data)
    transcribed(tmp_path / "b", "race", data, text, **identity)
    assert "name only one of them" in refused(tmp_path, "race", data=data)


def test_a_transcription_run_without_transcripts_of_the_task_is_left_out_with_a_message(
    data: Path, tmp_path: Path
) -> None:
    transcribed(tmp_path, "tau", data)
    transcribed(tmp_path, "race", data, **FRAME)
    said: list[str] = []
    tasks = {"race": (get_task("race"), loaded("race", data))}
    (transcriber,) = find_transcribers([tmp_path], tasks, RunSettings(), said.append)
    assert transcriber.label == "frame-0.5-input"
    assert "left out asr base-0" in said[0]


def test_a_text_llm_is_refused_for_an_audio_run(data: Path, llm: Path, tmp_path: Path) -> None:
    flags = ("--model", "text-llm", "--model-path", llm, "--data", data, "--results", tmp_path)
    code, output = call("run", "tau", *flags)
    assert code == 2
    assert "hears nothing" in output


def test_an_llm_without_a_chat_template_is_refused(data: Path, tmp_path: Path) -> None:
    plain = tiny_text_llm.checkpoint(tmp_path / "plain", template=None)
    transcribed(tmp_path, "race", data)
    code, output = cascade(tmp_path, data, plain, "race")
    assert code == 2
    assert "has no chat template" in output
