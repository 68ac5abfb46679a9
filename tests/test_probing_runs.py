"""Probes from tars to run folders: encoding, the embedding store, fitting and run files."""

import hashlib
import io
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.numpy import save
from sklearn.metrics import average_precision_score
from xares_tars import write_tar

from audiomarathon.errors import DataError, RecordError, SettingsError
from audiomarathon.metrics.statistics import Estimate
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import Encoder, from_module
from audiomarathon.wings.encoders.probing.encode import Heard, encode_own, encode_published, hear
from audiomarathon.wings.encoders.probing.evaluate import read_tasks, tried
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, STANDARD, standard_splits
from audiomarathon.wings.encoders.probing.published_probes import SEEDS
from audiomarathon.wings.encoders.probing.run import probe
from audiomarathon.wings.encoders.probing.store import Store
from audiomarathon.wings.encoders.results.scores import Score, mean_scores, task_scores
from audiomarathon.wings.encoders.scoring.probe import scores_of
from audiomarathon.wings.encoders.xares.task import Dataset, EncoderTask, Recipe

RATE = 1_000


class FramesEncoder(torch.nn.Module):
    """Means and powers of frames of 100 samples: the features of a frame depend on that frame alone."""

    sampling_rate, output_dim, hop_size_in_ms = RATE, 2, 100

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, ...]] = []

    def features(self, audio: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(audio, (0, -audio.shape[1] % 100))
        frames = padded.unfold(1, 100, 100)
        return torch.stack([frames.mean(-1), frames.square().mean(-1)], dim=-1)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        self.calls.append(tuple(audio.shape))
        return self.features(audio)


class MaskedEncoder(FramesEncoder):
    """A FramesEncoder that gets the clip lengths."""

    def forward(self, audio: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        features = super().forward(audio)
        return features if lengths is None else (features, -(-lengths // 100))


class LeakyEncoder(FramesEncoder):
    """Subtracts each row's mean, padding included, so features depend on the length of other clips."""

    def features(self, audio: torch.Tensor) -> torch.Tensor:
        return super().features(audio - audio.mean(dim=1, keepdim=True))


class WindowEncoder(FramesEncoder):
    """Accepts one second at most."""

    max_seconds = 1.0


def wave(samples: int, level: float, seed: int) -> np.ndarray:
    noise = 0.01 * np.random.default_rng(seed).standard_normal(samples)
    return (level * np.linspace(0.9, 1.1, samples) + noise).astype(np.float32)  # all crops differ


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    soundfile.write(stream := io.BytesIO(), samples, rate, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def write(folder: Path, part: str, clips: Sequence[tuple[str, Any, np.ndarray | bytes]]) -> None:
    members = []
    for key, meta, samples in clips:
        content = samples if isinstance(samples, bytes) else wav(samples)
        members += [(f"{key}.wav", content), (f"{key}.json", json.dumps(meta).encode())]
    write_tar(folder / f"{part}.tar", members)


def tones(root: Path, fold: object, many: int, *, prefix: str = "s", level: float | None = None) -> None:
    """Write a fold of 0.3 s tones a, b, c, each clip its own cluster. `level` gives all labels the same level."""
    levels = [0.2 * (i % 3) if level is None else level for i in range(many)]
    clips = [(f"{prefix}{i}-{i}", {"tone": "abc"[i % 3]}, wave(300, levels[i], i)) for i in range(many)]
    write(root / "tones", f"{fold}", clips)


def task_of(**facts: Any) -> EncoderTask:
    given: dict[str, Any] = {
        "key": "own/tones", "formal_name": "Tones", "title": "which tone", "domain": "own", "label": "tone",
        "globs": {str(fold): f"{fold}.tar" for fold in (1, 2, 3)}, "classes": frozenset("abc"), "folds": True,
        "cluster": r"^(\w+)-",
    }  # fmt: skip
    return EncoderTask(**given | facts)


def made(root: Path, *, lengths: Callable[[int], int] = lambda place: 300 + 100 * (place % 4), many: int = 12) -> Path:
    """Write three folds of tones a, b, c whose levels tell them apart."""
    for fold in (1, 2, 3):
        waves = [wave(lengths(i), 0.2 * (i % 3), 100 * fold + i) for i in range(many)]
        keys = [f"s{fold}x{i % 4}-{i}" for i in range(many)]
        write(root / "tones", f"{fold}", [(keys[i], {"tone": "abc"[i % 3]}, waves[i]) for i in range(many)])
    return root


def encoded(encoder: Encoder, data: Dataset, store: Store) -> dict[str, np.ndarray]:
    heard = hear(data.clips, encoder.sampling_rate)
    assert encode_own(encoder, heard, store) == {}
    return {clip.clip.id: store.rows[clip.audio] for clip in heard}


def samples_of(clip: Heard) -> np.ndarray:
    samples: np.ndarray = soundfile.read(clip.clip.audio.open(), dtype="float32")[0]
    return samples


@pytest.mark.parametrize("kind", [FramesEncoder, MaskedEncoder, LeakyEncoder, WindowEncoder])
def test_the_embedding_of_a_clip_is_the_same_alone_and_in_a_batch(
    tmp_path: Path, kind: type[FramesEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = task_of().read(made(tmp_path, lengths=lambda place: 1201 if place == 5 else 310 + 100 * (place % 4)))
    encoder = from_module(kind())
    together = encoded(encoder, data, Store(tmp_path / "together", {}))
    batches = [shape[0] for shape in encoder.module.calls][2:]  # type: ignore[union-attr]  # without two checks
    alone = Store(tmp_path / "alone", {})
    for clip in hear(data.clips, RATE)[:12]:
        encode_own(encoder, [clip], alone)
        samples = samples_of(clip)
        parts = np.array_split(samples, 2 if kind is WindowEncoder and len(samples) > RATE else 1)  # 7 frames, and 6
        expected = torch.cat([kind().features(torch.from_numpy(piece)[None])[0] for piece in parts]).mean(dim=0).numpy()
        np.testing.assert_allclose(alone.rows[clip.audio], together[clip.clip.id], atol=1e-6)
        np.testing.assert_allclose(alone.rows[clip.audio], expected, atol=1e-6)
    assert max(batches) > 3
    if kind is MaskedEncoder:
        assert len(batches) == 1


def stored_means(encoder: FramesEncoder, waves: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Return the embeddings that X-ARES stores of a batch: zero-padded to the longest, averaged over all frames."""
    longest = size or max(map(len, waves))
    padded = [np.pad(clip_wave[:longest], (0, longest - len(clip_wave[:longest]))) for clip_wave in waves]
    return [*encoder.features(torch.from_numpy(np.stack(padded))).mean(dim=1).numpy()]


class MixingEncoder(FramesEncoder):
    """Scale by the loudest value of the batch, so that even clips of equal length affect each other."""

    def features(self, audio: torch.Tensor) -> torch.Tensor:
        return super().features(audio / audio.abs().max())


@pytest.mark.parametrize(
    ("kind", "crop"),
    [(FramesEncoder, None), (FramesEncoder, 0.25), (MaskedEncoder, 0.5), (LeakyEncoder, 0.5), (MixingEncoder, None)],
)
def test_published_embeddings_are_computed_in_batches_in_the_stored_order_of_clips(
    tmp_path: Path, crop: float | None, kind: type[FramesEncoder]
) -> None:
    lengths = (300, 1700, 500, 500, 500, 1100, 500, 900, 400, 400, 400, 400)
    data = task_of().read(made(tmp_path, lengths=lambda place: lengths[place]))
    encoder, store = from_module(kind()), Store(tmp_path / "store", {})
    heard = [heard_clip for heard_clip in hear(data.clips, RATE) if heard_clip.clip.part == "1"]
    encode_own(encoder, heard, store)
    for other in (0.3, 0.25):  # stored embeddings of other crops change nothing
        encode_published(encoder, heard, Recipe(crop=other, encode_batch=4), store)
    items = encode_published(encoder, heard, Recipe(crop=crop, encode_batch=4), store)
    expected: list[tuple[str, np.ndarray]] = []
    size = round((crop or 0) * RATE)
    cuts = []
    for clip in heard:
        samples = samples_of(clip)
        count = max(1, len(samples) // size) if size else 1
        cuts += [(clip.clip.id, samples[i * size : (i + 1) * size or None]) for i in range(count)]
    for start in range(0, len(cuts), 4):
        ids, pieces = zip(*cuts[start : start + 4], strict=True)
        means = stored_means(kind(), pieces, size)
        expected += [
            (id_, mean) for place, (id_, mean) in enumerate(zip(ids, means, strict=True)) if id_ not in ids[:place]
        ]
    assert [item.clip.id for item in items] == [id_ for id_, _ in expected]
    assert len(items) > 12 if crop else len(items) == 12
    for item, (_, mean) in zip(items, expected, strict=True):
        np.testing.assert_allclose(store.rows[item.row], mean, rtol=1e-4, atol=1e-7)


def results_of(root: Path, results: Path, encoder: Encoder, task: EncoderTask, **more: Any) -> dict[str, Any]:
    data, store = task.read(root), Store(results.parent / "cache", encoder.identity)
    return {result.method: result for result in probe(encoder, task, data, results, store, **more)}


def test_every_probe_of_an_encoder_writes_a_complete_run_folder(tmp_path: Path) -> None:
    root, encoder, said = made(tmp_path / "env"), from_module(FramesEncoder()), list[str]()
    results = results_of(root, tmp_path / "results", encoder, task_of(), seeds=SEEDS[:2])
    assert {name: result.summary["n"] for name, result in results.items()} == dict.fromkeys([*STANDARD, *PUBLISHED], 36)
    assert results["linear"].summary["score"] == 1.0
    assert results["linear"].folder == tmp_path / "results" / "own" / "tones" / "FramesEncoder" / "linear"
    mlp = results[PUBLISHED[0]].summary
    assert len(mlp["seeds"]) == 2
    assert mlp["sd"] == pytest.approx(np.std(mlp["seeds"], ddof=1))
    assert mlp["chance"] == pytest.approx(1 / 3)
    run = Run.read(results["linear"].folder)
    record = run.records["1/s1x0-0"]
    label, probability = record.text.split("\t")
    assert (label, record.reference["answer"], record.cluster) == ("a", "a", "s1x0")
    assert float(probability) > 1 / 3
    before = [(result.folder / "samples.jsonl").read_bytes() for result in results.values()]
    encoder.module.calls.clear()  # type: ignore[union-attr,operator]
    results_of(root, tmp_path / "results", encoder, task_of(), seeds=SEEDS[:2], say=said.append)
    assert [(result.folder / "samples.jsonl").read_bytes() for result in results.values()] == before
    assert encoder.module.calls == []  # type: ignore[union-attr]
    assert sum("complete" in line for line in said) == 5
    (score,) = task_scores([Run.read(result.folder) for result in results.values()])
    assert (score.encoder, score.task, score.n, score.sd) == ("FramesEncoder", "tones", 36, mlp["sd"])
    assert score.by_probe[PUBLISHED[0]].value == pytest.approx(np.mean(mlp["seeds"]))
    assert mean_scores([score]) == []


def test_the_published_knn_score_is_the_mean_over_folds_and_not_over_clips(tmp_path: Path) -> None:
    root = made(tmp_path / "env")
    tones(root, 3, 3)
    tones(root, 2, 6, level=0.3)
    results = results_of(root, tmp_path / "results", from_module(FramesEncoder()), task_of(), protocol="as_published")
    run = Run.read(results[PUBLISHED[1]].folder)
    by_fold: dict[str, list[bool]] = {"1": [], "2": [], "3": []}
    for verdict in run.verdicts.values():
        by_fold[verdict.record.groups["part"]].append(verdict.values["right"][0])  # type: ignore[index]
    assert [*map(len, by_fold.values())] == [12, 6, 3]
    value = task_scores([run])[0].by_probe[PUBLISHED[1]].value
    assert value == pytest.approx(np.mean([np.mean(right) for right in by_fold.values()]))
    assert value != pytest.approx(results[PUBLISHED[1]].summary["score"])


def test_a_probe_gives_no_score_if_over_1_percent_of_the_clips_failed(tmp_path: Path) -> None:
    root = made(tmp_path / "env", many=60)
    lengths = [(f"s1x{i % 4}-{i}", {"tone": "abc"[i % 3]}, wave(400, 0.2 * (i % 3), i)) for i in range(60)]
    write(root / "tones", "1", [("s1x0-0", {"tone": "a"}, b"RIFF no audio"), *lengths[1:]])
    encoder = from_module(FramesEncoder())
    results = results_of(root, tmp_path / "results", encoder, task_of(), protocol="standard")
    summary = results["linear"].summary
    assert (summary["n"], summary["errors"], summary["complete"]) == (179, 1, False)
    assert "is not audio" in Run.read(results["linear"].folder).failed["1/s1x0-0"].error
    write(root / "tones", "2", [(key, meta, b"RIFF") for key, meta, _ in lengths[:2]] + lengths[2:])
    with pytest.raises(DataError, match=r"3 of 180 clips failed \(.*no score"):
        results_of(root, tmp_path / "other", encoder, task_of(), protocol="standard")


def test_clips_with_several_labels_are_scored_by_mean_average_precision(tmp_path: Path) -> None:
    folder = tmp_path / "env" / "tags"
    for part, seed in (("train", 0), ("valid", 100), ("test", 200)):
        tags = [("low",), ("high", "low"), ("high",)]
        clips = [(f"k{i}", {"tags": ";".join(tags[i % 3])}, wave(400, 0.2 * (i % 3), seed + i)) for i in range(12)]
        write(folder, part, clips)
    task = task_of(
        key="own-tags/tags", label="tags", multi_label=True, folds=False, classes=frozenset(("low", "high")),
        globs={part: f"{part}.tar" for part in ("train", "valid", "test")}, cluster="",
    )  # fmt: skip
    results = results_of(tmp_path / "env", tmp_path / "results", from_module(FramesEncoder()), task)
    assert [*results] == ["linear", PUBLISHED[0]]
    linear = Run.read(results["linear"].folder)
    scored = np.array([scores_of(record)[0] for record in linear.records.values()])
    right = np.array([np.isin(range(2), record.reference["positives"]) for record in linear.records.values()])
    summary = results["linear"].summary
    assert summary["map"] == pytest.approx(average_precision_score(right, scored), abs=1e-9)
    low, high = summary["intervals"]["map"]
    assert (low <= summary["map"] <= high, summary["classes_with_clips"]) == (True, 2)
    run = Run.read(results[PUBLISHED[0]].folder)
    assert all(len(record.text.split("\n")) == 5 for record in run.records.values())
    assert next(iter(run.verdicts.values())).values["ranked"][0] in (0.5, 1.0)


class TestSplits:
    def splits(
        self, clips: Sequence[tuple[str, str]], targets: Sequence[int] = (), **facts: Any
    ) -> tuple[list[str], list[Any], list[str]]:
        said = list[str]()
        data = [SimpleNamespace(part=part, cluster=cluster, id=f"{i}") for i, (part, cluster) in enumerate(clips)]
        labels = np.array(targets or [0] * len(data))
        return *standard_splits(task_of(**facts), data, labels, said.append), said

    def test_each_fold_is_the_test_part_of_exactly_one_split(self) -> None:
        parts, splits, said = self.splits([(str(fold), f"{fold}{i}") for fold in (1, 2, 3) for i in range(2)])
        assert parts == ["1", "1", "2", "2", "3", "3"]
        assert [(split.test, split.valid) for split in splits] == [("1", "2"), ("2", "3"), ("3", "1")]
        given = [("train", "a"), ("train", "b"), ("valid", "c"), ("test", "d")]
        globs = {part: part for part in ("train", "valid", "test")}
        parts, splits, said = self.splits(given, folds=False, globs=globs)
        assert parts == [part for part, _ in given]
        assert said == []
        for swapped, tested in ((False, "test"), (True, "valid")):  # X-ARES swaps the parts of some corpora
            _parts, (split,), _said = self.splits(given, folds=False, globs=globs, swapped=swapped)
            assert (split.train, {split.test}, {split.valid}) == (("train",), {tested}, {"test", "valid"} - {tested})
        shared = [("train", "a"), ("train", "b"), ("valid", "a"), ("test", "d")]  # valid selects, but is not scored
        assert self.splits(shared, folds=False, globs=globs)[0] == [part for part, _ in shared]
        assert "share clusters" in self.splits(shared, folds=False, globs=globs, swapped=True)[2][0]

    def test_without_a_validation_part_whole_train_clusters_are_held_out(self) -> None:
        given = [("train", f"c{i // 4}") for i in range(80)] + [("test", "t")]
        globs = {"train": "train", "valid": "test", "test": "test"}
        parts, splits, _ = self.splits(given, folds=False, globs=globs)
        assert 8 <= parts.count("valid") <= 16
        assert len({(part, cluster) for part, (_, cluster) in zip(parts, given, strict=True)}) == 21
        assert (splits[0].train, splits[0].valid, splits[0].test) == (("train",), "valid", "test")

    def test_split_parts_that_share_clusters_are_replaced_by_five_new_folds(self) -> None:
        given = [("train", f"s{i % 10}") for i in range(40)] + [("valid", "v"), ("test", "s3")]
        globs = {part: part for part in ("train", "valid", "test")}
        parts, splits, said = self.splits(given, folds=False, globs=globs)
        assert len(splits) == 5
        assert len({(part, cluster) for part, (_, cluster) in zip(parts, given, strict=True)}) == 11
        assert "share clusters" in said[0]

    def test_classes_that_no_probe_can_learn_are_reported(self) -> None:
        for targets, told in (
            ([i // 2 for i in range(10)], []),
            ([max(i - 1, 0) for i in range(10)], ["8 of 9 classes"]),
        ):
            said = self.splits([("1", f"{i}") for i in range(10)], targets, globs={"1": "1"})[2]
            assert [line.partition(": ")[2][:14] for line in said[1:]] == told


def test_a_task_whose_clips_are_all_of_one_class_is_refused(tmp_path: Path) -> None:
    """Every probe is right if there is one class."""
    task, said = task_of(exact=False), list[str]()
    for fold in (1, 2, 3):
        clips = [(f"s{fold}-{i}", {"tone": "a"}, wave(300, 0.2, i)) for i in range(4)]
        write(tmp_path / "tones", str(fold), clips)
    with pytest.raises(DataError, match=r"own/tones: all clips \(12\) are of one class, 'a'"):
        read_tasks([task], tmp_path, say=said.append)
    write(tmp_path / "tones", "2", [(f"s2-{i}", {"tone": "ab"[i % 2]}, wave(300, 0.2, i)) for i in range(4)])
    assert read_tasks([task], tmp_path, say=said.append)[0]
    assert said == ["tones: all clips of 1, 3 are of one class, so scores there say little"]


class TestStore:
    def test_stored_embedding_files_are_read_back_unless_they_are_damaged(self, tmp_path: Path) -> None:
        store = Store(tmp_path, {"encoder": 1})
        store.add({"a": np.ones(3, np.float32)})
        store.add({"b": np.zeros(3, np.float32)})
        rows = Store(tmp_path, {"encoder": 1}).rows
        assert {key: row.tolist() for key, row in rows.items()} == {"a": [1, 1, 1], "b": [0, 0, 0]}
        assert Store(tmp_path, {"encoder": 2}).rows == {}
        first = sorted(store.folder.glob("part-*"))[0]
        first.write_bytes(first.read_bytes()[:-1] + b"\xff")
        with pytest.warns(UserWarning, match="damaged"):
            assert len(Store(tmp_path, {"encoder": 1}).rows) == 1

    @pytest.mark.parametrize(
        "content",
        [
            *(save({"mean": np.ones((2, 3), np.float32)}, {"keys": keys}) for keys in ("7", "[[]]", "[" * 100_000)),
            save({"mean": np.ones(2, np.float32)}, {"keys": '["a", "b"]'}),
            save({"other": np.ones((2, 3), np.float32)}, {"keys": '["a", "b"]'}),
            b"\xff" * 16,
        ],
    )
    def test_an_embedding_file_of_valid_checksum_but_invalid_content_is_ignored(
        self, tmp_path: Path, content: bytes
    ) -> None:
        folder = Store(tmp_path, {}).folder
        folder.mkdir(parents=True)
        (folder / f"part-{hashlib.sha256(content).hexdigest()[:16]}.safetensors").write_bytes(content)
        os.mkfifo(folder / "part-0123456789abcdef.safetensors")
        with pytest.warns(UserWarning, match="damaged .*; its clips are encoded again"):
            assert Store(tmp_path, {}).rows == {}

    def test_clips_are_encoded_again_if_audio_or_weights_change(self, tmp_path: Path) -> None:
        root, encoder = made(tmp_path / "env"), from_module(FramesEncoder())
        results_of(root, tmp_path / "results", encoder, task_of(), protocol="standard")
        tones(root, 1, 12, prefix="s1x", level=0.2)
        store = Store(tmp_path / "cache", encoder.identity)
        heard = hear(task_of().read(root).clips, RATE)
        assert {clip.clip.part for clip in heard if clip.audio not in store.rows} == {"1"}
        with pytest.raises(Exception, match="holds another run"), warnings.catch_warnings():
            results_of(root, tmp_path / "results", encoder, task_of(), protocol="standard")


def test_clips_with_the_same_audio_in_two_split_parts_are_noted(tmp_path: Path) -> None:
    root = made(tmp_path / "env")
    same = [wav(wave(300, 0.2 * (i % 3), i)) for i in range(9)]  # made once: such files contain their creation time
    for fold, clips in (("3", range(6)), ("2", range(1, 9))):
        write(root / "tones", fold, [(f"s{fold}y-{i}", {"tone": "abc"[i % 3]}, same[i]) for i in clips])
    results = results_of(root, tmp_path / "results", from_module(FramesEncoder()), task_of(), protocol="standard")
    assert "10 clips whose audio lies in another part too" in results["linear"].summary["notes"]


def test_an_encoder_that_mixes_the_clips_of_a_batch_gets_one_clip_per_batch(tmp_path: Path) -> None:
    same = wav(wave(300, 0.2, 1))
    write(tmp_path / "tones", "1", [(f"s{i}-{i}", {"tone": "a"}, same) for i in range(3)])
    for fold in ("2", "3"):
        write(tmp_path / "tones", fold, [(f"t{i}-{i}", {"tone": "abc"[i % 3]}, wave(300, i, i)) for i in range(3)])
    heard = hear(task_of().read(tmp_path).clips, RATE)
    for kind, largest in ((FramesEncoder, 4), (MixingEncoder, 1)):
        encoder, store = from_module(kind()), Store(tmp_path / kind.__name__, {})
        encode_own(encoder, heard, store)
        assert max(shape[0] for shape in encoder.module.calls[2:]) == largest  # type: ignore[index,union-attr]
        items = encode_published(encoder, heard[:3], Recipe(), store)
        assert [item.clip.id for item in items] == ["1/s0-0", "1/s1-1", "1/s2-2"]
        for heard_clip in heard[3:]:
            expected = kind().features(torch.from_numpy(samples_of(heard_clip))[None])[0].mean(0)
            np.testing.assert_allclose(store.rows[heard_clip.audio], expected, rtol=1e-4, atol=1e-7)


def test_a_results_folder_of_probes_trained_with_other_recipe_settings_is_refused(tmp_path: Path) -> None:
    root, encoder = made(tmp_path / "env"), from_module(FramesEncoder())
    results_of(root, tmp_path / "results", encoder, task_of(), protocol="as_published")
    with pytest.raises(RecordError, match=r"holds another run .*recipe.* name another folder"):
        results_of(root, tmp_path / "results", encoder, task_of(recipe=Recipe(epochs=1)), protocol="as_published")
    folder = tmp_path / "results" / "own" / "tones" / "FramesEncoder"
    assert ["seeds" in Run.read(folder / probe).identity for probe in PUBLISHED] == [True, False]  # kNN has none


def test_a_task_with_two_folds_gets_new_splits_for_the_standard_probes(tmp_path: Path) -> None:
    root, said = made(tmp_path / "env"), list[str]()
    task = task_of(globs={str(fold): f"{fold}.tar" for fold in (1, 2)})
    results = results_of(root, tmp_path / "results", from_module(FramesEncoder()), task, say=said.append)
    assert {name: result.summary["n"] for name, result in results.items()} == dict.fromkeys((*STANDARD, *PUBLISHED), 24)
    assert any("leave none to train or to validate on" in line for line in said)


def test_the_published_mean_average_precision_is_computed_within_each_fold(tmp_path: Path) -> None:
    labels = ["low", "high", "", "low;high", "high", "low"] * 2
    for fold in (1, 2, 3):
        waves = [wave(400, 0.05 * fold + 0.3 * label.count("h"), 10 * fold + i) for i, label in enumerate(labels)]
        write(tmp_path / "tags", f"{fold}", [(f"k{i}", {"tags": labels[i]}, waves[i]) for i in range(12)])
    task = task_of(
        key="own-tags/tags", multi_label=True, cluster="", exact=False, classes=frozenset(("low", "high", "none")),
        label=lambda meta: tuple(filter(None, meta["tags"].split(";"))),
    )  # fmt: skip
    results = results_of(tmp_path, tmp_path / "results", from_module(FramesEncoder()), task, seeds=SEEDS[:2])
    run = Run.read(results[PUBLISHED[0]].folder)
    each: list[list[float]] = [[], []]
    for fold in "123":
        groups = {"part": fold, "protocol": "xares-0.1.3"}
        records = [record for record in run.records.values() if record.groups == groups]
        right = np.array([np.isin(range(3), record.reference["positives"]) for record in records])
        for seed in range(2):
            logits = np.array([scores_of(record)[seed] for record in records])
            by_label = [average_precision_score(right[:, k], logits[:, k]) for k in range(3) if right[:, k].any()]
            each[seed].append(sum(by_label) / 3)
    (score,) = task_scores([run])
    assert score.by_probe[PUBLISHED[0]].value == pytest.approx(np.mean(each))
    seeds = [float(np.mean(precisions)) for precisions in each]
    assert results[PUBLISHED[0]].summary["seeds"] == pytest.approx(seeds)
    assert score.sd == pytest.approx(np.std(seeds, ddof=1))
    unlabelled = run.verdicts["1/k2"]
    assert run.task is not None
    assert (run.task.scorer.own_score(unlabelled), run.task.scorer.shown(unlabelled)) == (None, "no labels")


def test_encoders_of_the_same_name_get_distinct_names_in_score_tables(tmp_path: Path) -> None:
    root = made(tmp_path / "env")
    runs = []
    for kind in (FramesEncoder, LeakyEncoder):
        encoder = from_module(kind(), "Same")
        results = results_of(root, tmp_path / kind.__name__, encoder, task_of(), protocol="standard")
        runs += [Run.read(result.folder) for result in results.values()]
    scores = task_scores(runs)
    assert len({score.encoder for score in scores}) == 2
    assert all(score.encoder.startswith("Same ") for score in scores)
    with pytest.raises(RecordError, match="is there twice"):
        task_scores([*runs, runs[0]])


def test_published_mean_scores_weigh_tasks_as_x_ares_does() -> None:
    def score(task: str, domain: str, linear: float, mlp: float, *knn: float) -> Score:
        figures = {"linear": linear, PUBLISHED[0]: mlp} | dict(zip([PUBLISHED[1]], knn, strict=False))
        return Score("E", task, domain, {name: Estimate(value, None) for name, value in figures.items()})

    means = mean_scores([
        score("esc50", "environment", 0.4, 0.9, 0.3), score("fsd50k", "environment", 0.8, 0.5),
        score("gtzan_genre", "music", 0.0, 0.9, 0.3), score("subway_broadcast", "environment", 1.0, 1.0),
    ])  # fmt: skip
    values = {mean.task: {name: value.value for name, value in mean.by_probe.items()} for mean in means}
    assert values["environment: mean of 3"] == pytest.approx({"linear": 2.2 / 3, PUBLISHED[0]: 0.8})
    assert values["all: mean of 4"] == pytest.approx({"linear": 0.55, PUBLISHED[0]: 0.825})
    weighed = values["weighted, public: 3"]
    assert weighed[PUBLISHED[0]] == pytest.approx((400 * 0.9 + 2000 * 0.5 + 100 * 0.9) / 2500)
    assert weighed[PUBLISHED[1]] == pytest.approx(0.3)


def test_a_failing_task_does_not_stop_the_probes_of_other_tasks() -> None:
    def works(*outcomes: Any) -> Any:
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome

    said = list[str]()
    assert tried([works("a", DataError("odd")), works("b")], said.append) == (["a", "b"], True)
    assert said == ["error: odd"]
    assert tried([works("a")], said.append) == (["a"], False)
    with pytest.raises(DataError, match="odd"):
        tried([works("a", DataError("odd"))], said.append)
    with pytest.raises(SettingsError, match="nothing to run"):
        tried([works()], said.append)
