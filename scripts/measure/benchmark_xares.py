"""Compare X-ARES 0.1.3 with ours: the same synthetic tars, encoder and scores, in CPU seconds of one thread.

    python scripts/measure/benchmark_xares.py --xares PYTHON [--quick] [--rounds 3] [--shapes esc50,desed,...]

PYTHON is the interpreter of an environment with X-ARES (docs/benchmarks.md says how to make one). Both sides read one
`*_task.py` and one `*_encoder.py`, alternating, each in a separate process. X-ARES has another seed each round.

The tars hold synthetic clips of 16 kHz: the pattern of their class, or of each event while it lasts, a pattern for each
clip, and noise. `desed` and `maestro` have the released tasks' names, records, epochs and labels. torchaudio is not
built for our torch, so X-ARES gets a replacement (`load` uses soundfile; nothing is resampled). The encoder is a linear
map of framed audio, so that encoding costs little.

The exit code is 1 if the sides' kNN scores differ, or if X-ARES' frame score and our score of its checkpoint differ by
more than 1e-8. Times do not change the exit code.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_ind

from audiomarathon.wings.encoders.xares.framed import FramedTask
from audiomarathon.wings.encoders.xares.tasks import config_of, named

SIDES = ("xares", "audiomarathon")
RATE, FRAME, BANDS = 16_000, 640, 64  # Hz, samples per frame, values per pattern
SEED = 42
SAME = 1e-8  # two F1 that differ by at most this are equal

ENCODER = f'''"""A linear map of framed audio."""
import torch


class FramedEncoder(torch.nn.Module):
    sampling_rate, output_dim, hop_size_in_ms = {RATE}, DIM, {1000 * FRAME / RATE}

    def __init__(self):
        super().__init__()
        weight = torch.randn({BANDS}, DIM, generator=torch.Generator().manual_seed(0))
        self.weight = torch.nn.Parameter(weight / {BANDS}**0.5)

    def forward(self, audio):
        frames = audio[:, : audio.shape[1] // {FRAME} * {FRAME}].unflatten(1, (-1, {BANDS}, {FRAME // BANDS}))
        return frames.mean(-1) @ self.weight
'''

TASK = '''"""The task of both sides."""
from xares.task import TaskConfig


def made_config(encoder):
    return TaskConfig(encoder=encoder, label_processor=lambda meta: meta["label"], **SETTINGS)
'''

FRAME_TASK = '''"""The task of both sides: a released one of frames."""
from math import ceil

import torch
from xares.task import TaskConfig

(START, END, LABEL), LABELS, SEGMENT, UNTIL, POSITIVE, SETTINGS = FACTS
PLACES = {label: place for place, label in enumerate(LABELS)}


def made_config(encoder):
    hop = encoder.hop_size_in_ms if encoder else 0

    def frame(seconds):
        return ceil(seconds / (hop / 1000))

    def active(events):
        found = torch.zeros(len(LABELS), frame(UNTIL or max(event[END] for event in events)))
        for event in events:
            for label in str(event[LABEL]).split(","):
                found[PLACES[label], frame(event[START]) : frame(event[END])] = 1
        return found

    loss = "BCEWithLogitsLoss" if POSITIVE == 1 else torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(POSITIVE))
    scoring = {"hop_size_in_ms": hop, "segment_length_in_s": SEGMENT}
    return TaskConfig(encoder=encoder, label_processor=active, criterion=loss, metric_args=scoring, **SETTINGS)
'''


@dataclass(frozen=True)
class Shape:
    """Size and form of a synthetic task, on which both sides are timed.

    Attributes
    ----------
    parts
        Number of clips of each part, or of each fold.
    short
        Share of the clips that are shorter than `seconds`; they last from `least` × `seconds` to `seconds`.
    crop
        Seconds of the crops that X-ARES cuts clips into; 0 takes clips whole.
    unlike
        Strength of a clip's individual pattern relative to that of its class.
    events
        Number of events per second; 0 for clips of one class. `lasts` is the range of their lengths in seconds.
    epochs
        Training epochs; 0 for the task's default.
    """

    name: str
    title: str
    parts: Mapping[str, int]
    classes: int
    dim: int
    seconds: float
    batch: int = 32
    short: float = 0.0
    crop: int = 0
    unlike: float = 2.0
    least: float = 0.2
    events: float = 0.0
    lasts: tuple[float, float] = (0.0, 0.0)
    epochs: int = 0

    @property
    def folds(self) -> list[int]:
        """The numbers of the folds; [] if the parts are not folds."""
        return [int(part) for part in self.parts if part.isdigit()]

    @property
    def task(self) -> FramedTask | None:
        """X-ARES' own task of this name, if probes label its frames; else None."""
        (task,) = named([self.name]) if self.events else (None,)
        return task if isinstance(task, FramedTask) else None

    @property
    def labels(self) -> list[str]:
        """The labels of frames for which X-ARES has a class."""
        return sorted(frozenset(self.task.classes) - self.task.unreleased) if self.task else []


_DESED = {"wds-audio-train": 640, "wds-audio-eval": 160}
_MAESTRO = {"maestro_train": 30, "maestro_valid": 6, "maestro_test": 6}
_COMMANDS = {"train": 10_218, "valid": 1_360, "test": 1_367}
SHAPES = (
    Shape("esc50", "ESC-50", {str(k): 400 for k in range(1, 6)}, 50, 768, 5.0),
    Shape("commands", "Speech Commands at 1/5", _COMMANDS, 30, 1024, 1.0, batch=64, short=0.1),
    Shape("crops", "crops of 5 s", {"train": 400, "valid": 100, "test": 300}, 10, 256, 17.0, short=1.0, crop=5),
    Shape("desed", "DESED", _DESED, 10, 768, 10.0, short=0.1, events=0.3, lasts=(0.25, 4.0)),
    Shape("maestro", "MAESTRO", _MAESTRO, 87, 768, 120.0, short=1.0, least=2 / 3, events=8.0, lasts=(0.1, 1.0)),
)

_RELEASED = (
    "formal_name", "zenodo_id", "task_type", "train_split", "valid_split", "test_split", "batch_size_train",
    "batch_size_encode", "learning_rate", "epochs", "do_knn", "metric",
)  # fmt: skip


def make_tars(shape: Shape, folder: Path) -> None:
    """Write one tar of clips per part, named as in X-ARES; the same shape gives the same bytes."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(SEED)
    patterns = random.standard_normal((shape.classes, BANDS))
    for part, count in shape.parts.items():
        tar = folder / (f"wds-audio-fold-{part}-000000.tar" if shape.folds else f"{part}-000000.tar")
        with tarfile.open(tar, "w") as archive:
            for place, label in enumerate(random.permutation(np.arange(count) % shape.classes)):
                short = random.random() < shape.short
                samples = int(RATE * shape.seconds * (random.uniform(shape.least, 1) if short else 1))
                heard = np.tile(shape.unlike * random.standard_normal(BANDS), (math.ceil(samples / FRAME), 1))
                events = drawn(random, shape, samples / RATE, int(label))
                for start, end, which in events:
                    heard[math.ceil(start * RATE / FRAME) : math.ceil(end * RATE / FRAME)] += patterns[which]
                repeated = np.repeat(heard, FRAME // BANDS, axis=1).ravel()[:samples]
                clip = 0.03 * (repeated + random.standard_normal(samples, dtype=np.float32))
                stream = io.BytesIO()
                with wave.open(stream, "wb") as sound:
                    sound.setparams((1, 2, RATE, samples, "NONE", ""))
                    sound.writeframes((clip.clip(-0.99, 0.99) * 32767).astype("<i2").tobytes())
                key = f"part{part}-clip{place:05d}"
                _add(archive, f"{key}.wav", stream.getvalue())
                _add(archive, f"{key}.json", json.dumps(meta_of(shape, events)).encode())
    (folder / ".audio_tar_ready").touch()


def drawn(random: np.random.Generator, shape: Shape, seconds: float, label: int) -> list[tuple[float, float, int]]:
    """Draw a clip's events; return (start, end, class) of each, in seconds.

    The first event has the clip's class; without events, it spans the clip.
    """
    if not shape.events:
        return [(0.0, seconds, label)]
    many = max(1, random.poisson(shape.events * seconds))
    lasts = random.uniform(*shape.lasts, many).clip(max=seconds)
    begins = random.uniform(0, seconds - lasts)
    classes = [label, *random.integers(shape.classes, size=many - 1).tolist()]
    return [*zip(begins.round(3).tolist(), (begins + lasts).round(3).tolist(), classes, strict=True)]


def meta_of(shape: Shape, events: Sequence[tuple[float, float, int]]) -> Any:
    """Return a clip's JSON content: its label, or its events."""
    if not shape.task:
        return {"label": events[0][2]}
    names = [int(label) if label.isdigit() else label for label in shape.labels]
    return [dict(zip(shape.task.fields, (start, end, names[at]), strict=True)) for start, end, at in events]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_files(shape: Shape, root: Path) -> tuple[Path, Path]:
    """Write the task file and the encoder file that both sides read; return their paths."""
    settings: dict[str, Any] = {"name": shape.name, "env_root": str(root), "output_dim": shape.classes}
    settings |= {"torch_num_threads": 1, "num_encoder_workers": 0}
    task, encoder = root / f"{shape.name}_task.py", root / f"{shape.name}_encoder.py"
    if framed := shape.task:
        released = config_of(shape.name)
        settings |= {name: getattr(released, name) for name in _RELEASED}
    else:
        settings |= {"batch_size_train": shape.batch, "k_fold_splits": shape.folds or None}
        settings |= {"crop_length": shape.crop or None}
    if shape.epochs:
        settings |= {"epochs": shape.epochs}
    if framed:
        facts = (framed.fields, shape.labels, framed.segment, framed.until, framed.pos_weight, settings)
        task.write_text(FRAME_TASK.replace("FACTS", repr(facts)))
    else:
        task.write_text(TASK.replace("SETTINGS", repr(settings)))
    encoder.write_text(ENCODER.replace("DIM", str(shape.dim)))
    return task, encoder


def one_side(side: str, python: str, env: Path, files: Sequence[Path], seed: int) -> dict[str, Any]:
    """Run one side in a separate process; return its seconds, its scores and the bytes of its cache."""
    out = env / "found.json"
    script = Path(__file__).parent / "harness" / "xares_side.py"
    line = [python, script, side, env, *files, str(seed), out]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AUDIOMARATHON_")}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {side} failed on {files[0].name}:\n{(done.stdout + done.stderr)[-3000:]}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def beside(shape: Shape, python: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run both sides alternately; return {side: results of each round}."""
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        env = Path(name)
        make_tars(shape, env / shape.name)
        files = write_files(shape, env)
        for number in range(rounds):
            for side in sorted(SIDES, reverse=number % 2 == 0):
                interpreter = python if side == "xares" else sys.executable
                results[side].append(one_side(side, interpreter, env, files, SEED + number))
                if shape.task and side == "xares":
                    results[side][-1] |= one_side("checkpoint", sys.executable, env, files, SEED + number)
                for made in ("embeddings", "checkpoints"):  # the next round starts from nothing
                    shutil.rmtree(env / shape.name / made, ignore_errors=True)
    return results


def rows(shape: Shape, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """Return the table's rows for one shape: seconds or bytes of both sides, their ratio, and the scores."""
    theirs, ours = (results[side] for side in SIDES)
    seeds = [score for result in (ours if shape.task else ours[:1]) for score in result["MLP"]]
    scores = {"MLP": mlp_scores([result["MLP"][0] for result in theirs], seeds)}
    if shape.task:
        scores["standard"] = f"– · {ours[0]['standard']:.4f}"
    else:
        scores["kNN"] = knn_scores(results)
    cases = ("whole run", "MLP", "standard") if shape.task else ("whole run", "both, from the cache", "MLP", "kNN")
    lines = []
    for case in cases:
        pairs = [(them["seconds"][case], us["seconds"][case]) for them, us in zip(theirs, ours, strict=True)]
        them, us = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = [their_seconds / other for their_seconds, other in pairs]
        spread = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        lines.append((shape.title, case, f"{them:.2f} s", f"{us:.2f} s", spread, scores.get(case, "")))
    if shape.task:
        lines.append((shape.title, "X-ARES' checkpoint", "", "", "", checkpoint_scores(theirs)))
    them, us = theirs[0]["bytes"], ours[0]["bytes"]
    return [*lines, (shape.title, "cache", f"{them / 1e6:.1f} MB", f"{us / 1e6:.1f} MB", f"{them / us:.0f}", "")]


def mlp_scores(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return the text of a table cell: mean ± standard deviation of both sides' MLP scores, and Welch's t-test."""
    told = [
        f"{statistics.mean(each):.4f} ± {statistics.stdev(each) if len(each) > 1 else 0:.4f} ({len(each)})"
        for each in (theirs, ours)
    ]
    if min(len(theirs), len(ours)) < 2:
        return " · ".join(told)
    welch = ttest_ind(theirs, ours, equal_var=False)
    return f"{' · '.join(told)}; t = {welch.statistic:.2f}, p = {welch.pvalue:.2f}"


def knn_scores(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the text of a table cell: both sides' kNN scores, and whether they are equal."""
    all_of = {side: sorted({round(result["kNN"], 9) for result in results[side]}) for side in SIDES}
    theirs, ours = (", ".join(f"{score:.4f}" for score in all_of[side]) for side in SIDES)
    equal = len({*all_of["xares"], *all_of["audiomarathon"]}) == 1
    return f"{theirs} · {ours}, equal" if equal else f"{theirs} · {ours}, **not equal**"


def checkpoint_scores(theirs: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a table cell: X-ARES' frame scores, ours of its checkpoints, and the largest difference."""
    pairs = [(result["MLP"][0], result["checkpoint"]) for result in theirs]
    most = max(abs(them - us) for them, us in pairs)
    told = " · ".join(", ".join(f"{score:.4f}" for score in each) for each in zip(*pairs, strict=True))
    return f"{told}, {'equal' if most <= SAME else '**not equal**'} ({most:.0e})"


def main() -> int:
    """Run the benchmark and print its table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xares", metavar="PYTHON", required=True, help="interpreter of X-ARES' environment")
    parser.add_argument("--quick", action="store_true", help="a tenth of the clips, 5 epochs, one round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both sides (default 3)")
    names = ",".join(shape.name for shape in SHAPES)
    parser.add_argument("--shapes", default=names, help=f"joined by commas (default {names})")
    given = parser.parse_args()
    if unknown := {*given.shapes.split(",")} - {*names.split(",")}:
        parser.error(f"unknown shape {min(unknown)!r}; allowed: {names}")
    print("| shape | case | X-ARES 0.1.3 | ours | X-ARES ÷ ours | scores: X-ARES · ours |\n|---|---|---|---|---|---|")
    differ = False
    for shape in SHAPES:
        if shape.name in given.shapes.split(","):
            fewer = {part: max(2, count // 10) for part, count in shape.parts.items()}
            quick = replace(shape, parts=fewer, epochs=5)
            results = beside(quick, given.xares, 1) if given.quick else beside(shape, given.xares, given.rounds)
            for row in rows(shape, results):
                print(f"| {' | '.join(row)} |", flush=True)
                differ |= "not equal" in row[-1]
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
