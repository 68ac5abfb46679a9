"""What benchmark_xares.py makes and computes: tars that both sides read, one task and encoder file, the table."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import benchmark_xares as beside
from harness import xares_side

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks.xares.foreign import load_task_file, task_of
from audiomarathon.encoders.encoder import load_encoder

ESC50, COMMANDS, CROPS = beside.SHAPES


def small(shape: beside.Shape) -> beside.Shape:
    return replace(shape, parts=dict.fromkeys(shape.parts, 8), classes=4, seconds=0.3, dim=8, unlike=0.1)


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
