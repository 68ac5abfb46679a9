"""Run one side of benchmark_xares.py: X-ARES' code or ours, on a task file and an encoder file that both read.

    python xares_side.py xares|audiomarathon|checkpoint ENV TASK.py ENCODER.py SEED OUT.json

Runs in X-ARES' environment too, so it imports nothing of this project at the top. Seconds are CPU seconds of the
whole process, without its imports at the start. `torchaudio` is replaced: `load` is soundfile's, and `resample` takes
equal rates only.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    """Call `work`, record its CPU seconds in `seconds[name]`, and return its result."""
    begin = time.process_time()
    result = work()
    seconds[name] = time.process_time() - begin
    return result


def bytes_in(folder: Path) -> int:
    """Return the total size of all files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def torchaudio() -> ModuleType:
    """Make a replacement for torchaudio, with the two functions that X-ARES calls."""
    import soundfile
    import torch

    def load(path: str) -> tuple[torch.Tensor, int]:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return torch.from_numpy(samples.T), rate

    def resample(audio: torch.Tensor, source_rate: int, wanted: int) -> torch.Tensor:
        if source_rate != wanted:
            raise ValueError(f"clips of {source_rate} Hz; allowed: the encoder's {wanted}")
        return audio

    module = ModuleType("torchaudio")
    module.__spec__ = ModuleSpec("torchaudio", None)  # transformers looks for it
    module.load, module.functional = load, SimpleNamespace(resample=resample)  # type: ignore[attr-defined]
    return module


def theirs(task: Path, encoder: Path, seed: int) -> dict[str, Any]:
    """Encode, train and score with X-ARES' code, like `python -m xares.run`; return seconds, scores and bytes."""
    sys.modules["torchaudio"] = torchaudio()
    from xares.task import XaresTask

    (kind,) = (
        encoder_class for name, encoder_class in runpy.run_path(str(encoder)).items() if name.endswith("Encoder")
    )
    config = runpy.run_path(str(task))["made_config"](kind().eval())
    config.seed = seed
    run, seconds = XaresTask(config), dict[str, float]()
    timed(seconds, "encode", run.make_encoded_tar)
    mlp, _ = timed(seconds, "MLP", run.run_mlp)
    if not config.do_knn:
        seconds |= {"whole run": seconds.pop("encode") + seconds["MLP"], "standard": seconds["MLP"]}
        return {"seconds": seconds, "MLP": [float(mlp)], "bytes": bytes_in(run.encoded_tar_dir)}
    knn, _ = timed(seconds, "kNN", run.run_knn)
    seconds["both, from the cache"] = seconds["MLP"] + seconds["kNN"]
    seconds["whole run"] = seconds.pop("encode") + seconds["both, from the cache"]
    return {"seconds": seconds, "MLP": [float(mlp)], "kNN": float(knn), "bytes": bytes_in(run.encoded_tar_dir)}


def ours(env: Path, task_file: Path, encoder_file: Path, seed: int = 42) -> dict[str, Any]:
    """Probe with our code, first with an empty store of embeddings, then with a full one; then time each probe alone.

    A probe that is timed alone reads the store; the hashes of the clips' audio, which are keys of the store, are
    computed before. Frame tasks go to :func:`ours_of_frames`; only this function needs the seed.
    """
    import numpy as np
    import torch

    from audiomarathon.wings.encoders.probing import published_probes as published
    from audiomarathon.wings.encoders.probing.clips import Clips
    from audiomarathon.wings.encoders.probing.encode import encode_published, hear
    from audiomarathon.wings.encoders.probing.probe_input import published_splits
    from audiomarathon.wings.encoders.probing.run import probe
    from audiomarathon.wings.encoders.probing.store import Store
    from audiomarathon.wings.encoders.registry import load_encoder
    from audiomarathon.wings.encoders.xares.framed import FramedTask
    from audiomarathon.wings.encoders.xares.tasks import named

    torch.set_num_threads(1)
    encoder, (task,), seconds = load_encoder(str(encoder_file)), named([str(task_file)]), dict[str, float]()
    if isinstance(task, FramedTask):
        return ours_of_frames(env, task, encoder, seed)
    with tempfile.TemporaryDirectory(dir=env) as name:
        cache = Path(name)

        def scores(results: str) -> list[dict[str, Any]]:
            store = Store(cache, encoder.identity)
            probed = probe(encoder, task, task.read(env), cache / results, store, protocol="as_published")
            return [result.summary for result in probed]

        mlp, knn = timed(seconds, "whole run", lambda: scores("first"))
        again = timed(seconds, "both, from the cache", lambda: scores("second"))
        if [summary["score"] for summary in again] != [mlp["score"], knn["score"]]:
            raise SystemExit("error: the cache gives different scores")
        data = task.read(env)
        heard = hear(data.clips, encoder.sampling_rate)
        places = {label: place for place, label in enumerate(data.classes)}

        def stored() -> Clips:
            store = Store(cache, encoder.identity)
            parts = [[heard_clip for heard_clip in heard if heard_clip.clip.part == part] for part in task.parts]
            items = [item for part in parts for item in encode_published(encoder, part, task.recipe, store)]
            targets = np.array([places[item.clip.labels[0]] for item in items])
            rows = np.stack([store.rows[item.row] for item in items])
            return Clips(rows, targets, np.array([item.clip.part for item in items]))

        splits, recipe = published_splits(task), task.recipe
        how = {"epochs": recipe.epochs, "batch": recipe.batch, "lr": recipe.lr}
        timed(
            seconds,
            "MLP",
            lambda: published.linear_probe(stored(), splits, seeds=published.SEEDS[:1], **how),
        )
        timed(seconds, "kNN", lambda: published.knn(stored(), splits))
        size = bytes_in(cache / "embeddings")
    return {"seconds": seconds, "MLP": mlp["seeds"], "kNN": knn["score"], "bytes": size}


def ours_of_frames(env: Path, task: Any, encoder: Any, seed: int) -> dict[str, Any]:
    """Run our copy of X-ARES' frame probe with one seed, from an empty and a full store; then our corrected probe."""
    from audiomarathon.wings.encoders.probing.run import probe
    from audiomarathon.wings.encoders.probing.store import Store

    seconds = dict[str, float]()
    with tempfile.TemporaryDirectory(dir=env) as name:
        cache = Path(name)

        def score(results: str, protocol: str) -> float:
            store, data = Store(cache, encoder.identity), task.read(env)
            (result,) = probe(encoder, task, data, cache / results, store, protocol=protocol, seeds=[seed])
            return float(result.summary["score"])

        mlp = timed(seconds, "whole run", lambda: score("first", "as_published"))
        if timed(seconds, "MLP", lambda: score("second", "as_published")) != mlp:
            raise SystemExit("error: the cache gives a different score")
        standard = timed(seconds, "standard", lambda: score("third", "standard"))
        size = bytes_in(cache / "embeddings")
    return {"seconds": seconds, "MLP": [mlp], "standard": standard, "bytes": size}


def checkpoint(env: Path, task_file: Path, encoder_file: Path) -> dict[str, Any]:
    """Score X-ARES' best frame checkpoint on the test frames that it stored, with our labels, segments and counts.

    Frames are padded batch by batch as in X-ARES, and the checkpoint's two layers run unchanged.
    """
    import io
    import tarfile

    import numpy as np
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from audiomarathon.wings.encoders.metrics.events import counts_of, f1, segments
    from audiomarathon.wings.encoders.probing.frames import activity, columns
    from audiomarathon.wings.encoders.registry import load_encoder
    from audiomarathon.wings.encoders.xares.tasks import config_in, named

    task: Any
    config, (task,), encoder = config_in(task_file), named([str(task_file)]), load_encoder(str(encoder_file))
    labels, hop = sorted(task.classes - task.unreleased), encoder.hop_size_in_ms
    (stored,) = (env / task.name / "embeddings").iterdir()
    state = torch.load(env / task.name / "checkpoints" / stored.name / "best.ckpt")
    model = torch.nn.Sequential()
    model.add_module("ln", torch.nn.LayerNorm(encoder.output_dim))
    model.add_module("fc", torch.nn.Linear(encoder.output_dim, len(labels)))
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith("criterion.")})
    (tar,) = stored.glob(config.encoded_tar_name_of_split[config.test_split])
    with tarfile.open(tar) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}
    frames, active = list[torch.Tensor](), list[torch.Tensor]()
    for name, content in members.items():
        if name.endswith(".npy"):
            frames.append(torch.from_numpy(np.load(io.BytesIO(content))))
            events = task.facts(json.loads(members[name.replace(".npy", ".json")]))
            hot = activity(events, labels, hop, len(frames[-1]), task.until, released=True)
            active.append(torch.from_numpy(hot))
    counts, size, batch = np.zeros((len(labels), 3), np.int64), columns(task.segment, hop), task.recipe.batch
    for start in range(0, len(frames), batch):
        inputs, true = (pad_sequence(each[start : start + batch], batch_first=True) for each in (frames, active))
        with torch.no_grad():
            predicted = model(inputs) > 0
        for clip in zip(predicted.numpy(), true[:, : inputs.shape[1]].numpy(), strict=True):
            counts += counts_of(*(segments(each, size) for each in clip))
    figures = f1(counts if task.average == "macro" else counts.sum(axis=0))
    return {"checkpoint": float(np.nan_to_num(figures).mean())}


def main() -> None:
    """Run one side, and write its results to a file."""
    import torch

    side, env, task, encoder, seed, out = sys.argv[1:]
    torch.optim.Adam([torch.zeros(1)])  # imports torch._dynamo, which takes a second
    if side == "xares":
        results = theirs(Path(task), Path(encoder), int(seed))
    elif side == "checkpoint":
        results = checkpoint(Path(env), Path(task), Path(encoder))
    else:
        results = ours(Path(env), Path(task), Path(encoder), int(seed))
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
