"""Users' own X-ARES task files of every kind: frames, grades, captions, transcripts, and merge processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from caption_folders import WORDS, tiny_bert
from test_probing_runs import write

from audiomarathon.errors import PluginError, RecordError, SettingsError
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.commands import run as encoder_run
from audiomarathon.wings.encoders.probing.encode import encode_published
from audiomarathon.wings.encoders.probing.frames import activity
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, STANDARD
from audiomarathon.wings.encoders.registry import load_encoder
from audiomarathon.wings.encoders.xares.task import Dataset
from audiomarathon.wings.encoders.xares.task_config import TaskConfig, task_of
from audiomarathon.wings.encoders.xares.tasks import config_of, named
from audiomarathon.wings.encoders.xares_commands import _child
from audiomarathon.wings.encoders.xares_commands import run as xares_run

ENCODER = "import test_xares_frames\n\nclass SpectrumEncoder(test_xares_frames.SpectrumEncoder):\n    pass\n"
FRAMES = """
import math
import torch
from xares.task import TaskConfig


def beeps_config(encoder):
    def frames(seconds):
        return math.ceil(seconds / (encoder.hop_size_in_ms / 1000))

    def process(events):
        found = torch.zeros(2, frames(1.2))
        for one in events:
            found[one["pitch"], frames(one["from"]) : frames(one["to"])] = 1
        return found

    return TaskConfig(
        name="beeps", encoder=encoder, task_type="frame", label_processor=process, output_dim=2, epochs=60,
        criterion=torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2)), metric="segmentf1_micro",
        learning_rate=0.05, batch_size_train=4, metric_args=dict(segment_length_in_s=0.2, hop_size_in_ms=20),
    )
"""
GRADES = """
from xares.task import TaskConfig

def loud_config(encoder):
    return TaskConfig(name="loud", encoder=encoder, label_processor=lambda x: x["loudness"], criterion="MSELoss",
                      metric="MSE", output_dim=1)
"""
CAPTIONS = """
from xares.task import TaskConfig

def each_caption(stream):
    for embedding, captions, *rest in stream:
        for caption in captions.values():
            yield embedding, caption, *rest

def told_config(encoder):
    return TaskConfig(
        name="told", encoder=encoder, task_type="contrastive", criterion="AudioTextContrastiveLoss", do_knn=False,
        metric="recallatk_r1", merge_processor=each_caption, epochs=4, batch_size_train=8,
    )
"""
TRANSCRIPTS = """
from xares.task import TaskConfig

def said_config(encoder):
    return TaskConfig(name="said", encoder=encoder, task_type="asr", metric="WER_inv", do_knn=False,
                      label_processor=lambda x: {"trans": x["words"].lower()})
"""
MERGED = """
from xares.task import TaskConfig

def both_labels(stream):
    for embedding, label, *rest in stream:
        for one in label:
            yield embedding, "low high".split().index(one), *rest

def voices_config(encoder):
    return TaskConfig(name="voices", encoder=encoder, merge_processor=both_labels, output_dim=2, epochs=2,
                      label_processor=lambda x: x["voices"], batch_size_encode=4)
"""
FRAME = {"task_type": "frame", "criterion": "BCEWithLogitsLoss", "metric": "segmentf1_macro", "output_dim": 2}
TEXTS = {"task_type": "contrastive", "criterion": "AudioTextContrastiveLoss", "metric": "recallatk_r1"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with an encoder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    for name in ("XARES_ENV_ROOT", "AUDIOMARATHON_ENCODER_DATA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "own_encoder.py").write_text(ENCODER)
    return tmp_path


def tone(rng: np.random.Generator, seconds: float, *parts: tuple[float, float, float, float]) -> np.ndarray:
    """Return quiet noise with tones, each given by start, end, frequency and level."""
    audio = 0.01 * rng.standard_normal(round(1000 * seconds))
    for start, end, pitch, level in parts:
        span = np.arange(round(1000 * start), round(1000 * end))
        audio[span] += level * np.sin(2 * np.pi * pitch * span / 1000)
    return audio.astype(np.float32)


def run(file: str, **more: Any) -> int:
    here = {"executor": "local", "address": None, "workers": None, "gpus_per_worker": None}
    return encoder_run(encoder="own_encoder.py", tasks=file, **here, **more)


def set_up(place: Path, name: str, text: str, clips: list[tuple[str, Any, np.ndarray]]) -> str:
    """Write a task file and the same clips as train, valid and test; return the file's name."""
    for part in ("train", "valid", "test"):
        write(place / "env" / name, part, [(f"{part}{key}", meta, audio) for key, meta, audio in clips])
    (place / f"{name}_task.py").write_text(text)
    return f"{name}_task.py"


def runs_of(place: Path, key: str) -> dict[str, Run]:
    """Return the stored runs. They can be read without the task's file."""
    for file in place.glob("*_task.py"):
        file.unlink()
    return {folder.name: Run.read(folder) for folder in (place / "results" / key / "SpectrumEncoder").iterdir()}


def read(place: Path, file: str) -> Dataset:
    (task,) = named([file], load_encoder("own_encoder.py").module)
    return task.read(place / "env")


@pytest.mark.parametrize("hop", [40, 20.0, 23.2, 12.5, 10 / 3])
def test_events_made_from_an_array_of_frame_labels_turn_back_into_the_same_array(hop: float) -> None:
    rng = np.random.default_rng(0)
    encoder = type("Own", (), {"hop_size_in_ms": hop})()
    config = TaskConfig("own", **FRAME | {"output_dim": 12}, encoder=encoder)
    task, names = task_of(config), [str(number) for number in range(12)]
    for frames in (0, 1, 7, 700):
        given = rng.random((12, frames)) < 0.5
        for value in (given, torch.tensor(given).float(), given.astype(int).tolist()):
            ((_, labels, _, events),) = task.items("k", value)
            np.testing.assert_array_equal(activity(events, names, hop, frames, 0), given.T)
        assert labels == tuple(sorted(name for name, row in zip(names, given, strict=True) if row.any()))
    for odd in (given[:11], given * 0.5, given[0], [[1]] * 11):
        with pytest.raises(ValueError, match=r"'k' has no usable label: .*allowed: \(12, frames\) of 0 and 1"):
            [*task.items("k", odd)]
    config.encoder = None
    with pytest.raises(ValueError, match="no times without an encoder"):
        [*task_of(config).items("k", given)]


def test_a_user_task_file_with_frame_labels_runs_from_data_to_scores(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, clips = np.random.default_rng(1), list[tuple[str, Any, np.ndarray]]()
    for number in range(8):
        start, pitch = rng.uniform(0, 0.5), int(rng.integers(2))
        events = [{"from": start, "to": start + 0.5, "pitch": pitch}]
        clips.append((str(number), events, tone(rng, 1.2, (start, start + 0.5, (100, 300)[pitch], 0.5))))
    file = set_up(place, "beeps", FRAMES, clips)
    assert run(file, seeds=1) == 0
    assert capsys.readouterr().err.count("beeps: hop_size_in_ms=20 is ignored: the encoder's is 40") == 1
    (place / file).write_text(FRAMES.replace("segment_length_in_s=0.2", "segment_length_in_s=0.4"))
    with pytest.raises(RecordError, match="task file"):
        run(file, seeds=1)
    runs = runs_of(place, "own-frames/beeps")
    assert {*runs} == {"linear", PUBLISHED[0]}
    assert runs["linear"].headline.value > 0.9
    assert runs[PUBLISHED[0]].headline.value > 0.8
    assert runs["linear"].records["test/test0"].reference["labels"] == ["0", "1"]
    assert runs[PUBLISHED[0]].identity["segments"] == "micro, 0.2 s, positive 2"


def test_a_user_task_file_with_one_number_per_clip_runs_from_data_to_scores(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(2)
    levels = rng.uniform(0.1, 1, 12).tolist()
    clips = [(str(i), {"loudness": level}, tone(rng, 0.4, (0, 0.4, 100, level))) for i, level in enumerate(levels)]
    assert run(set_up(place, "loud", GRADES, clips)) == 0
    told = "loud: X-ARES' probes are left out: its loss compares each prediction with every grade of the batch"
    assert told in capsys.readouterr().err
    runs = runs_of(place, "own-grades/loud")
    assert {*runs} == {"linear"}
    assert runs["linear"].headline.value > 0.95
    assert runs["linear"].records["test/test3"].reference["values"] == [levels[3]]


@pytest.mark.parametrize("merged", [True, False])
def test_a_user_task_file_with_captions_runs_from_data_to_scores(place: Path, *, merged: bool) -> None:
    tokenizer = str(tiny_bert(place / "bert"))
    text = CAPTIONS if merged else CAPTIONS.replace("merge_processor=each_caption", "label_processor=dict.values")
    words, rng = [word for word in WORDS if word.isalpha()][:4], np.random.default_rng(3)
    captions = [{"caption_1": word, "caption_2": f"{word} {word}"} for word in words]
    clips = [(f"{i}", captions[i], tone(rng, 0.4, (0, 0.4, 100 * (i + 1), 0.5))) for i in range(4)]
    assert run(set_up(place, "told", text, clips), protocol="as_published", seeds=1, tokenizer=tokenizer) == 0
    (probe_run,) = runs_of(place, "own-captions/told").values()
    assert probe_run.records["test/test1"].reference["answer"] == f"{words[1]}; {words[1]} {words[1]}"
    assert probe_run.headline.value > 0.5


def test_a_user_task_file_with_transcripts_runs_from_data_to_scores(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audiomarathon.wings.encoders.probing.recognition.RATES", (0.1,))
    monkeypatch.setattr("audiomarathon.wings.encoders.probing.recognition.STEPS", 100)
    rng, clips = np.random.default_rng(4), list[tuple[str, Any, np.ndarray]]()
    for number, words in enumerate(["AB", "BA", "A", "B", "ABA", "BAB"] * 3):
        parts = [(0.2 * i, 0.2 * i + 0.16, (100, 300)["AB".index(letter)], 0.5) for i, letter in enumerate(words)]
        clips.append((str(number), {"words": words}, tone(rng, 0.2 * len(words), *parts)))
    clips.append(("odd", {"text": "lost"}, clips[0][2]))
    file = set_up(place, "said", TRANSCRIPTS, clips)
    assert read(place, file).bad_rows[0].reason == "'trainodd' has no usable label: KeyError: 'words'"
    assert run(file, protocol="standard", allow_bad_rows=True) == 0
    (probe_run,) = runs_of(place, "own-transcripts/said").values()
    assert probe_run.records["test/test4"].reference["answer"] == "aba"
    assert probe_run.headline.value > 0.6


def test_a_merge_processor_may_turn_one_clip_into_several_clips_or_none(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    voices = [["low"], ["high"], [], ["high", "low"], ["low"], ["high"]]
    pitches = {"low": 100, "high": 300}
    parts = [[(0, 0.4, pitches[voice], 0.5) for voice in speakers] for speakers in voices]
    clips = [(f"{i}", {"voices": voices[i]}, tone(rng, 0.4 + i % 2 / 10, *parts[i])) for i in range(6)]
    file = set_up(place, "voices", MERGED, clips)
    data = read(place, file)
    tested = [clip for clip in data.clips if clip.part == "test"]
    assert [(clip.id, clip.labels, clip.cluster) for clip in tested] == [
        (f"test/test{name}", (label,), f"test/test{name[0]}")
        for name, label in (("0", "0"), ("1", "1"), ("3", "1"), ("3#2", "0"), ("4", "0"), ("5", "1"))
    ]
    assert data.bad_rows == ()
    heard = list[list[str]]()

    def encoded(encoder: Any, part: Any, *more: Any) -> Any:
        heard.append([clip.clip.id for clip in part])
        return encode_published(encoder, part, *more)

    monkeypatch.setattr("audiomarathon.wings.encoders.probing.run.encode_published", encoded)
    assert run(file, seeds=1) == 0
    assert heard == [[f"{part}/{part}{i}" for i in (0, 1, 3, 4, 5)] for part in ("train", "valid", "test")]
    runs = runs_of(place, "own/voices")
    assert {*runs} == {*STANDARD, PUBLISHED[0]}
    for probe_run in runs.values():
        assert [*probe_run.records] == [clip.id for clip in tested]
    twins = [runs[PUBLISHED[0]].records[id_].reply for id_ in ("test/test3", "test/test3#2")]
    assert twins[0] == twins[1]


def test_a_merge_processor_that_changes_embeddings_is_refused(place: Path) -> None:
    clip = ("0", {"voices": ["low"]}, tone(np.random.default_rng(6), 0.4))
    for changed in ("yield embedding[:, :1],", "embedding += 1; yield embedding,"):
        file = set_up(place, "voices", MERGED.replace("yield embedding,", changed), [clip])
        with pytest.raises(PluginError, match=r"^voices: a merge_processor reads or changes embeddings; .*[^\n]$"):
            run(file)
    assert not (place / "results").exists()


def test_xares_run_passes_the_encoder_to_a_user_task_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clips = [("0", [{"from": 0.2, "to": 0.6, "pitch": 1}], tone(np.random.default_rng(7), 1.2, (0.2, 0.6, 300, 0.5)))]
    file = set_up(place, "beeps", FRAMES.replace("epochs=60", "epochs=1"), clips)
    assert xares_run("own_encoder.py", [file], max_jobs=0, results=Path("results")) == 0
    _child(file, "cpu", "own_encoder.py", 2, Path("child"))  # what a process of --max-jobs runs
    folder = Path("own-frames", "beeps", "SpectrumEncoder", PUBLISHED[0])
    first, child = (Run.read(place / results / folder).headline.value for results in ("results", "child"))
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("beeps"))
    assert float(row[1]) == pytest.approx(first, abs=1e-6)
    assert first == child
    assert xares_run("no_encoder.py", [file], to_stage=0) == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"task_type": "video"}, r"own: video task, .* allowed: clip, CrossEntropyLoss with accuracy; .*; asr, "),
        ({"task_type": "frame", "output_dim": 2}, "frame task, criterion CrossEntropyLoss .* allowed: frame, BCEWith"),
        ({"criterion": "MSELoss"}, "MSELoss with metric accuracy; allowed: .* MSELoss or L1Loss with MSE or MAE"),
        ({"criterion": torch.nn.CrossEntropyLoss(torch.ones(2)), "output_dim": 2}, "metric accuracy, with arguments"),
        ({"criterion": torch.nn.CrossEntropyLoss(label_smoothing=0.1), "output_dim": 2}, "accuracy, with arguments"),
        (FRAME | {"criterion": torch.nn.BCEWithLogitsLoss(reduction="sum")}, "with arguments"),
        (FRAME | {"output_dim": None}, "output_dim=None; must be the number of classes, 1 or more"),
        (FRAME | {"metric_args": {"average": "micro"}}, "metric_args={'average': 'micro'}, .* allowed: segment_length"),
        (FRAME | {"metric_args": {"segment_length_in_s": 0}}, "allowed: segment_length_in_s above 0"),
        (FRAME | {"criterion": torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1, 2]))}, "one pos_weight for all"),
        (FRAME | {"k_fold_splits": [1, 2, 3]}, "k_fold_splits=.* of segmentf1_macro; allowed: train_split"),
        (TEXTS | {"train_split": "all", "test_split": "all"}, "same tars in a task .*; allowed: different tars"),
    ],
)
def test_an_invalid_task_config_is_a_one_line_error(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError, match=line) as caught:
        task_of(TaskConfig("own", **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["desed", "maestro"])
def test_a_changed_segment_length_of_a_released_frame_task_is_refused(name: str) -> None:
    config = config_of(name)
    released = task_of(config)
    assert [released] == named([name])
    config.metric_args["segment_length_in_s"] = 0.5
    with pytest.raises(SettingsError, match=f"{name}: segment=0.5 in X-ARES' own task; allowed: .*another name"):
        task_of(config)
    config = config_of(name)
    config.criterion = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
    with pytest.raises(SettingsError, match=f"{name}: pos_weight=3.0"):
        task_of(config)
    config = config_of("esc50")
    config.criterion, config.metric = "BCEWithLogitsLoss", "mAP"
    with pytest.raises(SettingsError, match=r"esc50: clip task, .* allowed: clip, CrossEntropyLoss with accuracy; l"):
        task_of(config)


def test_a_released_task_with_a_merge_processor_becomes_a_user_task() -> None:
    config = config_of("clotho")
    assert task_of(config).key == "xares/clotho"
    config.merge_processor = lambda stream: stream
    assert task_of(config).key == "own-captions/clotho"


def test_a_clip_without_captions_is_an_error_unless_a_merge_processor_drops_it() -> None:
    config = TaskConfig("own", **TEXTS)
    assert [facts for *_, facts in task_of(config).items("k", {"a": "rain", "b": "wind"})] == [("rain", "wind")]
    with pytest.raises(ValueError, match="captions are"):
        [*task_of(config).items("k", {})]
    config.merge_processor = lambda stream: ((entry[0], text, entry[2]) for entry in stream for text in entry[1])
    assert [*task_of(config).items("k", {})] == []
