"""X-ARES 0.1.3 itself beside ours: the same made tars, the same encoder, the same scores, CPU seconds of one thread.

    python scripts/benchmark_xares.py --xares PYTHON [--quick] [--rounds 3] [--shapes esc50,commands,crops]

PYTHON is the interpreter of an environment with X-ARES (docs/benchmarks.md says how to make one). Both sides read one
`*_task.py` and one `*_encoder.py`, by turns, each in a process of its own. X-ARES has another seed each round.

Made tars: clips of 16 kHz with the pattern of their class, one of their own, and noise. Stood in for in X-ARES:
torchaudio, which is not built for our torch (`load` by soundfile; nothing is resampled). The encoder is a linear map
of framed audio, so that encoding weighs little.

Exit code 1: the sides' kNN scores differ. Times are printed, never judged.
"""

from __future__ import annotations

import argparse
import io
import json
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

SIDES = ("xares", "audiomarathon")
RATE, FRAME, BANDS = 16_000, 640, 64  # Hz, samples a frame, values a pattern
SEED = 42

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


@dataclass(frozen=True)
class Shape:
    """Size and form of a task.

    Attributes
    ----------
    parts
        Clips of each part, or of each fold.
    short
        Share of the clips that are shorter than `seconds`, down to a fifth of it.
    crop
        Seconds of X-ARES' pieces; 0 takes clips whole.
    unlike
        How strong a clip's own pattern is beside that of its class.
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

    @property
    def folds(self) -> list[int]:
        """The folds, where the parts are folds."""
        return [int(part) for part in self.parts if part.isdigit()]


_COMMANDS = {"train": 10_218, "valid": 1_360, "test": 1_367}
SHAPES = (
    Shape("esc50", "ESC-50", {str(k): 400 for k in range(1, 6)}, 50, 768, 5.0),
    Shape("commands", "Speech Commands at 1/5", _COMMANDS, 30, 1024, 1.0, batch=64, short=0.1),
    Shape("crops", "crops of 5 s", {"train": 400, "valid": 100, "test": 300}, 10, 256, 17.0, short=1.0, crop=5),
)


def make_tars(shape: Shape, folder: Path) -> None:
    """Write a tar a part, as X-ARES names them; the same shape gives the same bytes."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(SEED)
    patterns = random.standard_normal((shape.classes, BANDS))
    for part, count in shape.parts.items():
        tar = folder / (f"wds-audio-fold-{part}-000000.tar" if shape.folds else f"{part}-000000.tar")
        with tarfile.open(tar, "w") as archive:
            for place, label in enumerate(random.permutation(np.arange(count) % shape.classes)):
                short = random.random() < shape.short
                samples = int(RATE * shape.seconds * (random.uniform(0.2, 1) if short else 1))
                pattern = patterns[label] + shape.unlike * random.standard_normal(BANDS)
                repeated = np.resize(np.repeat(pattern, FRAME // BANDS), samples)
                clip = 0.03 * (repeated + random.standard_normal(samples, dtype=np.float32))
                stream = io.BytesIO()
                with wave.open(stream, "wb") as sound:
                    sound.setparams((1, 2, RATE, samples, "NONE", ""))
                    sound.writeframes((clip.clip(-0.99, 0.99) * 32767).astype("<i2").tobytes())
                key = f"part{part}-clip{place:05d}"
                _add(archive, f"{key}.wav", stream.getvalue())
                _add(archive, f"{key}.json", json.dumps({"label": int(label)}).encode())
    (folder / ".audio_tar_ready").touch()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_files(shape: Shape, root: Path) -> tuple[Path, Path]:
    """Write the task and the encoder, and return where."""
    settings: dict[str, Any] = {"name": shape.name, "env_root": str(root), "output_dim": shape.classes}
    settings |= {"batch_size_train": shape.batch, "k_fold_splits": shape.folds or None}
    settings |= {"torch_num_threads": 1, "num_encoder_workers": 0, "crop_length": shape.crop or None}
    task, encoder = root / f"{shape.name}_task.py", root / f"{shape.name}_encoder.py"
    task.write_text(TASK.replace("SETTINGS", repr(settings)))
    encoder.write_text(ENCODER.replace("DIM", str(shape.dim)))
    return task, encoder


def one_side(side: str, python: str, env: Path, files: Sequence[Path], seed: int) -> dict[str, Any]:
    """Run one side in a process of its own; return its seconds, scores and cache bytes."""
    out = env / "found.json"
    script = Path(__file__).parent / "harness" / "xares_side.py"
    line = [python, script, side, env, *files, str(seed), out]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AUDIOMARATHON_")}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {side} failed on {files[0].name}:\n{(done.stdout + done.stderr)[-3000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def beside(shape: Shape, python: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run both sides by turns; return what each found in each round."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        env = Path(name)
        make_tars(shape, env / shape.name)
        files = write_files(shape, env)
        for number in range(rounds):
            for side in sorted(SIDES, reverse=number % 2 == 0):
                interpreter = python if side == "xares" else sys.executable
                found[side].append(one_side(side, interpreter, env, files, SEED + number))
                for made in ("embeddings", "checkpoints"):  # the next round starts from nothing
                    shutil.rmtree(env / shape.name / made, ignore_errors=True)
    return found


def rows(shape: Shape, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """Return a row a case: seconds or bytes of both sides, their ratio, and the scores it gave."""
    theirs, ours = (found[side] for side in SIDES)
    scores = {"MLP": mlp_scores([one["MLP"][0] for one in theirs], ours[0]["MLP"]), "kNN": knn_scores(found)}
    lines = []
    for case in ("whole run", "both, from the cache", "MLP", "kNN"):
        pairs = [(them["seconds"][case], us["seconds"][case]) for them, us in zip(theirs, ours, strict=True)]
        them, us = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = [one / other for one, other in pairs]
        spread = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        lines.append((shape.title, case, f"{them:.2f} s", f"{us:.2f} s", spread, scores.get(case, "")))
    them, us = theirs[0]["bytes"], ours[0]["bytes"]
    return [*lines, (shape.title, "cache", f"{them / 1e6:.1f} MB", f"{us / 1e6:.1f} MB", f"{them / us:.0f}", "")]


def mlp_scores(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return mean ± standard deviation of both sides, and Welch's t."""
    told = [
        f"{statistics.mean(each):.4f} ± {statistics.stdev(each) if len(each) > 1 else 0:.4f} ({len(each)})"
        for each in (theirs, ours)
    ]
    if min(len(theirs), len(ours)) < 2:
        return " · ".join(told)
    welch = ttest_ind(theirs, ours, equal_var=False)
    return f"{' · '.join(told)}; t = {welch.statistic:.2f}, p = {welch.pvalue:.2f}"


def knn_scores(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the kNN score, or all that there are."""
    all_of = {side: sorted({round(one["kNN"], 9) for one in found[side]}) for side in SIDES}
    theirs, ours = (", ".join(f"{score:.4f}" for score in all_of[side]) for side in SIDES)
    equal = len({*all_of["xares"], *all_of["audiomarathon"]}) == 1
    return f"{theirs} · {ours}, equal" if equal else f"{theirs} · {ours}, **not equal**"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xares", metavar="PYTHON", required=True, help="interpreter of X-ARES' environment")
    parser.add_argument("--quick", action="store_true", help="a tenth of the clips, one round: about a minute")
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
            quick = replace(shape, parts={part: count // 10 for part, count in shape.parts.items()})
            found = beside(quick, given.xares, 1) if given.quick else beside(shape, given.xares, given.rounds)
            for row in rows(shape, found):
                print(f"| {' | '.join(row)} |", flush=True)
            differ |= "not equal" in knn_scores(found)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
