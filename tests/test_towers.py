"""Audio LLMs as encoders: states read at the tower, the projector and LLM layers, pruned or not, are probed."""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from builders import one_load  # noqa: F401 (a fixture)
from conftest import call, succeed
from families import Family
from task_folders import build_all
from test_cli import one_error
from xares_tars import write_tar

from audiomarathon.audio.decode import decode
from audiomarathon.compression.method import Base
from audiomarathon.compression.pruners.merge_frame import MergeFrame
from audiomarathon.compression.pruners.random import Random
from audiomarathon.embedded import synthesis, world
from audiomarathon.errors import DataError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.records import Record
from audiomarathon.report.page_data import PageData
from audiomarathon.report.sections import sections
from audiomarathon.results.systems import systems_of
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import Encoder
from audiomarathon.wings.encoders.home_tasks import encoder_tasks
from audiomarathon.wings.encoders.probing import towers
from audiomarathon.wings.encoders.probing.clips import Clips, rotated
from audiomarathon.wings.encoders.probing.linear_and_knn import linear_probe
from audiomarathon.wings.encoders.registry import load_encoder
from audiomarathon.wings.encoders.report.tower_sections import layer_curves
from audiomarathon.wings.encoders.results.towers import fourfolds, standings
from audiomarathon.wings.encoders.tower import Reading, Tower, TowerEncoder, at_point

RATE = 16_000
POINTS = ["tower.0", "tower", "projector", "llm.0"]
CUES = [label.cue for label in world.labels_of("slue")]


def noise(seconds: float, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(round(seconds * RATE), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", autouse=True)
def one_tower(one_load: None) -> Iterator[None]:  # noqa: F811 (the fixture)
    """Let all commands share a loaded tower: to load and measure it takes longer than to probe it."""
    with pytest.MonkeyPatch.context() as patch:
        measured = Tower.of
        of = functools.cache(lambda lm, name, identity, *prompt: measured(lm, name, json.loads(identity), *prompt))
        patch.setattr(Tower, "of", lambda lm, name, identity, *prompt: of(lm, name, json.dumps(identity), *prompt))
        yield


@pytest.fixture(scope="module")
def tower(family_lm: AudioLM) -> Tower:
    return Tower.of(family_lm, "tiny", {"checkpoint": "none"})


@pytest.fixture(scope="module")
def embedded() -> Encoder:
    return load_encoder("tower:embedded")


@pytest.mark.parametrize("seconds", [1.3, 33.0])
def test_tower_hidden_states_read_for_probes_equal_the_tower_output_without_padding(
    tower: Tower, family: Family, seconds: float
) -> None:
    lm, calls = tower.lm, list[tuple[Any, Any]]()
    clip = noise(seconds)
    with lm.audio_encoder.register_forward_pre_hook(lambda _m, a, k: calls.append((a, k)), with_kwargs=True):
        rows = tower.read(clip.numpy()).rows
    ((args, kwargs),) = calls
    with torch.inference_mode():
        output = lm.audio_encoder(*args, **kwargs)
    frames = (output if isinstance(output, torch.Tensor) else output[0]).flatten(0, -2)
    per_token = {"voxtral": 4}.get(family.key, 1)
    tokens = {"voxtral": math.ceil(len(clip) / 1280), "gemma3n": None}.get(family.key, family.audio_tokens(len(clip)))
    assert torch.equal(rows["tower"], frames[: len(rows["tower"])].float())
    assert len(rows["tower"]) == len(rows["projector"]) * per_token or family.key == "voxtral"
    if tokens is not None:
        assert len(rows["projector"]) == len(rows["llm.last" if "llm.last" in rows else "llm.3"]) == tokens
    hop = tower.hops["tower.0"] / 1000
    assert abs(len(rows["tower.0"]) - seconds / hop) <= 0.04 / hop + 2  # no padding to 30 s


def test_features_of_clips_in_a_batch_equal_those_of_each_clip_alone(tower: Tower) -> None:
    encoder = at_point(tower, "llm.2")
    audio, lengths = torch.zeros(2, RATE), [RATE, RATE // 2]
    for place, (row, length) in enumerate(zip(audio, lengths, strict=True)):
        row[:length] = noise(length / RATE, place)
    beside = encoder.encode(audio, lengths)
    for row, length, features in zip(audio, lengths, beside, strict=True):
        assert torch.equal(encoder.encode(row[None, :length])[0], features)
        whole = at_point(tower).encode(row[None, :length])[0][0]
        begin = sum(size for name, size in list(tower.sizes.items())[: list(tower.sizes).index("llm.2")])
        assert torch.equal(whole[begin : begin + tower.sizes["llm.2"]], features.double().mean(0).float())


def test_hidden_states_read_at_ratio_0_equal_those_of_base_bit_for_bit(tower: Tower) -> None:
    clip = noise(2.1).numpy()
    plain = tower.read(clip).rows
    for method in (Base(), Random(0.0), MergeFrame(0.0)):
        rows = tower.read(clip, method.applied_to).rows
        assert rows.keys() == plain.keys()
        assert all(torch.equal(rows[point], plain[point]) for point in plain)


def test_hidden_states_read_under_pruning_are_those_at_the_kept_token_positions(tower: Tower, family: Family) -> None:
    clip, lm, method = noise(2.1), tower.lm, Random(0.5, layer=2)
    plain, reading = tower.read(clip.numpy()), tower.read(clip.numpy(), method.applied_to, seed=3)
    inputs = lm.prepare([Prompt(tower.prompt, (clip.numpy(),), 3)])
    states: dict[int, torch.Tensor] = {}
    with (
        lm.decoder_layers[1].register_forward_hook(lambda _m, _a, out: states.update({1: out})),
        lm.decoder_layers[3].register_forward_hook(lambda _m, _a, out: states.update({3: out})),
    ):
        kept = method.generate(lm, inputs, max_new_tokens=1).kept_positions[0].tolist()
    audio = inputs.audio_mask[0].nonzero().flatten().tolist()
    heard_places = audio[: len(audio) - (inputs.window_padding[0] if inputs.window_padding else 0)]
    stays = [place for place in heard_places if place in kept]
    assert reading.kept.tolist() == [place in kept for place in audio]

    def rows(layer: int, places: list[int]) -> torch.Tensor:
        out = states[layer] if isinstance(states[layer], torch.Tensor) else states[layer][0]
        out = out[lm.decoder.config.altup_active_idx] if out.dim() == 4 else out
        return out[0][places].float()

    assert torch.equal(reading.rows["llm.1"], rows(1, stays))  # before layer 2 all are there
    assert torch.equal(reading.rows["llm.3"], rows(3, [kept.index(place) for place in stays]))
    assert torch.equal(
        reading.rows["projector"], plain.rows["projector"][[heard_places.index(place) for place in stays]]
    )
    if len(plain.rows["tower"]) == len(heard_places):
        assert torch.equal(reading.rows["tower"], plain.rows["tower"][[heard_places.index(place) for place in stays]])
    else:  # Voxtral joins four frames
        assert len(reading.rows["tower"]) in range(4 * len(stays) - 3, 4 * len(stays) + 1)


@pytest.mark.parametrize(("method", "seconds"), [(Random(0.5, at="tower"), 2.1), (MergeFrame(0.5, at="tower"), 33.0)])
def test_the_projector_turns_the_kept_tower_states_into_the_audio_input_of_the_llm(
    tower: Tower, method: Any, seconds: float
) -> None:
    """The projector, called alone on the rows at the tower, gives the rows at the projector."""
    if why := tower.lm.no_tower_drop:
        pytest.skip(why)
    rows = tower.read(noise(seconds).numpy(), method.applied_to, seed=3).rows
    heard = rows["projector"]
    assert len(rows["llm.2"]) == len(heard)
    assert len(heard) == pytest.approx(0.5 * 1000 * seconds / tower.hops["projector"], rel=0.15)
    projector = getattr(tower.lm.model.model, "multi_modal_projector", torch.nn.Identity())
    with torch.inference_mode():
        projected = projector(rows["tower"].view(len(heard), -1))
    torch.testing.assert_close(projected, heard, atol=1e-5, rtol=1e-5)


def test_hidden_states_under_a_token_merging_method_are_read_only_after_the_merge(embedded: Encoder) -> None:
    read = embedded.module.tower.read
    reading = read(noise(2.0).numpy(), MergeFrame(0.5, layer=2).applied_to)
    assert reading.merged
    assert {"tower", "projector", "llm.1"}.isdisjoint(reading.rows)
    assert len(reading.rows["llm.2"]) == len(reading.rows["llm.4"]) == 25
    dropped = read(noise(2.0).numpy(), Random(0.5, layer=2).applied_to)
    assert not torch.equal(reading.rows["llm.2"], dropped.rows["llm.2"])


def needles(clips: int, seconds: float, event: float, classes: int) -> list[tuple[np.ndarray, int, float]]:
    """Return clips of noise, each with a word at a random place. Only the word reveals the clip's class."""
    planted = []
    for number in range(clips):
        rng = np.random.default_rng(1000 + number)
        onset = float(rng.uniform(1, seconds - event - 1))
        wave, size = 0.01 * rng.standard_normal(round(seconds * RATE)), round(event * RATE)
        start = round(onset * RATE)
        wave[start : start + size] += synthesis.spoken(CUES[number % classes], rng, size, RATE)
        planted.append((wave.astype(np.float32), number % classes, onset))
    return planted


def accuracy(embeddings: list[np.ndarray], labels: list[int], classes: int) -> float:
    folds = np.array([str(place // classes % 5) for place in range(len(labels))])
    predictions = linear_probe(Clips(np.stack(embeddings), np.array(labels), folds), rotated(list("01234")))
    return float((predictions.predicted == np.array(labels)[predictions.rows]).mean())


def test_a_probe_predicts_the_label_only_if_tokens_around_the_needle_are_kept(embedded: Encoder) -> None:
    tower, classes = embedded.module.tower, 3
    points = {"tower": tower.sizes["tower"], "llm.4": tower.sizes["llm.4"]}
    made: dict[tuple[str, str], list[np.ndarray]] = {}
    labels = []
    for wave, label, onset in needles(18, 12.0, 2.0, classes):
        labels.append(label)
        places = (torch.arange(300) + 0.5) / 25
        around = (places > onset - 2.05) & (places < onset + 4.05)  # where windows of two seconds may include it
        for name, keep in (("kept", around), ("dropped", ~around)):
            method = towers._Given(1 - float(keep.sum()) / 300, at="input", other=keep.float().numpy())
            reading = tower.read(wave, method.applied_to)
            assert torch.equal(reading.kept, keep)
            for point, size in points.items():
                made.setdefault((name, point), []).append(reading.pooled({point: size}).numpy())
    for point in points:
        assert accuracy(made["kept", point], labels, classes) > 0.9
        assert accuracy(made["dropped", point], labels, classes) < 0.6  # chance is a third


def needle_task(root: Path, clips: int, seconds: float, event: float) -> Path:
    """Write a task of needles as tars of three folds, and return its file."""
    members: dict[int, list[tuple[str, bytes]]] = {}
    for number, (wave, label, _) in enumerate(needles(clips, seconds, event, 4)):
        soundfile.write(stream := io.BytesIO(), wave, RATE, format="WAV", subtype="FLOAT")
        pair = [(f"{number:03d}.wav", stream.getvalue()), (f"{number:03d}.json", json.dumps({"label": label}).encode())]
        members.setdefault(number // 4 % 3 + 1, []).extend(pair)
    for fold, entries in members.items():
        write_tar(root / "needles" / f"wds-audio-fold-{fold}-000000.tar", entries)
    (file := root / "needles_task.py").write_text(
        "from xares.task import TaskConfig\n\n\ndef needles_config(encoder) -> TaskConfig:\n"
        '    return TaskConfig(name="needles", encoder=encoder, k_fold_splits=[1, 2, 3], output_dim=4,\n'
        '                      label_processor=lambda x: int(x["label"]))\n'
    )
    return file


@pytest.fixture
def command(no_env, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    return functools.partial(call, "encoder")


@pytest.mark.parametrize(("seconds", "event"), [(5.0, 1.0), pytest.param(90.0, 2.0, marks=pytest.mark.long)])
def test_the_loss_of_probe_accuracy_grows_with_the_prune_ratio(
    command: Callable[..., tuple[int, str]], tmp_path: Path, seconds: float, event: float
) -> None:
    task = needle_task(tmp_path, 12, seconds, event)
    given = ("prune", "embedded", "--tasks", task, "--data", tmp_path, "--points", "tower")
    code, out = command(*given, "--methods", "random", "--ratios", "0.5,0.99")
    assert code == 0
    assert "text" in out
    scores = {
        run.method: run.headline.value
        for run in (Run.read(file.parent) for file in (tmp_path / "results").rglob("embedded@tower/*/run.json"))
    }
    assert scores["base-0"] > 0.9
    assert scores["base-0"] >= scores["random-0.5-layer2"] > scores["random-0.99-layer2"] + 0.2
    assert len([*(tmp_path / "results").glob("*pruned.png")]) == 2


def test_a_layer_that_comes_before_any_pruning_is_left_out_of_probing(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vl_convert.vegalite_to_png", lambda *_, **__: b"")
    task = needle_task(tmp_path, 12, 3.0, 1.0)
    given = ("prune", "embedded", "--tasks", task, "--data", tmp_path, "--points", "tower.0,tower", "--at", "tower")
    code, out = command(*given, "--methods", "frame", "--ratios", "0.5")
    assert code == 0, out
    assert "embedded@tower against base-0" in out
    assert "frame-0.5-tower: left out tower.0" in out


def test_hidden_states_of_all_probed_layers_are_read_in_one_forward_pass(
    command: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(towers, "_STEPS", 20)  # another test checks that weights are learned
    task = needle_task(tmp_path, 12, 3.5, 1.0)
    given = ("layers", "embedded", "--tasks", task, "--data", tmp_path)
    code, out = command(*given)
    assert code == 0
    for point in ("tower.0", "projector", "llm.4", "best", "tower-mix", "llm-mix", "text"):
        assert f" {point} " in out
    best = Run.read(tmp_path / "results" / "own" / "needles" / "embedded@best" / "linear")
    mixed = Run.read(tmp_path / "results" / "own" / "needles" / "embedded@llm-mix" / "linear")
    assert len(best.facts["chosen"]) == len(mixed.facts["weights"]) == 3
    assert all(math.isclose(sum(weights.values()), 1, abs_tol=1e-2) for weights in mixed.facts["weights"])
    assert (tmp_path / "results" / "needles-embedded-layers.png").stat().st_size > 1000
    (encoder_task,) = encoder_tasks([str(task)])
    read = towers.read_points(load_encoder("tower:embedded"), encoder_task, encoder_task.read(tmp_path))
    valid = {}
    for point in read.sizes:
        clips, embeddings = read.at(point).per_clip()
        given_ = Clips(
            embeddings, np.array([int(clip.labels[0]) for clip in clips]), np.array([clip.part for clip in clips])
        )
        valid[point] = linear_probe(given_, rotated(list("123"))).valid
    for split, point in enumerate(best.facts["chosen"]):
        assert valid[point][split] == max(scores[split] for name, scores in valid.items() if name != "text")

    reads: list[int] = []
    real = Tower.read
    monkeypatch.setattr("vl_convert.vegalite_to_png", lambda *_, **__: b"")
    monkeypatch.setattr(Tower, "read", lambda *a, **k: reads.append(1) or real(*a, **k))
    code, out = command(*given)  # given again: nothing is read
    assert (code, len(reads)) == (0, 0)
    assert out.count("complete") == 13
    code, _ = command("run", "tower:embedded@llm.1", "--tasks", task, "--data", tmp_path, "--results", "two")
    assert code == 0
    first, two = (Run.read(tmp_path / root / "own/needles/embedded@llm.1/linear") for root in ("results", "two"))
    assert first.identity == two.identity
    assert [r.reply for r in first.records.values()] == [r.reply for r in two.records.values()]


def test_reading_more_layers_keeps_the_stored_embeddings_of_earlier_layers(
    embedded: Encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    (encoder_task,) = encoder_tasks([str(needle_task(tmp_path, 12, 2.5, 0.5))])
    data = encoder_task.read(tmp_path, limit=1)
    narrow, two = (
        towers.read_points(embedded, encoder_task, data, Random(0.5), points).at("llm.2")
        for points in (["llm.2"], ["llm.2", "tower"])
    )
    assert narrow.identity == two.identity
    assert np.array_equal(narrow.per_clip()[1], two.per_clip()[1])
    other = towers.read_points(embedded, encoder_task, data, Random(0.9), ["llm.2"]).at("llm.2")
    assert narrow.identity["embeddings"] != other.identity["embeddings"]


def test_a_learned_layer_mix_gives_the_most_weight_to_the_informative_layer() -> None:
    rng = np.random.default_rng(0)
    labels, folds = np.arange(60) % 2, np.array([str(place // 2 % 3) for place in range(60)])
    signal = np.stack([labels, 1 - labels, labels], 1) * 8.0 + rng.standard_normal((60, 3))
    layers = np.stack([rng.standard_normal((60, 3)), signal, rng.standard_normal((60, 3))])
    weights = towers._weights(layers, Clips(signal, labels, folds), rotated(["0", "1", "2"])[0])
    assert weights.argmax() == 1
    assert weights[1] > 0.5
    assert math.isclose(weights.sum(), 1, abs_tol=1e-6)


def test_the_control_probe_swaps_kept_positions_between_clips_of_the_same_length() -> None:
    rows = {name: np.full((size, 1), ord(name)) for name, size in (("a", 4), ("b", 4), ("c", 9), ("d", 4))}
    kept = SimpleNamespace(rows=rows, has=rows.__contains__)
    paired = {name: chr(int(kept_row[0])) for name, kept_row in towers._others(kept, ["d", "c", "b", "a"]).items()}  # type: ignore[arg-type]
    assert {name: paired[name] for name in "abd"} == {"a": "b", "b": "d", "d": "a"}
    assert paired["c"] in "abd"


def test_invalid_settings_of_tower_probes_give_a_one_line_error(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    task = needle_task(tmp_path, 12, 2.5, 0.5)
    given = ("--tasks", task, "--data", tmp_path)
    for arguments, said in (
        (("prune", "embedded", *given, "--methods", "snapkv"), "KV cache"),
        (("prune", "embedded", *given, "--points", "llm.77"), "llm.77"),
        (("prune", "embedded", *given, "--at", "end"), "layer, input, tower"),
        (("prune", "embedded", *given, "--tower-layer", "1"), "--at tower"),
        (("prune", "embedded", *given, "--at", "tower", "--tower-layer", "99"), "99"),
        (("prune", "embedded", *given, "--at", "tower", "--methods", "divprune"), "tower"),
        (("prune", "embedded", *given, "--ratios", "0"), "nothing is dropped"),
        (("prune", "embedded", *given, "--layer", "77"), "layer"),
        (("run", "control:logmel", "--tasks", "long/vox", "--data", tmp_path), str(tmp_path)),
        (("layers", "embedded", "--tasks", "librispeech"), "librispeech"),
        (("layers", "nobody", *given), "nobody"),
        (("run", "tower:embedded@tower", *given, "--encoder-arg", "dtype=int8"), "dtype"),
        (("run", "tower:embedded@tower", *given, "--encoder-arg", "size=8"), "checkpoint"),
    ):
        assert said in one_error(command(*arguments)[1])
    assert not (tmp_path / "results").exists()


def named(setting: str) -> dict[str, Any]:
    method, ratio, *_place = setting.split("-")
    return {"method": method, "ratio": float(ratio)}


def probe_run(setting: str, labels: str, key: str = "long/vox", point: str = "llm.2") -> Run:
    """Return a probe's run on clips 0, 1, … whose answer is "a"."""
    records = {
        str(n): Record(str(n), f"c{n}", reply=f"{label}\t1.000", reference={"answer": "a", "classes": 2})
        for n, label in enumerate(labels)
    }
    facts = {"task": key, "method": setting, "checkpoint": f"tiny@{point}", "point": point}
    return Run({**facts, "encoder": {"checkpoint": "print"}, "identity": named(setting)}, records)


def reply_run(setting: str, letters: str, fingerprint: str = "print") -> Run:
    reference = {"answer": "A", "options": ["Male", "Female"], "labels": ["male", "female"]}
    records = {
        str(n): Record(str(n), f"c{n}", reply=letter, reference=reference, new_tokens=1)
        for n, letter in enumerate(letters)
    }
    facts = {"task": "vox", "method": setting, "checkpoint": "tiny", "checkpoint_name": "tiny"}
    return Run({**facts, "identity": {"checkpoint": fingerprint, **named(setting)}}, records)


def probed_and_asked() -> list[Run]:
    """Return runs of a probe and of the model's replies, without pruning and with it."""
    return [
        probe_run("base-0", "aaaab"), reply_run("base-0", "AABBB"),
        probe_run("random-0.5-layer2", "abbab"), reply_run("random-0.5-layer2", "ABABB"),
    ]  # fmt: skip


def test_clips_are_counted_by_whether_the_probe_and_the_reply_are_correct() -> None:
    others = [reply_run("fast_v-0.5-layer2", "AAAAA"), reply_run("random-0.5-layer2", "AAAAA", "another's")]
    runs = [*probed_and_asked(), *others]
    base, pruned = fourfolds(runs)
    assert (base.n, pruned.probe.method) == (5, "random-0.5-layer2")

    def shares(fourfold: Any) -> dict[str, int]:
        return {name: round(5 * share.value) for name, share in fourfold.shares.items()}

    assert shares(base) == {"both": 2, "unused": 2, "reply_only": 0, "neither": 1, "probe": 4, "reply": 2, "lost": 0}
    assert shares(pruned) == {"both": 1, "unused": 1, "reply_only": 1, "neither": 2, "probe": 2, "reply": 2, "lost": 2}
    (standing,) = standings(runs[:2])
    assert (standing.encoder.value, standing.point, standing.model_tasks) == (0.8, "llm.2", ("vox",))


@pytest.mark.parametrize(
    ("odd", "beside"),
    [({}, ["base-0", "random-0.5-layer2"]), ({"seed": 7}, ["base-0"]), ({"dtype": "bfloat16"}, [])],
    ids=["alike", "another seed than a pruned probe's", "another precision than any probe's"],
)
def test_replies_are_paired_with_probes_of_equal_precision_and_equal_pruning_seed(
    odd: dict[str, Any], beside: list[str]
) -> None:
    probes = [probe_run("base-0", "aaaab"), probe_run("random-0.5-layer2", "abbab")]
    replies = [reply_run(setting, "AABBB") for setting in ("base-0", "random-0.5-layer2")]
    for probe, reply in zip(probes, replies, strict=True):
        probe.facts["encoder"]["dtype"] = reply.facts["identity"]["dtype"] = "float32"
        reply.facts["identity"].update(odd)
    assert [pair.probe.method for pair in fourfolds([*probes, *replies])] == beside


def test_a_probe_task_with_two_prompts_about_the_same_file_is_refused(tmp_path: Path) -> None:
    build_all(tmp_path, ["vox"])
    (task,) = encoder_tasks(["long/vox"])
    data = task.read(tmp_path)
    twice = replace(data, clips=(data.clips[0], replace(data.clips[0], id="another")))
    towers._check_files(task, data)
    with pytest.raises(DataError, match="another are the same file"):
        towers._check_files(task, twice)


def test_the_compare_command_compares_runs_with_replies_and_leaves_out_probe_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [probe_run("base-0", "aaaab"), *(reply_run(name, "AABBB") for name in ("base-0", "random-0.5-layer2"))]
    monkeypatch.setattr("audiomarathon.results.systems.read_runs", lambda *_: runs)
    succeed("compare", tmp_path, "-o", tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert (content["reference"], content["left_out"]) == ("base-0", [])
    assert "left out 1 run of tasks with commands of their own; see audiomarathon encoder --help" in content["notes"]


def test_the_chart_of_probe_scores_over_layers_names_layers_and_shows_the_majority_score() -> None:
    runs = [probe_run("base-0", "aaab", point=point) for point in POINTS]
    for run in runs:
        run.facts["method"], run.__dict__["summary"] = "linear", {"majority": 0.5}
    (chart,) = layer_curves(runs).values()
    axes = [layer["encoding"]["x"]["axis"] for layer in chart.spec["layer"] if "axis" in layer["encoding"].get("x", {})]
    assert json.loads(axes[0]["labelExpr"].removesuffix("[datum.value]")) == POINTS
    assert [row["y"] for row in chart.data["rules"]] == [0.5]


def test_long_audio_tasks_keep_their_labels_prompts_and_clusters_as_probe_tasks(tmp_path: Path) -> None:
    build_all(tmp_path, ["vox"])
    (task,) = encoder_tasks(["long/vox"])
    data = task.read(tmp_path)
    samples = task.load(task.find(tmp_path)).samples
    assert data.classes == ("female", "male")
    for clip, sample in zip(data.clips, samples, strict=True):
        assert (clip.id, clip.labels, clip.cluster) == (sample.id, (sample.stratum,), sample.cluster)
        assert sample.question in clip.facts[0]
        assert len(decode(clip.audio, 8000)) == 8000
    assert len(encoder_tasks(["long"])) == 7


def test_a_clip_without_tower_states_is_pooled_to_a_vector_of_zeros(embedded: Encoder) -> None:
    module = TowerEncoder(embedded.module.tower, "", {"tower": 4})
    assert Reading({"tower": torch.empty(0, 4)}, torch.empty(0)).pooled(module.points).tolist() == [0.0] * 4


def test_the_report_shows_in_what_share_of_clips_pruning_loses_the_label() -> None:
    by_anchor = {section.anchor: section for section in sections(PageData(systems_of(probed_and_asked())))}
    (table,) = by_anchor["unused"].tables
    row = table.frame[table.frame.setting == "random-0.5-layer2"].iloc[0]
    assert (row.lost, row.unused, row.lost_low < 0.4 < row.lost_high) == (0.4, 0.2, True)
    assert [chart.spec["title"] for chart in by_anchor["unused"].charts["vox, tiny@llm.2"]] == ["random"]
    assert by_anchor["standing"].tables[0].frame.encoder.tolist() == [0.8]
