"""Tasks of frames: labels of frames, frames in the store, both probes, and F1 of segments and onsets."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score
from test_probing_runs import RATE, results_of, samples_of, write

from audiomarathon.errors import EncoderError
from audiomarathon.records import Record
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import from_module
from audiomarathon.wings.encoders.metrics.events import counts_of, f1, onset_counts, segments
from audiomarathon.wings.encoders.probing import frames as probes
from audiomarathon.wings.encoders.probing.clips import Split
from audiomarathon.wings.encoders.probing.encode import Heard, encode_own, hear
from audiomarathon.wings.encoders.probing.linear_and_knn import standardised
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED
from audiomarathon.wings.encoders.probing.published_probes import initial_heads, learning_rate
from audiomarathon.wings.encoders.probing.store import FrameStore, Store
from audiomarathon.wings.encoders.results.scores import task_scores
from audiomarathon.wings.encoders.scoring.segments import Segmented
from audiomarathon.wings.encoders.xares.framed import FramedTask
from audiomarathon.wings.encoders.xares.task import Recipe
from audiomarathon.wings.encoders.xares.tasks import named

DESED, MAESTRO = named(["desed", "maestro"])
LABELS = ["low", "mid", "high"]
SPLIT = Split(("train",), "valid", "test")


class SpectrumEncoder(torch.nn.Module):
    """The spectrum of each frame of 40 samples."""

    sampling_rate, output_dim, hop_size_in_ms, scale = RATE, 20, 40, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, ...]] = []

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        self.calls.append(tuple(audio.shape))
        frames = torch.nn.functional.pad(audio, (0, -audio.shape[1] % 40)).unfold(1, 40, 40)
        return self.scale * torch.fft.rfft(frames).abs()[..., 1:].log1p()


class WindowEncoder(SpectrumEncoder):
    """Accepts 0.99 s at most, which is no multiple of its hop."""

    max_seconds = 0.99


class HastyEncoder(SpectrumEncoder):
    """Declares half its true hop."""

    hop_size_in_ms = 20


def task_of(**facts: Any) -> FramedTask:
    assert isinstance(DESED, FramedTask)
    globs = {part: f"{part}.tar" for part in ("train", "valid", "test")}
    return replace(DESED, globs=globs, classes=frozenset(LABELS), **facts)


def drawn(rng: np.random.Generator, seconds: float) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return events, and audio in which each label is a tone."""
    audio, events = 0.01 * rng.standard_normal(round(seconds * RATE)), []
    for _ in range(rng.integers(0, 4)):
        start, label = rng.uniform(0, seconds - 0.5), rng.integers(3)
        end = start + rng.uniform(0.3, 1)
        span = np.arange(round(start * RATE), min(round(end * RATE), len(audio)))
        audio[span] += 0.5 * np.sin(2 * np.pi * (100, 225, 400)[label] * span / RATE)
        events.append({"onset": start, "offset": end, "label": LABELS[label]})
    return events, audio.astype(np.float32)


def made(root: Path, many: int = 14) -> Path:
    rng = np.random.default_rng(5)
    for part in ("train", "valid", "test"):
        clips = [(f"k{i}", *drawn(rng, 3.0 if i % 3 else 2.2)) for i in range(many)]
        write(root / "desed", part, clips)
    return root


class TestLabels:
    def test_an_event_covers_the_frames_that_begin_between_its_start_and_end(self) -> None:
        rng = np.random.default_rng(0)
        for hop in (10, 40, 23.2):
            events = [(s, s + d, LABELS[i % 3]) for i, (s, d) in enumerate(rng.uniform(0, 3, (9, 2)))]
            expected = np.zeros((90, 3), dtype=bool)
            for frame in range(90):
                for start, end, label in events:  # frame k begins at k hops
                    if start <= frame * hop / 1000 < end:
                        expected[frame, LABELS.index(label)] = True
            np.testing.assert_array_equal(probes.activity(events, LABELS, hop, 90, 0), expected)

    def test_an_event_that_begins_and_ends_between_two_frames_labels_no_frame(self) -> None:
        events = [(9.0, 12.0, "low"), (1.01, 1.03, "mid"), (0.0, 0.04, "high"), (0, 1, "other")]
        hot = probes.activity(events, LABELS, 40, 275, 10.0)
        assert hot[:, 0].nonzero()[0].tolist() == [*range(225, 250)]
        assert hot[:, 1:].nonzero() == ([0], [1])
        assert probes.activity(events, LABELS, 40, 20, 0).shape == (20, 3)
        assert probes.activity(events, LABELS, 40, 20, 0, released=True)[:, 0].sum() == 75

    def test_events_with_malformed_metadata_are_refused(self, tmp_path: Path) -> None:
        assert isinstance(MAESTRO, FramedTask)
        assert MAESTRO.described("k", [{"start": 1, "end": 2, "note": 108}])[0] == ("108",)
        assert DESED.facts([{"onset": 0, "offset": "1.5", "label": "Dog,Cat"}]) == ((0, 1.5, "Dog"), (0, 1.5, "Cat"))
        assert DESED.described("k", []) == ((), "")
        for odd in ({"label": "Wolf"}, {"onset": 2}, {"onset": -1}, {"onset": "a"}, {"offset": math.inf}):
            with pytest.raises(ValueError, match="no usable label"):
                DESED.described("k", [{"onset": 0, "offset": 1, "label": "Dog"} | odd])
        with pytest.raises(ValueError, match="no usable label"):
            DESED.described("k", {"onset": 0, "offset": 1, "label": "Dog"})
        assert (MAESTRO.recipe.batch, MAESTRO.recipe.epochs, MAESTRO.pos_weight) == (1, 50, 10)
        assert list(DESED.parts) == ["train", "test"]
        data = task_of().read(made(tmp_path))
        assert data.classes == ("high", "low", "mid")
        assert not data.bad_rows


class TestCounts:
    @pytest.mark.parametrize(
        ("predicted", "true", "counts"),
        [
            ([1.0], [1.05], (1, 0, 0)),
            ([1.0], [1.051], (0, 1, 1)),
            ([1.0, 1.04], [1.02], (1, 1, 0)),  # each onset counts once
            ([1.0, 1.06], [1.03, 1.1], (2, 0, 0)),
            ([0.0, 1.0, 2.0], [2.01], (1, 2, 0)),
            ([], [2.01], (0, 0, 1)),
        ],
    )
    def test_onsets_at_most_50_ms_apart_are_matched(
        self, predicted: list[float], true: list[float], counts: tuple[int, ...]
    ) -> None:
        assert onset_counts(predicted, true, 0.05) == counts

    def test_a_predicted_onset_is_the_frame_at_which_a_label_becomes_active(self) -> None:
        events = [(0.0, 0.1, "low"), (0.11, 0.2, "low"), (0.5, 0.6, "mid"), (7.0, 8.0, "mid")]
        predicted = probes.activity([*events[:2], (0.55, 0.6, "mid")], LABELS, 20, 40, 0)
        # 0.0 is found, 0.11 as frame 6 at 0.12, 0.5 is missed by 60 ms, 7.0 lies after the last frame
        assert probes.onsets_in(predicted, events, LABELS, 20, 0.05) == [2, 1, 1]


def random_frames(seed: int, lengths: Sequence[int], dim: int = 9) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    active = [rng.uniform(size=(n, 3)).repeat(4, axis=0)[:n] < (0.15, 0.3, 0.1) for n in lengths]
    mix = rng.standard_normal((3, dim))
    return [labels @ mix + 0.2 * rng.standard_normal((len(labels), dim)) for labels in active], active


def segment_f1(predicted: Sequence[np.ndarray], true: Sequence[np.ndarray], size: int, average: str) -> float:
    """Return X-ARES' segment F1 of clips, computed by scikit-learn."""

    def pooled(clips: Sequence[np.ndarray]) -> np.ndarray:
        frames = [torch.as_tensor(clip, dtype=torch.float32).T[None] for clip in clips]
        return torch.cat([torch.nn.functional.max_pool1d(clip, size)[0].T for clip in frames]).numpy()

    return float(f1_score(pooled(true), pooled(predicted), average=average, zero_division=0))


PARTS = ["train"] * 8 + ["valid"] * 4 + ["test"] * 4
ROWS = {"train": [*range(8)], "valid": [*range(8, 12)], "test": [*range(12, 16)]}
LENGTHS = [30, 41, 22, 30, 35, 30, 28, 33, 40, 31, 29, 44, 21, 50, 36, 30]


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_the_frame_ridge_probe_chooses_penalty_and_threshold_as_a_plain_grid_search_does(
    average: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    penalties, thresholds = (1e-6, 1e-1, 1.0), probes.THRESHOLDS[::5]
    monkeypatch.setattr("audiomarathon.wings.encoders.probing.frames.RIDGE_PENALTIES", penalties)
    monkeypatch.setattr("audiomarathon.wings.encoders.probing.frames.THRESHOLDS", thresholds)
    frames, active = random_frames(1, LENGTHS)
    given = probes.Framed(frames, active, np.array(PARTS), 4, average == "macro")
    inputs = [standardised(clip_frames) for clip_frames in frames]

    def fitted(known: Sequence[int], penalty: float) -> Any:
        x, y = (np.concatenate([each[row] for row in known]) for each in (inputs, active))
        return Ridge(alpha=penalty * len(x)).fit(x, y.astype(float))

    best = (-1.0, 0.0, 0.0)
    for penalty in penalties:
        model = fitted(ROWS["train"], penalty)
        scores, right = [model.predict(inputs[row]) for row in ROWS["valid"]], [active[row] for row in ROWS["valid"]]
        for threshold in thresholds:
            best = max(best, (segment_f1([clip > threshold for clip in scores], right, 4, average), penalty, threshold))
    model = fitted(ROWS["train"] + ROWS["valid"], best[1])
    result = dict(probes.frame_ridge(given, [SPLIT]))
    assert [*result] == ROWS["test"]
    for row in ROWS["test"]:
        np.testing.assert_array_equal(result[row], model.predict(inputs[row]) > best[2])
    assert best[0] > 0.6


@pytest.mark.parametrize(("average", "positive", "batch"), [("macro", 1.0, 3), ("micro", 10.0, 1)])
def test_the_published_frame_probe_equals_the_training_loop_of_x_ares(
    average: str, positive: float, batch: int
) -> None:
    frames, active = random_frames(2, LENGTHS)
    longer = [np.pad(labels, ((0, place % 7), (0, 0)), constant_values=True) for place, labels in enumerate(active)]
    recipe = Recipe(batch=batch, epochs=10, lr=0.05)
    halves = [clip_frames.astype(np.float16) for clip_frames in frames]
    given = probes.Framed(halves, longer, np.array(PARTS), 4, average == "macro")
    counts_by_seed = probes.published_frames(given, SPLIT, recipe, seeds=[7, 8], positive=positive)
    kept = [torch.tensor(half).float() for half in halves]

    def padded(batch_rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(len(kept[row]) for row in batch_rows)
        x, y = torch.zeros(len(batch_rows), longest, 9), torch.zeros(len(batch_rows), longest, 3)
        for place, row in enumerate(batch_rows):
            x[place, : len(kept[row])] = kept[row]
            cut = torch.tensor(longer[row][:longest]).float()
            y[place, : len(cut)] = cut
        return x, y

    for place, seed in enumerate([7, 8]):
        model = torch.nn.Sequential(torch.nn.LayerNorm(9), initial_heads(9, 3, 1, seed)[0])
        model.requires_grad_(True)
        loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(positive))
        adam, generator = torch.optim.Adam(model.parameters()), torch.Generator().manual_seed(seed)

        def scored(part: str, model: torch.nn.Module = model) -> tuple[float, Any]:
            batches = [padded(ROWS[part][start : start + batch]) for start in range(0, 4, batch)]
            with torch.no_grad():
                predicted = [clip for x, _ in batches for clip in model(x).sigmoid().round().numpy()]
            true = [clip for _, y in batches for clip in y.numpy()]
            return segment_f1(predicted, true, 4, average), (predicted, true)

        best = (-1.0, 0.0)
        for epoch in range(10):
            order = [ROWS["train"][i] for i in torch.randperm(8, generator=generator)]
            adam.param_groups[0]["lr"] = learning_rate(0.05, epoch, 10)
            for start in range(0, 8, batch):
                x, y = padded(order[start : start + batch])
                adam.zero_grad()
                loss(model(x), y).backward()
                adam.step()
            if (now := scored("valid")[0]) > best[0]:
                best, tested = (now, scored("test")[0]), scored("test")[1]
        ours = f1(counts_by_seed[place].sum(axis=0) if average == "macro" else counts_by_seed[place].sum(axis=(0, 1)))
        assert np.nan_to_num(ours).mean() == pytest.approx(best[1], abs=1e-9)
        assert best[1] > 0.2
        for clip, counts in enumerate(counts_by_seed[place]):
            cut = [segments(each[clip].astype(bool), 4) for each in tested]
            assert counts.tolist() == counts_of(cut[0], cut[1]).tolist()


def features_of(clip: Heard) -> torch.Tensor:
    features: torch.Tensor = SpectrumEncoder()(torch.from_numpy(samples_of(clip))[None])[0]
    return features


class TestStore:
    def kept(self, tmp_path: Path, kind: type[SpectrumEncoder] = SpectrumEncoder) -> tuple[Any, FrameStore, list[Any]]:
        encoder = from_module(kind())
        store = FrameStore(Store(tmp_path / "cache", encoder.identity))
        heard = hear(task_of().read(made(tmp_path, 4)).clips, RATE)
        assert encode_own(encoder, heard, store) == {}
        return encoder, store, heard

    def test_frame_embeddings_are_stored_in_half_precision_and_memory_mapped_from_disk(self, tmp_path: Path) -> None:
        encoder, store, heard = self.kept(tmp_path)
        again = FrameStore(Store(tmp_path / "cache", encoder.identity))
        assert again.rows == {}
        before = len([*Path("/proc/self/fd").iterdir()])
        assert all(again.has(heard_clip.audio) for heard_clip in heard)
        assert len([*Path("/proc/self/fd").iterdir()]) == before  # a process may have a thousand
        for clip in heard:
            frames = again.rows[clip.audio]
            assert (frames.flags.owndata, frames.dtype) == (False, np.float16)
            np.testing.assert_allclose(frames, features_of(clip), atol=2e-3)
        calls = len(encoder.module.calls)
        encode_own(encoder, heard, again)
        assert len(encoder.module.calls) == calls
        assert not [*store.folder.parent.glob("part-*")]

    def test_frame_embeddings_that_overflow_half_precision_are_stored_in_single_precision(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SpectrumEncoder, "scale", 1e6)
        _, store, heard = self.kept(tmp_path)
        assert {store.rows[clip.audio].dtype for clip in heard} == {np.dtype(np.float32)}

    def test_clips_of_a_damaged_file_of_frame_embeddings_are_encoded_again(self, tmp_path: Path) -> None:
        encoder, store, heard = self.kept(tmp_path)
        file = next(store.folder.glob(f"{heard[3].audio}-*.npy"))
        whole = file.read_bytes()
        file.write_bytes(whole[:-7] + b"changed")
        again = FrameStore(Store(tmp_path / "cache", encoder.identity))
        encoder.module.calls.clear()
        with pytest.warns(UserWarning, match="damaged .*; its clips are encoded again"):
            encode_own(encoder, heard, again)
        assert 1 <= len(encoder.module.calls) <= 2
        assert file.read_bytes() == whole

    def test_frame_embeddings_of_a_clip_encoded_in_windows_equal_those_of_the_whole_clip(self, tmp_path: Path) -> None:
        encoder, store, heard = self.kept(tmp_path, WindowEncoder)
        assert max(shape[1] for shape in encoder.module.calls[2:]) <= 0.99 * RATE
        for clip in heard:
            np.testing.assert_allclose(store.rows[clip.audio], features_of(clip), atol=2e-3)


def test_a_run_of_frame_probes_gives_segment_f1_with_intervals_over_clips(tmp_path: Path) -> None:
    task, encoder = task_of(recipe=Recipe(batch=4, epochs=30, lr=0.01)), from_module(SpectrumEncoder())
    results = results_of(made(tmp_path / "env"), tmp_path / "results", encoder, task, seeds=[1, 2])
    assert [*results] == ["linear", PUBLISHED[0]]
    run = Run.read(results["linear"].folder)
    assert (len(run.records), run.headline.clusters) == (14, 14)
    assert {record.groups["part"] for record in run.records.values() if record.groups} == {"test"}
    totals = {label: np.zeros(3) for label in LABELS}
    for verdict in run.verdicts.values():
        for label, counts in verdict.values["segments"][0].items():
            totals[label] += counts
    by_label = {label: 2 * tp / (2 * tp + fp + fn) for label, (tp, fp, fn) in totals.items()}
    summary = results["linear"].summary
    assert summary["score"] == pytest.approx(np.mean([*by_label.values()]))
    assert summary["f1_by_label"] == pytest.approx(by_label)
    low, high = summary["intervals"]["segment_f1"]
    assert low <= summary["score"] <= high
    assert summary["score"] > 0.8
    assert "onset_f1" not in summary
    mlp = results[PUBLISHED[0]].summary
    assert len(mlp["seeds"]) == 2
    assert mlp["score"] == pytest.approx(np.mean(mlp["seeds"]))
    (score,) = task_scores([run, Run.read(results[PUBLISHED[0]].folder)])
    assert (score.by_probe[PUBLISHED[0]].value, score.sd) == (mlp["score"], pytest.approx(mlp["sd"]))


def test_a_label_that_never_occurs_counts_as_zero_in_the_published_f1_only() -> None:
    def verdict(released: bool, average: str = "macro") -> Any:
        groups = {"part": "test", "protocol": "xares-0.1.3"} if released else {"part": "test"}
        reference = {"answer": "a", "labels": [*"abcd"], "average": average}
        reply = '{"segments": {"a": [3, 1, 0], "b": [0, 2, 0]}}\n{"segments": {"a": [3, 0, 0]}}'
        record = Record("1", "1", reply=reply, reference=reference, groups=groups)
        return next(iter(Segmented().verdicts([record])))

    values = {kind: Segmented().sums([verdict(*kind)]).figures["segment_f1"] for kind in [(False,), (True,)]}
    assert values == pytest.approx({(False,): (6 / 7 + 1) / 2, (True,): (6 / 7 + 1) / 2 / 4})
    assert Segmented().sums([verdict(True, "micro")]).figures["segment_f1"] == pytest.approx((6 / 9 + 1) / 2)
    assert Segmented().own_score(verdict(False)) == pytest.approx((6 / 9 + 1) / 2)
    for odd in ('{"a": [1, 2]}', '{"a": [1, 2, -1]}', '{"e": [1, 2, 0]}'):
        with pytest.raises(ValueError, match=r"counts|Expecting"):
            Segmented().judge(Record("1", "1", reply=f'{{"segments": {odd}}}', reference={"labels": [*"abcd"]}))


def test_a_task_whose_clips_are_shorter_than_a_segment_has_no_score_and_no_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for part in ("train", "valid", "test"):
        write(tmp_path / "env" / "desed", part, [(f"k{i}", *drawn(rng, 0.8)) for i in range(6)])
    task = task_of(recipe=Recipe(batch=4, epochs=1))
    results = results_of(tmp_path / "env", tmp_path / "results", from_module(SpectrumEncoder()), task, seeds=[1, 2])
    scores = {name: result.summary["score"] for name, result in results.items()}
    assert scores == {"linear": None, PUBLISHED[0]: 0.0}  # X-ARES counts a label without events as 0
    assert "NaN" not in (results["linear"].folder / "summary.json").read_text()


def test_the_published_probe_of_note_tasks_ignores_the_highest_note(tmp_path: Path) -> None:
    rng, said = np.random.default_rng(8), list[str]()
    for part in ("train", "valid", "test"):
        clips = []
        for i in range(30):
            events, audio = drawn(rng, 3.0)
            notes = [{"start": event["onset"], "end": event["offset"], "note": 106 + LABELS.index(event["label"])}
                     for event in events]  # fmt: skip
            clips.append((f"p{i}", notes, audio))
        write(tmp_path / "maestro", f"maestro_{part}-0", clips)
    task = replace(MAESTRO, recipe=Recipe(batch=1, epochs=3, encode_batch=1, knn=False, lr=0.01))
    encoder = from_module(SpectrumEncoder())
    results = results_of(tmp_path, tmp_path / "results", encoder, task, seeds=[1], say=said.append)
    summary = results["linear"].summary
    assert (summary["classes"], results[PUBLISHED[0]].summary["classes"]) == (88, 87)
    assert summary["onset_f1"] > 0.6
    low, high = summary["intervals"]["onset_f1"]
    assert low <= summary["onset_f1"] <= high
    assert ["108" in result.summary["f1_by_label"] for result in results.values()] == [True, False]
    assert sum("events: X-ARES has no class for 108" in line for line in said) == 1


def test_an_encoder_with_a_wrong_hop_size_is_run_only_with_the_published_probe(tmp_path: Path) -> None:
    root, encoder, task = made(tmp_path / "env", 6), from_module(HastyEncoder()), task_of(recipe=Recipe(epochs=1))
    with pytest.raises(EncoderError, match=r"1 s give 25 frames, hop_size_in_ms=20 says 50; desed needs the true hop"):
        results_of(root, tmp_path / "results", encoder, task, seeds=[1], protocol="standard")
    said = list[str]()
    results = results_of(root, tmp_path / "results", encoder, task, seeds=[1], say=said.append)
    assert [*results] == [PUBLISHED[0]]
    assert said[0].startswith("left out linear: HastyEncoder: 1 s give 25 frames")
    results = results_of(root, tmp_path / "results", encoder, task, seeds=[1], protocol="as_published")
    assert results[PUBLISHED[0]].summary["complete"]
