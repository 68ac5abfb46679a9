"""`--save-attn`, `audiomarathon attention` and LALM Bench's script: files beside a run, resume, refusals, pictures."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import task_folders
from archive_makers import npy, npy_header
from builders import lines_of
from conftest import call, succeed
from matplotlib.figure import Figure

from audiomarathon.engine import attention_capture
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.report.explain import Clip, spectrogram
from audiomarathon.runs import attention as stored
from audiomarathon.runs.attention import ROWS, Attention, index_of
from audiomarathon.runs.folder import read_records
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import to_line
from audiomarathon.wings.attention.maps import Whole, draw_mean, in_blocks
from audiomarathon.wings.attention.pictures import _clip, draw, read_seen

Asked = tuple[object, ...]
SCRIPT = Path(__file__).parent.parent / "LALM_Bench/experiments/attention/visualization.py"
RUN = Path("tau/tiny-omni/base-0")


@pytest.fixture(scope="module")
def asked(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Options that all commands of these tests share: a tiny model, ten short clips."""
    data = task_folders.build_tau(tmp_path_factory.mktemp("data") / "TAU")
    return (
        "tau", "--model", "qwen2.5-omni", "--model-path", tiny_checkpoint, "--data", data, "--no-timing",
        "--max-new-tokens", 4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def captured(asked: Asked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of three samples under base and fast_v, with their attention."""
    results = tmp_path_factory.mktemp("captured")
    for method in (("--method", "base"), ("--method", "fast_v", "--ratio", "0.5")):
        succeed("run", *asked, "--limit", 3, "--save-attn", *method, "--results", results)
    return results


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw small pictures without computing their layout: the layout takes longer than the drawing."""
    save = Figure.savefig
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file: save(figure, file, dpi=30))
    monkeypatch.setattr("matplotlib.figure.Figure.get_layout_engine", lambda _figure: None)


def test_save_attn_writes_an_attention_file_and_an_index_line_for_each_sample(asked: Asked, captured: Path) -> None:
    records, rows = read_records(captured / RUN), lines_of(captured / RUN / "attention" / "index.jsonl")
    assert {row["id"] for row in rows} == set(records)
    for row in rows:
        attention = Attention.read(captured / RUN / "attention" / row["file"])
        record = records[row["id"]]
        assert (row["prompt_tokens"], row["audio_tokens"]) == (record.prompt_tokens, record.audio_tokens)
        said = [attention.meta[name] for name in ("reply", "sample_id", "method")]
        assert said == [record.reply, row["id"], "base-0"]
        assert attention.profile.shape == (len(ROWS), 4, record.audio_tokens)
        assert row["bytes"] == (captured / RUN / "attention" / row["file"]).stat().st_size


def test_repeating_a_run_captures_only_samples_whose_attention_file_is_missing(
    asked: Asked, captured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ("run", *asked, "--limit", 3, "--save-attn", "--results", captured)
    calls: list[str] = []
    capture_one = attention_capture._capture_one
    monkeypatch.setattr(
        attention_capture, "_capture_one", lambda *given: calls.append(given[3].id) or capture_one(*given)
    )
    succeed(*again)
    assert calls == []
    rows = index_of(captured / RUN)
    lost = sorted(rows)[1]
    (captured / RUN / "attention" / rows[lost]["file"]).unlink()
    succeed(*again)
    assert calls == [lost]


def test_a_sample_whose_capture_failed_is_captured_again(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("run", *asked, "--limit", 2, "--save-attn", "--results", tmp_path)
    capture_one = attention_capture._capture_one
    failing: list[str] = []

    def once(*given: Any) -> bool:
        if not failing:
            failing.append(given[3].id)
            raise MemoryError("none left")
        return capture_one(*given)

    monkeypatch.setattr(attention_capture, "_capture_one", once)
    code, said = call(*command)
    assert code == 1
    assert f"error: tau: attention of {failing[0]}: MemoryError: none left" in said
    assert "attention of 1 sample is missing; run the same command again" in said
    assert len(read_records(tmp_path / RUN)) == 2
    assert call(*command)[0] == 0
    assert len(index_of(tmp_path / RUN)) == 2


def test_a_later_attention_capture_adds_its_layers_to_those_already_captured(asked: Asked, tmp_path: Path) -> None:
    arguments = ("attention", "capture", *asked, "--limit", 1, "--results", tmp_path)
    assert call(*arguments, "--attn-layers", "0", "--attn-full")[0] == 0
    assert call(*arguments, "--attn-layers", "2")[0] == 0
    (row,) = index_of(tmp_path / RUN).values()
    assert (row["layers"], row["all"], row["full"]) == ([0, 2], False, True)
    whole = (tmp_path / RUN / "attention" / row["file"]).with_suffix(".whole")
    assert np.load(whole / "attn.npy", mmap_mode="r").shape[0] == 2
    index = tmp_path / RUN / "attention" / "index.jsonl"
    index.write_text(json.dumps({**row, "clips": "others"}) + "\n")
    assert call(*arguments, "--attn-layers", "0")[0] == 0
    assert next(iter(index_of(tmp_path / RUN).values()))["layers"] == [0]
    assert not whole.exists()


def test_a_damaged_attention_file_or_index_line_counts_as_missing(captured: Path, tmp_path: Path) -> None:
    shutil.copytree(captured / RUN / "attention", tmp_path / "attention")
    rows = index_of(tmp_path)
    cut, kept, other = (tmp_path / "attention" / row["file"] for row in rows.values())
    cut.write_bytes(cut.read_bytes()[:-1])
    with (tmp_path / "attention" / "index.jsonl").open("a") as index:
        index.write(json.dumps({**next(iter(rows.values())), "id": [1]}))
        index.write('\n{"id": "x", "file": "a"}\nnonsense\n7\n')
    assert {row["file"] for row in index_of(tmp_path).values()} == {kept.name, other.name}


def test_a_reply_that_differs_when_generated_again_for_attention_capture_is_reported(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("run", *asked, "--limit", 1, "--save-attn", "--results", tmp_path)
    assert "differ from the recorded" not in call(*arguments)[1]
    record = next(iter(read_records(tmp_path / RUN).values()))
    (tmp_path / RUN / "samples.jsonl").write_bytes(to_line(replace(record, reply="another")))
    shutil.rmtree(tmp_path / RUN / "attention")
    assert "when generated again to capture attention: 1" in call(*arguments)[1]


def test_an_unwritable_attention_folder_is_one_error_line_and_loses_no_record(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / RUN).mkdir(parents=True)
    (tmp_path / RUN / "attention").write_text("in the way")
    code, said = call("run", *asked, "--limit", 2, "--save-attn", "--results", tmp_path)
    assert (code, said.count("cannot be written")) == (2, 1), said
    assert len(read_records(tmp_path / RUN)) == 2


def test_capture_of_a_prompt_too_long_for_full_attention_maps_fails_but_the_run_finishes(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_capture, "LONGEST_FULL", 10)
    code, said = call("attention", "capture", *asked, "--limit", 1, "--results", tmp_path, "--attn-full")
    assert code == 1
    assert "tokens, or audiomarathon attention capture --yes" in said
    assert "attention of 1 sample is missing" in said
    assert (tmp_path / RUN / "summary.json").is_file()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--attn-implementation", "flash_attention_2"], "flash_attention_2; allowed: sdpa"),
        (["--attn-layers", "1,x"], "--attn-layers=1,x: not allowed; allowed: numbers joined by commas, or all"),
        (["--attn-layers", "9"], "layer 9: not one of this model's layers 0–3"),
        (["--executor", "ray"], "in this process only"),
        (["--no-save-attn", "--attn-layers", "1"], "ATTN_LAYERS=1: attention is not saved; add --save-attn"),
    ],
)
def test_unusable_options_of_an_attention_capture_are_refused(
    asked: Asked, tmp_path: Path, given: list[str], said: str
) -> None:
    code, output = call("run", *asked, "--limit", 1, "--save-attn", "--results", tmp_path, *given)
    assert code == 2
    assert said in output
    assert not any(file.read_bytes() for file in tmp_path.rglob("samples.jsonl")), "refused before the first sample"


def test_capturing_attention_of_one_sample_leaves_the_record_files_of_the_run_unchanged(
    asked: Asked, captured: Path
) -> None:
    before = {name: (captured / RUN / name).read_bytes() for name in ("run.json", "samples.jsonl", "summary.json")}
    sample = sorted(index_of(captured / RUN))[0]
    (captured / RUN / "attention" / index_of(captured / RUN)[sample]["file"]).unlink()
    succeed("attention", "capture", *asked, "--results", captured, "--sample", sample)
    assert before == {name: (captured / RUN / name).read_bytes() for name in before}
    assert sample in index_of(captured / RUN)


def test_full_attention_maps_averaged_in_blocks_equal_the_captured_block_averages(asked: Asked, captured: Path) -> None:
    sample = sorted(index_of(captured / RUN))[0]
    full = ("attention", "capture", *asked, "--results", captured, "--sample", sample, "--attn-full")
    succeed(*full, "--attn-layers", "0")
    file = captured / RUN / "attention" / index_of(captured / RUN)[sample]["file"]
    place, attention = file.with_suffix(".whole"), Attention.read(file)
    maps = np.load(place / "attn.npy", mmap_mode="r")
    assert maps.shape == (4, *[len(attention.tokens)] * 2), "layers that were there stay"
    assert np.abs(in_blocks(maps, 64) - attention.blocks).max() < 1e-3
    assert json.loads((place / "meta.json").read_text())["benchmark"] == "tau"


def test_capturing_the_attention_of_an_unknown_sample_id_is_refused(asked: Asked, tmp_path: Path) -> None:
    code, said = call("attention", "capture", *asked, "--sample", "nobody", "--results", tmp_path)
    assert code == 2
    assert "sample id 'nobody'" in said


def made(folder: Path, profile: np.ndarray | None = None, first: int = 0) -> Run:
    """Write a run with the attention of one sample: three rows, some layers, five audio tokens."""
    profile = np.ones((3, 4, 5), np.float16) if profile is None else profile
    layers = profile.shape[1]
    groups = ["first token", "template before", "clip 1", "question", "rest of the template", "generated"]
    mass = np.full((3, layers, 1, 6), 1 / 6, np.float32)
    meta = {"groups": groups, "layers": list(range(first, first + layers)), "clips": [5], "kept_audio_bits": None}
    meta |= {"model_layers": first + layers, "parts": [["first token", 0, 1], ["clip 1", 1, 6], ["question", 6, 8]]}
    entropy, top = np.zeros((3, layers, 1)), np.zeros((3, layers, 1, 5))
    blocks, edges = np.full((layers, 8, 8), 1 / 8), np.arange(9)
    attention = Attention(mass, profile, top, top, entropy, blocks, edges, ("t",) * 8, meta)
    row = {"id": "a", "file": "a.npz", "layers": meta["layers"], "all": True, "full": False, "clips": None}
    row |= {"bytes": attention.save(folder / "attention" / "a.npz")}
    (folder / "attention" / "index.jsonl").write_text(json.dumps(row) + "\n")
    facts = {"task": "tau", "method": "base-0", "checkpoint": "c", "model": "embedded"}
    (folder / "run.json").write_text(json.dumps(facts))
    return Run(facts, {}, folder=folder)


def plot(folder: Path) -> tuple[int, str]:
    return call("attention", "plot", folder, "-o", folder / "pictures")


def change(folder: Path, **arrays: bytes) -> None:
    """Replace members of the stored file by other bytes, and update its size in the index."""
    file = folder / "attention" / "a.npz"
    with zipfile.ZipFile(file) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in (members | {f"{name}.npy": content for name, content in arrays.items()}).items():
            out.writestr(name, content)
    index(folder, bytes=file.stat().st_size)


def index(folder: Path, **fields: Any) -> None:
    file = folder / "attention" / "index.jsonl"
    file.write_text("".join(json.dumps(row | fields) + "\n" for row in lines_of(file)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mass", b"no array"),
        *(("mass", npy_header(shape)) for shape in ((10**12, 4, 1, 6), (-1, 4, 1, 6), "(" * 5000)),
        ("mass", npy_header((1,), "|O") + pickle.dumps([1])),
        ("mass", npy_header((3, 4, 1, 6), "<c8") + bytes(8 * 72)),
        ("mass", npy(np.ones((3, 4, 6)))),
        ("profile", npy(np.ones((3, 9, 5)))),
        ("blocks", npy(np.ones((4, 0, 0)))),
        ("tokens", npy(np.frombuffer(b'{"t": 1}', np.uint8))),
        *(("meta", npy(np.frombuffer(text, np.uint8))) for text in (b"[" * 100_000, b"[1]", bytes(17 << 20))),
    ],
)
def test_a_damaged_array_in_an_attention_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    made(tmp_path)
    change(tmp_path, **{name: content})
    code, said = plot(tmp_path)
    assert (code, said.count("\n"), "a.npz: not a valid attention file" in said) == (2, 1, True), said


@pytest.mark.parametrize(
    "change",
    [
        {"layers": "0123"}, {"layers": [[0], 1, 2, 3]}, {"layers": [0, 0, 1, 2]}, {"model_layers": "4"},
        {"model_layers": 10**12}, {"clips": [10**12]}, {"groups": [1, 2, 3, 4, 5, 6]}, {"parts": [["a", "b", "c"]]},
        {"parts": [["clip 1", 0, 10**9]]}, {"kept_audio_bits": "?"}, {"kept_audio_bits": [1]},
    ],
)  # fmt: skip
def test_an_attention_file_with_a_metadata_field_of_the_wrong_type_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    run = made(tmp_path)
    attention = Attention.read(tmp_path / "attention" / "a.npz")
    replace(attention, meta={**attention.meta, **change}).save(tmp_path / "attention" / "a.npz")
    index(tmp_path, bytes=(tmp_path / "attention" / "a.npz").stat().st_size)
    with pytest.raises(RecordError, match=r"a\.npz: not a valid attention file"):
        read_seen(run, "made", 0)


@pytest.mark.parametrize("content", [npy(np.ones(3)), b"", b"PK\5\6" + bytes(18), b"text", b"PK\3\4" + bytes(100)])
def test_a_file_that_is_no_attention_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    made(tmp_path)
    (tmp_path / "attention" / "a.npz").write_bytes(content)
    index(tmp_path, bytes=len(content))
    code, said = plot(tmp_path)
    assert (code, said.count("\n"), "a.npz" in said) == (2, 1, True), said


def test_an_attention_file_with_an_array_that_unpacks_beyond_the_size_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audiomarathon.untrusted.MAX_METADATA_BYTES", 1 << 16)
    made(tmp_path)
    change(tmp_path, mass=npy(np.zeros((3, 4, 1, 6000))))
    assert "more than 65,536 bytes to unpack" in plot(tmp_path)[1]


@pytest.mark.usefixtures("undrawn")
def test_bad_lines_in_the_attention_index_are_ignored(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "secret").write_text("not yours")
    index = tmp_path / "attention" / "index.jsonl"
    (good,) = lines_of(index)
    bad = [{"layers": layers} for layers in ([[0]], ["a", 1], [0.5], [])] + [{"id": ["a"]}, {"bytes": "7"}]
    bad += [{"id": "b", "bytes": 9, "file": file} for file in ("../secret", str(tmp_path / "secret"))]
    index.write_text("\n".join([json.dumps(good), "[" * 100_000, "\x00", *(json.dumps(good | row) for row in bad)]))
    assert list(index_of(tmp_path)) == ["a"]
    assert plot(tmp_path)[0] == 0


def test_an_attention_index_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "attention" / "index.jsonl").unlink()
    os.mkfifo(tmp_path / "attention" / "index.jsonl")
    code, said = plot(tmp_path)
    assert code == 2
    assert "index.jsonl: cannot be read: a FIFO" in said


@pytest.mark.usefixtures("undrawn")
def test_clip_paths_in_an_attention_file_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    attention = Attention.read(tmp_path / "attention" / "a.npz")
    replace(attention, meta={**attention.meta, "audio": ["/etc/passwd"]}).save(tmp_path / "attention" / "a.npz")
    index(tmp_path, bytes=(tmp_path / "attention" / "a.npz").stat().st_size)
    opened: list[object] = []
    monkeypatch.setattr("audiomarathon.wings.attention.pictures.audio.decode", lambda clip, _rate: opened.append(clip))
    assert plot(tmp_path)[0] == 0
    assert opened == []


@pytest.mark.usefixtures("undrawn")
def test_the_values_plotted_in_attention_pictures_are_also_written_as_json(
    asked: Asked, captured: Path, tmp_path: Path
) -> None:
    succeed("attention", "plot", captured, "-o", tmp_path / "new")
    told = json.loads((tmp_path / "new" / "attention.json").read_text())
    assert set(told) == {"base-0", "fast_v-0.5-layer2"}
    figures = told["base-0"]
    ones = [Attention.read(captured / RUN / "attention" / row["file"]) for row in index_of(captured / RUN).values()]
    clip = ones[0].meta["groups"].index("clip 1")
    wanted = np.mean([attention.mass[0, :, :, clip].mean(1) for attention in ones], 0)
    assert figures["mass"]["last"]["audio"] == pytest.approx(wanted.tolist(), rel=1e-5)
    for row in ROWS:
        shares = list(figures["mass"][row].values())
        assert np.sum(shares, 0) == pytest.approx(np.ones(4), abs=1e-4)
    assert figures["foresight"]["by_layer"][1] is None, "layer 1 with itself"
    assert figures["foresight"]["last_layers"] == [3]
    foresight = figures["foresight"]
    assert foresight["mean_of_last_layers"] == pytest.approx(foresight["by_layer"][3], abs=1e-5)
    assert [told[name]["foresight"]["over"] for name in told] == ["all audio tokens", "kept audio tokens"]
    assert figures["samples"] == len(ones)
    run = Run.read(captured / RUN)
    assert _clip(run, next(iter(run.records)), [0.5]).seconds == 0.5, "the clip of the task's data"


def test_foresight_of_a_layer_is_the_rank_correlation_of_its_attention_with_later_layers(tmp_path: Path) -> None:
    """Layers 0 to 2 rank the first four tokens alike, and layer 3 in reverse. Layers 2 and 3 lack the fifth token."""
    profile = np.zeros((3, 4, 5), np.float16)
    profile[:, :2] = [1, 2, 3, 4, 5]
    profile[:, 2] = [10, 20, 30, 40, 0]
    profile[:, 3] = [4, 3, 2, 1, 0]
    run = made(tmp_path, profile)
    seen = read_seen(run, "made", 2)
    assert seen.foresight[0] == pytest.approx([1, np.nan, 1, -1], nan_ok=True)
    assert seen.last_layers().value == pytest.approx(-1)
    none = read_seen(run, "made", 0)
    assert np.isnan(none.foresight).all()
    assert np.isnan(none.last_layers().value)


@pytest.mark.usefixtures("sketched")
def test_every_attention_picture_is_drawn_even_if_the_audio_data_is_missing(tmp_path: Path) -> None:
    run = made(tmp_path)
    names = ("heads.png", "layers.png", "blocks.png", "time.png")
    assert {tmp_path / name for name in names} <= {*draw([run], tmp_path)}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    told = json.loads((tmp_path / "attention.json").read_text())
    assert told["base-0"]["foresight"]["mean_of_last_layers"] is None


def test_the_loudest_band_of_a_spectrogram_of_a_tone_is_at_the_mark_of_its_frequency() -> None:
    tone = np.sin(2 * np.pi * 2000 * np.arange(16000) / 16000).astype(np.float32)
    axes = Figure().subplots()
    spectrogram(axes, Clip("tone", tone, 16000))
    level = axes.images[0].get_array()
    (mark,) = (y for y, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True) if label.get_text() == "2")
    assert level.shape == (96, 101)
    assert (level[:, 50].argmax(), level.max()) == (pytest.approx(mark - 0.5, abs=1), pytest.approx(0, abs=1e-3))


@pytest.mark.usefixtures("undrawn")
def test_attention_pictures_label_equally_named_runs_by_their_folders(tmp_path: Path) -> None:
    runs = [made(tmp_path / str(number)) for number in range(9)]
    draw(runs[:2], tmp_path / "two")
    told = json.loads((tmp_path / "two" / "attention.json").read_text())
    assert list(told) == [f"base-0 ({run.folder})" for run in runs[:2]]
    with pytest.raises(SettingsError, match="9 runs have captured attention"):
        draw(runs, tmp_path / "nine")


@pytest.mark.usefixtures("undrawn")
def test_foresight_is_plotted_for_a_layer_below_other_captured_layers_in_every_run(tmp_path: Path) -> None:
    rising = np.tile(np.arange(1, 6, dtype=np.float16), (3, 8, 1))
    first_run, other = made(tmp_path / "a", rising), made(tmp_path / "b", rising[:, :4], first=4)
    draw([first_run, other], tmp_path)
    told = json.loads((tmp_path / "attention.json").read_text())
    assert {figures["foresight"]["layer"] for figures in told.values()} == {5}
    late = read_seen(first_run, "late", 7)
    assert (late.later, late.last_layers().value) == ([7], pytest.approx(1)), "not of layer 6 with itself"


def test_pictures_show_only_the_layers_captured_for_all_samples(tmp_path: Path) -> None:
    run = made(tmp_path)
    index = tmp_path / "attention" / "index.jsonl"
    (row,) = lines_of(index)
    made(tmp_path / "other", np.ones((3, 2, 5), np.float16), first=2)
    file = Path(shutil.copy(tmp_path / "other" / "attention" / "a.npz", tmp_path / "attention" / "b.npz"))
    more = row | {"id": "b", "file": "b.npz", "layers": [2, 3], "all": False, "bytes": file.stat().st_size}
    index.write_text(json.dumps(row) + "\n" + json.dumps(more) + "\n")
    seen = read_seen(run, "made", 3)
    assert (seen.layers, seen.to_audio.shape[:3]) == ([2, 3], (2, 3, 2))
    index.write_text(json.dumps(row) + "\n" + json.dumps(more | {"layers": [9]}) + "\n")
    with pytest.raises(RecordError, match="no layer was captured for each sample"):
        read_seen(run, "made", 3)


@pytest.mark.usefixtures("undrawn")
def test_attention_captured_at_a_single_layer_gets_no_foresight_picture(tmp_path: Path) -> None:
    run = made(tmp_path, np.ones((3, 1, 5), np.float16))
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "foresight.png").write_text("of other runs")
    names = {file.name for file in draw([run], tmp_path / "pictures")}
    assert names == {"heads.png", "layers.png", "blocks.png", "time.png", "attention.json"}
    assert not (tmp_path / "pictures" / "foresight.png").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--layer", "9"], "--layer 9: layer 8 and a later one must be captured; allowed: 1, 2, 3"),
        (["--sample", "nobody"], r"no attention of 'nobody' in \S+( and \d+ more runs?)?; run"),
    ],
)
def test_attention_pictures_of_a_layer_or_sample_that_was_not_captured_are_refused(
    asked: Asked, captured: Path, tmp_path: Path, given: list[str], said: str
) -> None:
    code, output = call("attention", "plot", captured, "-o", tmp_path / "new", *given)
    assert (code, (tmp_path / "new").exists()) == (2, False)
    assert re.search(said, output)


Scripted = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Scripted, no_env: object) -> Scripted:
    """Run LALM Bench's attention script in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: script(SCRIPT, *words)


@pytest.mark.usefixtures("sketched")
def test_the_command_in_the_readme_writes_the_same_files_as_the_original_attention_script(
    run: Scripted, tmp_path: Path
) -> None:
    code, _out, said = run("--prompt", "Test", "--layers", "0", "1", "--limit-samples", "1", "--output-dir",
                     "outputs/attn/smoke", "--run-name", "r", "--model", "embedded")  # fmt: skip
    assert code == 0, said
    place = tmp_path / "outputs" / "attn" / "smoke" / "r"
    assert sorted(file.relative_to(place).as_posix() for file in place.rglob("*.*")) == [
        "global_layer_mean.jpg", "global_layer_mean.npy", "global_mean.jpg", "global_mean.npy",
        "prompt_0000/attn.npy", "prompt_0000/layer_00.jpg", "prompt_0000/layer_01.jpg",
        "prompt_0000/layer_mean.jpg", "prompt_0000/meta.json", "prompt_0000/tokens.json", "stats.json",
    ]  # fmt: skip
    maps = np.load(place / "prompt_0000" / "attn.npy")
    assert np.allclose(maps.sum(-1), 1, atol=1e-5)
    assert np.allclose(np.load(place / "global_mean.npy"), maps.mean(0))


@pytest.mark.usefixtures("undrawn")
def test_the_attention_script_reads_prompts_from_a_jsonl_file(run: Scripted, tmp_path: Path) -> None:
    turn = {"role": "user", "content": "Hello you"}
    rows = ["Test", {"prompt": "A longer prompt"}, {"id": "mine", "messages": [turn]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, _out, said = run("--input-jsonl", "p.jsonl", "--model", "embedded", "--max-layers", "1", "--run-name", "r")
    assert code == 0, said
    stats = json.loads((tmp_path / "outputs" / "attn" / "r" / "stats.json").read_text())
    assert list(stats["per_sample"]) == ["jsonl_0000", "jsonl_0001", "mine"]
    assert stats["layer_indices"] == [0]
    assert np.allclose(np.load(tmp_path / "outputs" / "attn" / "r" / "global_mean.npy").sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}', 1),
        ('{"messages": [{"role": "system", "content": "a"}]}', 1),
        ('{"messages": [{"role": "user", "content": [{"type": "image", "image": "a"}]}]}', 1),
        ('{"question": "a"}', 1),
        ("7", 1),
        ('{"id": "q", "prompt": "a\u2028b"}\n{"id": "q", "prompt": "c"}\n', 2),
    ],
)
def test_a_jsonl_line_without_one_text_prompt_or_with_a_repeated_id_is_refused(
    run: Scripted, tmp_path: Path, content: str, line: int
) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    code, _out, said = run("--input-jsonl", "p.jsonl", "--model", "embedded")
    assert code == 2
    assert f"p.jsonl, line {line}" in said


@pytest.mark.usefixtures("undrawn")
def test_a_run_name_with_dots_cannot_leave_the_output_folder(run: Scripted, tmp_path: Path) -> None:
    assert run("--prompt", "a", "--model", "embedded", "--run-name", "../../away", "--layers", "0")[0] == 0
    (place,) = (tmp_path / "outputs" / "attn").iterdir()
    assert (place / "stats.json").is_file()


@pytest.mark.usefixtures("undrawn")
def test_attention_maps_of_prompts_of_different_lengths_are_averaged_by_relative_position(tmp_path: Path) -> None:
    """Averaged by relative position, rows still sum to 1. Cut to size, as in the original, they do not."""
    ones = []
    for length in (8, 16):
        maps = np.tril(np.ones((1, length, length)))
        ones.append(Whole(str(length), maps / maps.sum(-1, keepdims=True), ["t"] * length, [0]))
    draw_mean(ones, tmp_path, run="r", faithful=False)
    mean = np.load(tmp_path / "global_mean.npy")
    assert np.allclose(mean, (ones[0].maps[0] + in_blocks(ones[1].maps, 8)[0]) / 2)
    assert np.allclose(mean.sum(-1), 1)
    draw_mean(ones, tmp_path, run="r", faithful=True)
    assert np.allclose(np.load(tmp_path / "global_mean.npy"), (ones[0].maps[0] + ones[1].maps[0, :8, :8]) / 2)


@pytest.mark.parametrize(
    ("row", "asked", "there"),
    [
        ({"layers": [0, 1], "all": False}, {"attn_layers": (1,)}, True),
        ({"layers": [0, 1], "all": False}, {"attn_layers": (1, 2)}, False),  # layer 2 is missing
        ({"layers": [0, 1], "all": False}, {}, False),
        ({"layers": [0, 1], "all": True}, {}, True),
        ({"full": False}, {"attn_full": True}, False),
        ({"full": True}, {"attn_full": True}, True),
        ({"clips": "other"}, {}, False),
        ({"bytes": 4}, {}, False),
    ],
)
def test_attention_stored_with_other_layers_clip_hash_or_file_size_is_captured_again(
    tmp_path: Path, row: dict[str, Any], asked: dict[str, Any], there: bool
) -> None:
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "a.npz").write_bytes(b"12345")
    usual = {"id": "a", "file": "a.npz", "bytes": 5, "layers": [0], "all": True, "full": False, "clips": "c"}
    (tmp_path / "attention" / "index.jsonl").write_text(json.dumps(usual | row) + "\n")
    settings = SimpleNamespace(**{"attn_layers": (), "attn_full": False} | asked)
    ids = stored.captured(SimpleNamespace(path=tmp_path), {"a": "c"}, settings)  # type: ignore[arg-type]
    assert ids == ({"a"} if there else set())
