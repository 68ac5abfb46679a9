"""The mini benchmark: the layout of the public benchmark, small, and the same bytes every time."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audiomarathon.benchmarks import get_task
from audiomarathon.embedded import mini_benchmark as mini
from audiomarathon.embedded import world
from audiomarathon.wing import all_wings
from audiomarathon.wings.encoders.xares.task import EncoderTask
from audiomarathon.wings.encoders.xares.tasks import TASKS as ENCODER_TASKS


@pytest.fixture(scope="module")
def root() -> Path:
    """The mini benchmark that all tests share. Most tasks have one clip, except under `make test-all`."""
    return mini.mini_benchmark()


@pytest.mark.parametrize("key", world.TASKS)
def test_each_task_loads_its_generated_data_folder_without_bad_rows(root: Path, key: str) -> None:
    task = get_task(key)
    loaded = task.load(task.find(root / key))
    told = json.loads((root / "audiomarathon.json").read_text())["tasks"][key]
    assert (len(loaded.samples), loaded.bad_rows) == (told["count"], ())
    seconds = [soundfile.info(file).duration for file in {*loaded.samples[0].clips, *loaded.samples[-1].clips}]
    assert 90 <= told["min_seconds"] - 0.01 < min(seconds) <= max(seconds) < told["max_seconds"] + 0.01 <= 120.02


@pytest.mark.long
def test_the_mini_benchmark_has_six_clips_of_each_task_and_fits_250_mb(root: Path) -> None:
    assert list(json.loads((root / "audiomarathon.json").read_text())["tasks"]) == list(world.TASKS)
    assert all(count >= 6 for count in mini.CLIPS.values())
    assert sum(file.stat().st_size for key in world.TASKS for file in (root / key).rglob("*.*")) <= 250e6


def test_a_generated_clip_has_the_same_bytes_for_the_same_seed_whatever_else_is_generated(
    root: Path, tmp_path: Path
) -> None:
    """A clip depends on nothing but its own random stream."""
    again = mini.generate(tmp_path / "again", progress=False, workers=1, tasks=["desed"], limit=1)
    other = mini.generate(tmp_path / "other", progress=False, tasks=["desed"], limit=1, seed=7)
    name = "desed/audio/mini_desed_00.wav"
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for folder in (root, again, other)]
    assert digests[0] == digests[1] != digests[2]


def test_the_planted_event_of_a_generated_clip_lies_where_the_metadata_says(root: Path) -> None:
    row = json.loads((root / "desed" / "desed_sound_event_detection_task.json").read_text())["tasks"][0]
    samples, rate = soundfile.read(root / "desed" / row["path"])
    start = int(row["event_onset"] * rate)
    stop = start + int(row["event_seconds"] * rate)
    outside = np.concatenate([samples[:start], samples[stop:]])
    assert samples[start:stop].std() > 5 * outside.std()


def test_training_and_benchmark_data_of_the_same_seed_use_different_random_numbers() -> None:
    drawn = [world.stream(42, split, 3, 0).random(8) for split in ("benchmark", "training")]
    assert not np.isin(drawn[0], drawn[1]).any()


def test_an_interrupted_generation_of_the_mini_benchmark_leaves_no_half_written_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fake(folder: Path) -> Path:
        calls.append(folder)
        (folder / "audiomarathon.json").write_text("{}")
        if len(calls) == 1:
            raise KeyboardInterrupt
        return folder

    monkeypatch.setattr(mini, "generate", fake)
    monkeypatch.setattr(mini, "asked", lambda _hook: [])
    with pytest.raises(KeyboardInterrupt):
        mini.mini_benchmark(tmp_path)
    assert list(tmp_path.iterdir()) == []
    made = mini.mini_benchmark(tmp_path)
    assert mini.mini_benchmark(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == [made.name]
    assert len(calls) == 2
    monkeypatch.setattr(mini, "fingerprint", lambda: "changed")
    assert mini.mini_benchmark(tmp_path) != made
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "here"))
    assert mini.mini_benchmark().parent == tmp_path / "here"


def test_generating_data_of_an_unknown_task_is_refused_naming_the_task() -> None:
    with pytest.raises(ValueError, match=r"unknown task 'tua'.*librispeech"):
        mini.generate(Path("unused"), tasks=["tua"])


WINGS = ["jasco", "ruler/count", "ruler/order"]
WINGS += [f"lalm/{name}" for name in ("clotho", "audiocaps", "mmau_pro", "mmau_mini", "mmar")]


@pytest.mark.parametrize("name", WINGS)
def test_generated_data_of_jasco_ruler_and_lalm_tasks_load_without_bad_rows(root: Path, name: str) -> None:
    task = get_task(name)
    loaded = task.load(task.find(root))
    assert (len(loaded.samples) >= 6, loaded.bad_rows, loaded.defects) == (True, (), {})


@pytest.mark.parametrize("task", [task for task in ENCODER_TASKS if not task.private], ids=lambda task: task.name)
def test_every_class_of_an_encoder_task_has_clips_of_at_least_two_clusters(root: Path, task: EncoderTask) -> None:
    dataset = task.read(root)
    assert not dataset.bad_rows
    counts = Counter(label for clip in dataset.clips for label in {*clip.labels})
    clusters = {label: len({clip.cluster for clip in dataset.clips if label in clip.labels}) for label in counts}
    assert all(number > 1 for number in clusters.values())


def test_generating_jasco_data_twice_writes_the_same_bytes(root: Path, tmp_path: Path) -> None:
    (jasco,) = [wing for wing in all_wings() if wing.key == "jasco"]
    jasco.mini(tmp_path)
    files = {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()}
    assert files
    assert all((tmp_path / file).read_bytes() == (root / file).read_bytes() for file in files)
