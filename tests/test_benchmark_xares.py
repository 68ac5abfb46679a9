"""What benchmark_xares.py makes and computes: tars that both sides read, one task and encoder file, the table."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "measure"))

import benchmark_xares as beside
from harness import xares_side

from audiomarathon.audio.decode import decode
from audiomarathon.wings.encoders.probing.frames import activity
from audiomarathon.wings.encoders.registry import load_encoder
from audiomarathon.wings.encoders.xares.task_config import load_task_file, task_of
from audiomarathon.wings.encoders.xares.tasks import named

ESC50, COMMANDS, CROPS, DESED, MAESTRO = beside.SHAPES


def small(shape: beside.Shape) -> beside.Shape:
    return replace(shape, parts=dict.fromkeys(shape.parts, 8), classes=4, seconds=0.3, dim=8, unlike=0.1)


def framed(shape: beside.Shape, dim: int = 8, many: int = 12) -> beside.Shape:
    return replace(shape, parts=dict.fromkeys(shape.parts, many), seconds=3.0, dim=dim, unlike=0.1, epochs=2)


def side(seconds: float, mlp: list[float], knn: float, size: int) -> dict[str, object]:
    cases = ("whole run", "both, from the cache", "MLP", "kNN")
    return {"seconds": dict.fromkeys(cases, seconds), "MLP": mlp, "kNN": knn, "bytes": size}


@pytest.mark.parametrize("shape", [ESC50, COMMANDS, CROPS], ids=lambda shape: shape.name)
def test_made_tars_are_the_same_each_time_and_read_as_a_task(tmp_path: Path, shape: beside.Shape) -> None:
    shape = small(shape)
    hashes = []
    for name in ("once", "again"):
        beside.make_tars(shape, tmp_path / name / shape.name)
        tars = sorted((tmp_path / name / shape.name).glob("*.tar"))
        hashes.append([hashlib.sha256(tar.read_bytes()).hexdigest() for tar in tars])
    assert hashes[0] == hashes[1]
    assert len({*hashes[0]}) == len(shape.parts)
    task_file, encoder_file = beside.write_files(shape, tmp_path / "once")
    task = task_of(load_task_file(task_file))
    data = task.read(tmp_path / "once")
    assert [clip.part for clip in data.clips] == [part for part in shape.parts for _ in range(8)]
    assert (data.bad_rows, len(data.classes)) == ((), 4)
    assert (task.recipe.batch, task.recipe.crop or 0, task.folds) == (shape.batch, shape.crop, bool(shape.folds))
    lengths = {len(decode(clip.audio, beside.RATE)) for clip in data.clips}
    assert (len(lengths) > 1) == (shape.short > 0)
    assert max(lengths) <= beside.RATE * 0.3
    assert load_encoder(str(encoder_file)).output_dim == 8


def test_our_side_finds_the_classes_of_the_made_clips(tmp_path: Path) -> None:
    beside.make_tars(small(ESC50), tmp_path / ESC50.name)
    found = xares_side.ours(tmp_path, *beside.write_files(small(ESC50), tmp_path))
    assert found["kNN"] > 0.9
    assert len(found["MLP"]) == 5
    assert found["bytes"] > 40 * 8 * 4
    assert {*found["seconds"]} == {"whole run", "both, from the cache", "MLP", "kNN"}


def test_a_table_holds_medians_and_the_ratios_of_rounds() -> None:
    theirs = [side(10, [0.5], 0.25, 9_000_000), side(30, [0.6], 0.25, 9_000_000), side(80, [0.7], 0.25, 9_000_000)]
    ours = [side(1, [0.5, 0.7], 0.25, 30_000), side(2, [0.5, 0.7], 0.25, 30_000), side(2, [0.5, 0.7], 0.25, 30_000)]
    lines = beside.rows(ESC50, {"xares": theirs, "audiomarathon": ours})
    assert lines[0] == ("ESC-50", "whole run", "30.00 s", "2.00 s", "15.0 (10.0 to 40.0)", "")
    assert lines[2][-1] == "0.6000 ± 0.1000 (3) · 0.6000 ± 0.1414 (2); t = 0.00, p = 1.00"
    assert lines[3][-1] == "0.2500 · 0.2500, equal"
    assert lines[4][1:5] == ("cache", "9.0 MB", "0.0 MB", "300")


def test_one_clip_more_is_not_equal() -> None:
    found = {"xares": [side(1, [0.5], 0.25, 1)], "audiomarathon": [side(1, [0.5], 0.25 + 1 / 2000, 1)]}
    assert beside.knn_scores(found) == "0.2500 · 0.2505, **not equal**"
    assert beside.mlp_scores([0.5], [0.5, 0.7]) == "0.5000 ± 0.0000 (1) · 0.6000 ± 0.1414 (2)"


@pytest.mark.parametrize("shape", [DESED, MAESTRO], ids=lambda shape: shape.name)
def test_made_frames_are_the_released_task_with_labels_as_x_ares_makes_them(
    tmp_path: Path, shape: beside.Shape
) -> None:
    beside.make_tars(framed(shape), tmp_path / shape.name)
    task_file, encoder_file = beside.write_files(framed(shape), tmp_path)
    (task,), encoder = named([str(task_file)]), load_encoder(str(encoder_file))
    (released,) = named([shape.name])
    assert task == replace(released, recipe=replace(released.recipe, epochs=2, weight=0))
    data = task.read(tmp_path)
    assert (len(data.clips), data.bad_rows) == (12 * len(shape.parts), ())
    theirs = load_task_file(task_file, encoder).label_processor
    assert theirs
    for clip in data.clips:
        frames = 75 if shape.name == "maestro" else 250
        made = theirs([dict(zip(task.fields, event, strict=True)) for event in clip.facts]).T.bool().numpy()
        ours = activity(clip.facts, shape.labels, 40, frames, task.until, released=True)
        np.testing.assert_array_equal(ours[: len(made)], made)
        assert not ours[len(made) :].any()


def test_our_side_finds_the_frames_of_the_made_clips(tmp_path: Path) -> None:
    beside.make_tars(framed(DESED, 64, 40), tmp_path / "desed")
    found = xares_side.ours(tmp_path, *beside.write_files(framed(DESED, 64, 40), tmp_path))
    assert found["standard"] > 0.5
    assert len(found["MLP"]) == 1
    assert {*found["seconds"]} == {"whole run", "MLP", "standard"}


def test_a_checkpoint_of_theirs_scores_as_scikit_learn_says(tmp_path: Path) -> None:
    shape, rng = framed(DESED), np.random.default_rng(0)
    task_file, encoder_file = beside.write_files(shape, tmp_path)
    (stored, kept) = (tmp_path / "desed" / name / "FramedEncoder" for name in ("embeddings", "checkpoints"))
    for folder in (stored, kept):
        folder.mkdir(parents=True)
    state = {"ln.weight": rng.normal(1, 0.2, 8), "ln.bias": rng.normal(0, 0.2, 8), "criterion.pos_weight": np.ones(1)}
    state |= {"fc.weight": rng.standard_normal((10, 8)), "fc.bias": rng.standard_normal(10)}
    torch.save({name: torch.tensor(value, dtype=torch.float32) for name, value in state.items()}, kept / "best.ckpt")
    predicted, true = [], []
    lengths = [120] * 31 + [160] + [90, 75]  # a batch of 32, padded to 160, and one padded to 90
    with tarfile.open(stored / "wds-encoded-wds-audio-eval-000000.tar", "w") as tar:
        for place, length in enumerate(lengths):
            events = beside.drawn(rng, shape, length * 0.04, place % 10)
            stream, frames = io.BytesIO(), rng.standard_normal((length, 8)).astype(np.float32)
            np.save(stream, frames)
            beside._add(tar, f"c{place}.npy", stream.getvalue())
            beside._add(tar, f"c{place}.json", json.dumps(beside.meta_of(shape, events)).encode())
            x = np.zeros((160 if place < 32 else 90, 8))
            x[:length] = frames
            deviation = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
            x = (x - x.mean(axis=1, keepdims=True)) / deviation * state["ln.weight"] + state["ln.bias"]
            hot = np.zeros((len(x), 10), dtype=bool)
            for start, end, which in events:
                hot[np.ceil(start * 25).astype(int) : np.ceil(end * 25).astype(int), which] = True
            for each, into in ((x @ state["fc.weight"].T + state["fc.bias"] > 0, predicted), (hot, true)):
                into += [each[at : at + 25].any(axis=0) for at in range(0, len(x) - 24, 25)]
    found = xares_side.checkpoint(tmp_path, task_file, encoder_file)["checkpoint"]
    assert found == pytest.approx(f1_score(np.array(true), np.array(predicted), average="macro"), abs=1e-12)
    assert 0.1 < found < 0.9


def test_a_table_of_frames_tells_another_score_of_a_checkpoint() -> None:
    cases = dict.fromkeys(("whole run", "MLP", "standard"), 2.0)
    theirs = [{"seconds": cases, "MLP": [score], "checkpoint": score, "bytes": 4} for score in (0.5, 0.7)]
    ours = [{"seconds": cases, "MLP": [score], "standard": 0.9, "bytes": 2} for score in (0.5, 0.7)]
    lines = beside.rows(DESED, {"xares": theirs, "audiomarathon": ours})
    assert lines[1][-1] == "0.6000 ± 0.1414 (2) · 0.6000 ± 0.1414 (2); t = 0.00, p = 1.00"
    assert [line[-1] for line in lines[2:4]] == ["– · 0.9000", "0.5000, 0.7000 · 0.5000, 0.7000, equal (0e+00)"]
    theirs[1]["checkpoint"] = 0.7 + 2e-8
    assert beside.checkpoint_scores(theirs).endswith("**not equal** (2e-08)")
