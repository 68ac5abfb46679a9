"""Tasks of grades: ridge to several numbers, Pearson's r and its interval."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from sklearn.linear_model import Ridge
from test_probing_runs import RATE, results_of, write

from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import from_module
from audiomarathon.wings.encoders.metrics.correlation import moment_columns, pearson
from audiomarathon.wings.encoders.probing.clips import Split
from audiomarathon.wings.encoders.probing.grades import grade_probe
from audiomarathon.wings.encoders.probing.linear_and_knn import RIDGE_PENALTIES, standardised
from audiomarathon.wings.encoders.results.scores import task_scores
from audiomarathon.wings.encoders.xares.task_config import TaskConfig, task_of
from audiomarathon.wings.encoders.xares.tasks import config_of, named

(TASK,) = named(["speechocean762"])


class BandsEncoder(torch.nn.Module):
    """Eight bands of each frame's spectrum."""

    sampling_rate, output_dim, hop_size_in_ms = RATE, 8, 100

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        frames = torch.nn.functional.pad(audio, (0, -audio.shape[1] % 100)).unfold(1, 100, 100)
        spectrum = torch.fft.rfft(frames).abs()[..., 1:49]
        return spectrum.unflatten(-1, (8, 6)).mean(-1).log1p()


def tone(level: float, seed: int) -> np.ndarray:
    """Return 0.4 s of a low tone at a level and a high tone at the opposite level, with noise."""
    time, noise = np.arange(400) / RATE, np.random.default_rng(seed).standard_normal(400)
    low, high = np.sin(2 * np.pi * 60 * time), np.sin(2 * np.pi * 330 * time)
    return (0.1 * level * low + 0.05 * (10 - level) * high + 0.02 * noise).astype(np.float32)


def write_ocean(root: Path, speakers: int = 8, each: int = 6, **odd: Any) -> Path:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        clips: list[tuple[str, Any, np.ndarray]] = []
        for speaker in range(speakers):
            for number in range(each):
                level = float(rng.uniform(1, 9))
                grades = {"accuracy": round(level + rng.normal()), "fluency": 10 - level, "total": 3.0} | odd
                meta = {"speaker": f"{part}{speaker}", **grades}
                clips.append((f"{speaker}-{number}", meta, tone(level, len(clips) + 1000 * (part == "test"))))
        write(root / "speechocean762", f"speechocean762_{part}-0", clips)
    return root


def test_speech_grades_are_read_with_the_speaker_as_cluster(tmp_path: Path) -> None:
    data = TASK.read(write_ocean(tmp_path), limit=20)
    assert (data.classes, data.clustered, len(data.clips)) == ((), True, 40)
    assert (data.clips[0].cluster, data.clips[0].labels) == ("train0", ())
    assert len(data.clips[0].facts) == 5
    assert np.isnan(data.clips[0].facts[2:4]).all()
    assert TASK.parts == {"train": "speechocean762_train*.tar", "test": "speechocean762_test*.tar"}
    for odd in ({"fluency": 3}, {"accuracy": "good"}, {"accuracy": float("nan")}, {"accuracy": 3, "total": 1e999}, [1]):
        with pytest.raises(ValueError, match="no usable label"):
            TASK.described("k", odd)


def test_a_run_on_speech_grades_gives_pearson_r_with_intervals_over_speakers(tmp_path: Path) -> None:
    root, said = write_ocean(tmp_path / "env"), list[str]()
    encoder = from_module(BandsEncoder())
    results = results_of(root, tmp_path / "results", encoder, TASK, say=said.append)
    assert [*results] == ["linear"]
    assert sum("not a task of X-ARES 0.1.3" in line for line in said) == 1
    summary, run = results["linear"].summary, Run.read(results["linear"].folder)
    records = list(run.records.values())
    assert {record.groups["part"] for record in records if record.groups} == {"test"}
    assert {record.cluster for record in records} == {f"test{speaker}" for speaker in range(8)}
    names = records[0].reference["grades"]
    assert names == ["accuracy", "fluency", "total"]  # those that every clip has
    predicted = np.array([run.verdicts[record.id].values["predicted"] for record in records])
    true = np.array([record.reference["values"] for record in records])
    spread = np.array([record.reference["spreads"] for record in records])
    for place, name in enumerate(names[:2]):
        assert summary[f"r_{name}"] == pytest.approx(pearsonr(predicted[:, place], true[:, place]).statistic, abs=1e-9)
        error = np.mean(((predicted - true) / spread)[:, place] ** 2)
        assert summary[f"mse_{name}"] == pytest.approx(error, abs=1e-9)
    assert summary["r_total"] is None  # always 3
    assert summary["score"] == summary["pearson"] == summary["r_accuracy"] > 0.85
    low, high = summary["intervals"]["pearson"]
    assert low < summary["score"] < high <= 1
    assert run.headline.clusters == 8
    errors = np.abs((predicted - true) / spread)[:, 0]
    scores = [run.task.scorer.own_score(run.verdicts[record.id]) for record in records]
    assert scores == pytest.approx(np.clip(1 - errors, 0, None))
    shown = run.task and run.task.scorer.shown(run.verdicts[records[0].id])
    assert shown == f"accuracy {predicted[0, 0]:.1f}, true {true[0, 0]:g}"
    (score,) = task_scores([run])
    assert score.by_probe["linear"].value == summary["score"]


def by_hand(x: np.ndarray, y: np.ndarray, parts: Sequence[str]) -> np.ndarray:
    """Select the penalty, refit and predict with scikit-learn, on z-scored grades."""
    rows = {name: [i for i, part in enumerate(parts) if part == name] for name in ("train", "valid", "test")}

    def fitted(known: list[int], penalty: float) -> Any:
        return Ridge(alpha=penalty * len(known)).fit(x[known], (y[known] - y[known].mean(0)) / y[known].std(0))

    tried = [fitted(rows["train"], penalty).predict(x[rows["valid"]])[:, 0] for penalty in RIDGE_PENALTIES]
    scores = [pearsonr(predicted, y[rows["valid"], 0]).statistic for predicted in tried]
    both = rows["train"] + rows["valid"]
    model = fitted(both, RIDGE_PENALTIES[int(np.argmax(scores))])
    predicted: np.ndarray = model.predict(x[rows["test"]]) * y[both].std(0) + y[both].mean(0)
    return predicted


@pytest.mark.parametrize("dim", [6, 90])
def test_the_grade_probe_equals_ridge_on_z_scored_grades(dim: int) -> None:
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((60, dim))
    y = x[:, :2] @ rng.standard_normal((2, 3)) * [1, 5, 0.1] + rng.standard_normal((60, 3)) + [3, 0, 9]
    parts = ["train"] * 30 + ["valid"] * 14 + ["test"] * 16
    predictions = grade_probe(x, y, np.array(parts), [Split(("train",), "valid", "test")])
    np.testing.assert_allclose(predictions.values, by_hand(standardised(x), y, parts), rtol=1e-6)
    np.testing.assert_array_equal(predictions.rows, range(44, 60))
    np.testing.assert_allclose(predictions.spreads, np.tile(y[:44].std(0), (16, 1)))


def test_pearson_r_computed_from_sums_equals_that_of_scipy() -> None:
    rng = np.random.default_rng(3)
    p, t = rng.standard_normal((2, 40)) + 8
    t += p
    assert pearson(moment_columns(p, t).sum(axis=0)) == pytest.approx(pearsonr(p, t).statistic, abs=1e-10)
    assert pearson(moment_columns(t, t).sum(axis=0)) == pytest.approx(1)
    assert pearson(moment_columns(np.full(40, 7.3), t).sum(axis=0)) == 0
    assert np.isnan(pearson(moment_columns(p, np.full(40, 7.3)).sum(axis=0)))


def test_a_negative_correlation_of_grades_scores_zero(tmp_path: Path) -> None:
    root = write_ocean(tmp_path / "env", speakers=4)
    clips = [(f"0-{i}", {"speaker": "t", "accuracy": 10 - i, "fluency": i}, tone(i, i)) for i in range(1, 9)]
    write(root / "speechocean762", "speechocean762_test-0", clips)  # grades are the reverse of train
    summary = results_of(root, tmp_path / "results", from_module(BandsEncoder()), TASK)["linear"].summary
    assert summary["r_accuracy"] < -0.8
    assert summary["score"] == 0


def test_the_released_config_of_speechocean762_gives_the_built_in_task() -> None:
    config = config_of("speechocean762")
    assert (config.criterion, config.metric, config.output_dim) == ("MSELoss", "MSE", 0)
    assert task_of(config) == TASK
    assert task_of(TaskConfig("own", criterion="MSELoss", metric="MSE", output_dim=1)).key == "own-grades/own"
