"""Encoders with real weights on real recordings: properties of the standard and the published probes.

The environment variable ENCODER_RESULTS names a folder for the runs, whose scores are in docs/results.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import real_encoder_tasks as real
from real_weights import real_weights

from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED, STANDARD
from audiomarathon.wings.encoders.probing.run import probe
from audiomarathon.wings.encoders.probing.store import Store
from audiomarathon.wings.encoders.registry import load_encoder
from audiomarathon.wings.encoders.results.scores import Score, task_scores

pytestmark = pytest.mark.real

Scores = Callable[..., Score]
_FEW = 40  # clips of a fold for Whisper, which takes a second a clip


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    """Return an encoder's score on a task. Each pair runs only once."""
    root = tmp_path_factory.mktemp("env")
    results = Path(os.environ.get("ENCODER_RESULTS") or tmp_path_factory.mktemp("results"))
    tasks: dict[str, real.EncoderTask] = {}
    known: dict[tuple[str, str, int], Score] = {}

    def of(name: str, task: str, limit: int = 0) -> Score:
        if (name, task, limit) not in known:
            if name == "ge2e":
                weights = str(real_weights("ge2e") / "pretrained.pt")
                encoder = load_encoder(str(Path(__file__).with_name("ge2e_encoder.py")), {"weights": weights})
            elif name == "whisper-base":
                encoder = load_encoder(f"hf:{real_weights('whisper-base')}")
            else:
                encoder = load_encoder(f"control:{name}")
            if task not in tasks:
                tasks[task] = real.build(root, task)
            store = Store(root / "cache", encoder.identity)
            probed = list(probe(encoder, tasks[task], tasks[task].read(root, limit=limit), results / str(limit), store))
            assert all(result.summary["complete"] for result in probed)
            (known[name, task, limit],) = task_scores([Run.read(result.folder) for result in probed])
        return known[name, task, limit]

    return of


@pytest.mark.parametrize("task", real.TASKS)
def test_trained_encoders_beat_random_weights_and_a_noise_encoder_is_at_chance(task: str, scores: Scores) -> None:
    linear = {name: scores(name, task).by_probe[STANDARD[0]] for name in ("ge2e", "random", "noise")}
    assert linear["ge2e"].value >= linear["random"].value + 0.1
    majority = scores("noise", task).majority
    assert majority is not None
    for probe_, score in scores("noise", task).by_probe.items():
        assert score.low < majority + 0.03, probe_


@pytest.mark.parametrize("task", ["same_speaker", "alphabets"])
def test_whisper_separates_languages_better_than_a_log_mel_spectrum(task: str, scores: Scores) -> None:
    whisper, logmel = (scores(name, task, _FEW).by_probe[STANDARD[0]] for name in ("whisper-base", "logmel"))
    assert whisper.value > logmel.value


def test_knn_as_published_scores_below_knn_by_cosine_similarity(scores: Scores) -> None:
    """On log-mel, X-ARES' kNN separates 20 languages no better than chance. On GE2E it scores lower as well."""
    logmel, ge2e = (scores(name, "alphabets").by_probe for name in ("logmel", "ge2e"))
    assert logmel[PUBLISHED[1]].value < 0.1
    assert logmel["knn"].value > 0.5
    assert ge2e[PUBLISHED[1]].value < 0.8
    assert ge2e["knn"].value > 0.85


def test_ctc_on_whisper_features_learns_to_spell_words(tmp_path: Path) -> None:
    """With minutes of speech, CTC learns to spell held-out prompts from Whisper's frames. Few words are fully right."""
    task = real.build_speech(tmp_path, most=240, seconds=3.0)
    summaries = {}
    for name in (f"hf:{real_weights('whisper-base')}", "control:random"):
        encoder = load_encoder(name)
        (result,) = probe(
            encoder, task, task.read(tmp_path), tmp_path / "results", Store(tmp_path, encoder.identity),
            protocol="standard",
        )  # fmt: skip
        summaries[name[:2]] = result.summary
    assert summaries["hf"]["cer"] < 0.45
    assert summaries["co"]["cer"] > 0.6


def test_an_adapter_to_a_trained_language_model_can_be_trained(tmp_path: Path) -> None:
    """Train X-ARES' probe on a few short prompts; the full protocol needs a GPU, so no score is expected."""
    task = real.build_speech(tmp_path, most=60, seconds=1.5)
    task = replace(task, llm=str(real_weights("smollm2-135m-instruct")), recipe=replace(task.recipe, epochs=2))
    encoder = load_encoder(f"hf:{real_weights('whisper-base')}")
    (result,) = probe(
        encoder, task, task.read(tmp_path), tmp_path / "results", Store(tmp_path, encoder.identity),
        protocol="as_published",
    )  # fmt: skip
    assert result.summary["complete"]
    assert result.summary["n"] == 10
