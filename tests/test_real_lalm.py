"""Clotho and MMAU-Pro with real weights of an audio encoder, an LLM and a sentence encoder, on real recordings."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import soundfile
from builders import records_in
from caption_folders import clotho_folder
from conftest import succeed
from families import FAMILIES
from lalm_folders import ROWS, mmau_pro_folder
from real_captions import caption_tables
from real_recordings import PROMPT_PACKAGES, SAMPLE_FOLDER, SAMPLE_PACKAGE, SOUNDS, prompts, recordings
from real_weights import real_qwen2_audio, real_weights

from audiomarathon.runs.folder import read_records
from audiomarathon.scoring.caption import Caption
from audiomarathon.wings.lalm.mmau_pro import CATEGORIES

pytestmark = pytest.mark.real

LABELS = ("base-0", "fast_v-0.5-layer2")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_qwen2_audio(tmp_path_factory.mktemp("weights") / "real-155m")


@pytest.fixture
def sounds() -> dict[Path, str]:
    """Short sounds and what each is."""
    if not SAMPLE_FOLDER.is_dir():
        pytest.skip(f"no sounds: apt-get install {SAMPLE_PACKAGE}")
    return {SAMPLE_FOLDER / f"{name}.flac": text for name, text in SOUNDS.items()}


def said(text: str, file: Path) -> Path:
    """Speak a text."""
    if not shutil.which("espeak-ng"):
        pytest.skip("no voice: apt-get install espeak-ng")
    subprocess.run(["espeak-ng", "-w", file, text], check=True)
    return file


def swept(task: str, checkpoint: Path, data: Path, out: Path) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Run a task as it is and with half the audio tokens; return each setting's records and summary."""
    place = ("--model", "qwen2-audio", "--model-path", checkpoint, "--data", data, "--results", out)
    succeed("sweep", task, *place, "--methods", "fast_v", "--ratios", 0.5)
    folders = [out / "lalm" / task / "real-155m" / label for label in LABELS]
    return [(records_in(folder), json.loads((folder / "summary.json").read_text())) for folder in folders]


@pytest.fixture
def small(no_env: Callable[[str, str], None]) -> Callable[[str, str], None]:
    for name, value in {"MAX_NEW_TOKENS": "8", "BATCH_SIZE": "4", "TIMING": "false"}.items():
        no_env(name, value)
    no_env("TEXT_ENCODER", str(real_weights("all-minilm-l6-v2")))
    return no_env


def check_tokens(
    base: list[dict[str, Any]], pruned: list[dict[str, Any]], seconds: Mapping[str, Sequence[float]]
) -> None:
    """Check that lengths match the files, that every clip has its own audio tokens, and that half is kept."""
    tokens = FAMILIES["qwen2-audio"].audio_tokens
    for whole, half in zip(base, pruned, strict=True):
        clips = seconds[whole["id"]]
        assert whole["clip_seconds"] == pytest.approx(sum(clips), abs=0.001 * len(clips))
        assert whole["audio_tokens"] == pytest.approx(
            sum(tokens(round(16000 * seconds)) for seconds in clips), abs=len(clips)
        )
        assert whole["kept_audio_tokens"] == half["audio_tokens"] == whole["audio_tokens"]
        assert half["kept_audio_tokens"] == pytest.approx(whole["audio_tokens"] / 2, abs=0.5)


def test_a_sweep_of_clotho_runs_on_real_recordings(
    small: Callable[[str, str], None], checkpoint: Path, sounds: dict[Path, str], tmp_path: Path
) -> None:
    clips = {path.name: path for path in [*list(sounds)[:4], *recordings("ambience")[:2]]}
    told = {name: sounds.get(path, "A slow drone of a synthesizer") for name, path in clips.items()}
    captions = {
        name: (f"{text}.", f"{text} in a room.", f"One hears {text.lower()}.", "", "") for name, text in told.items()
    }
    data = clotho_folder(tmp_path / "clotho", captions, clips=clips)
    (base, whole), (pruned, half) = swept("clotho", checkpoint, data, tmp_path / "out")
    check_tokens(base, pruned, {name: [soundfile.info(path).duration] for name, path in clips.items()})
    assert len({record["reply"] for record in base}) >= 3  # it hears the clips
    assert [record["reply"] for record in base] != [record["reply"] for record in pruned]
    for summary in (whole, half):
        assert (summary["n"], summary["complete"], summary["errors"]) == (6, True, 0)
        assert 0.05 < summary["sbert_sim[all-minilm-l6-v2]"] < 0.9
        assert summary["fense[all-minilm-l6-v2]"] is None
        assert any(note.startswith("FENSE not computed: the fluency checker") for note in summary["notes"])
        assert summary["cider_d"] == pytest.approx(summary["cider_d_as_published"])  # all clips were run
        assert summary["cider_d"] < summary["human"]["cider_d"]
    records = read_records(tmp_path / "out" / "lalm" / "clotho" / "real-155m" / "base-0")
    right = [replace(record, reply=record.reference["references"][0]) for record in records.values()]
    assert all(verdict.values["sbert_sim"] > 0.7 for verdict in Caption().verdicts(right))
    assert whole["sbert_sim[all-minilm-l6-v2]"] < 0.5


def test_a_sweep_of_mmau_pro_runs_on_real_recordings_of_every_category(
    small: Callable[[str, str], None], checkpoint: Path, sounds: dict[Path, str], tmp_path: Path
) -> None:
    """Every category has a question. Speech is a telephone system's voice prompt, or synthesised here."""
    if not prompts():
        pytest.skip(f"no voice prompts: apt-get install {PROMPT_PACKAGES}")
    rows = {row["id"]: row for row in ROWS[:15]}
    noises, voices, queue = cycle(sounds), cycle(prompts()), list[Path]()
    for row in rows.values():
        if text := row.get("transcription") or {"voice_chat": "How many legs has a cat?"}.get(row["category"]):
            queue.append(said(text, tmp_path / f"{row['id']}.wav"))
        else:
            queue += [next(voices if "speech" in row["category"] else noises) for _ in range(row.get("clips", 1))]
    data = mmau_pro_folder(tmp_path / "mmau", queue, list(rows.values()))
    (base, whole), (pruned, half) = swept("mmau_pro", checkpoint, data, tmp_path / "out")
    files = iter(queue)
    check_tokens(base, pruned, {
        id_: [soundfile.info(next(files)).duration for _ in range(row.get("clips", 1))] for id_, row in rows.items()
    })  # fmt: skip
    assert {record["groups"]["category"] for record in base} == set(CATEGORIES)
    for summary in (whole, half):
        assert (summary["n"], summary["complete"], summary["errors"], summary["not_judged"]) == (15, True, 0, 2)
        assert summary["encoder"] == "all-minilm-l6-v2"
        assert 0 <= summary["closed_as_published"] <= 1
        assert (summary["accuracy: open"], summary["open_as_published"]) == (None, None)


@pytest.mark.parametrize(("place", "cider_d", "people", "cosine"), [
    (0, 0.40172373459481686, 1.099, 0.360), (1, 0.6342852251812825, 0.920, 0.574),
])  # fmt: skip
def test_the_references_experiment_on_published_captions_gives_the_stored_metric_values(
    place: int, cider_d: float, people: float, cosine: float, no_env: Callable[[str, str], None], tmp_path: Path
) -> None:
    """A system's replies and people's captions, against five references; outliers among the captions."""
    file, encoder = caption_tables()[place], real_weights("all-minilm-l6-v2")
    out, options = tmp_path / "references", ("--encoder", encoder)
    succeed("experiment", "references", file, "-o", out, *options)
    (summary,) = (json.loads(file.read_text()) for file in out.glob("*.json"))
    by_figure = {row["figure"].partition("[")[0]: row for row in summary["scores"]}
    assert by_figure["replies: cider_d"]["all"] == pytest.approx(cider_d)  # the value of aac-metrics
    assert by_figure["people: cider_d"]["all"] == pytest.approx(people, abs=1e-3)
    assert by_figure["replies: sbert_sim"]["all"] == pytest.approx(cosine, abs=1e-3)
    assert by_figure["people: sbert_sim"]["difference_low"] > 0  # outliers lower people's agreement
    assert 0.02 < (summary["far"] + summary["close"]) / summary["captions"] < 0.06
    assert summary["far"] > summary["close"]
