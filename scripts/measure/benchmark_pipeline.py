"""Measure how fast clips become features: our pipeline against `librosa.load` and the feature extractor in sequence.

Both sides decode 5-minute clips of 44.1 kHz stereo (MP3, FLAC, WAV; written by this script into a temporary folder),
resample to 16 kHz mono and extract Whisper's 128-bin log-mel features, and both yield the same bits, which is checked.
Ours works as in throughput mode: whole clips in a pool of threads, one torch thread each, because decoding, resampling
and the extractor's torch operations all release the interpreter lock. Runs are interleaved (ours, theirs, ours, theirs,
…), so that a drifting machine slows both alike.

The second table is the harness overhead in timed mode: the share of the evaluation loop's wall time outside the
recorded stages (load, preprocess, encoder, LLM prefill, decode), on the embedded model and the mini benchmark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import librosa
import numpy as np
import soundfile
import torch
from rich.console import Console
from rich.table import Table
from transformers import WhisperFeatureExtractor

from audiomarathon.audio.decode import decode

SOURCE_RATE = 44_100
MODEL_RATE = 16_000
FORMATS = ("mp3", "flac", "wav")

Features = np.ndarray
Extract = Callable[[np.ndarray], Features]


@dataclass(frozen=True)
class Comparison:
    """The seconds that our pipeline and librosa took on one audio format, one value per repeat.

    Attributes
    ----------
    ours, theirs
        From all clips to features.
    our_decoding, their_decoding
        From one clip to 16 kHz mono, in one thread.
    features
        Extracting one clip's features, in one torch thread.
    """

    audio_seconds: float
    ours: list[float]
    theirs: list[float]
    our_decoding: list[float]
    their_decoding: list[float]
    features: list[float]

    @property
    def ratio(self) -> float:
        """How many times as fast our side is: the median over pairs of neighbouring runs."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True))


def write_clips(folder: Path, ending: str, *, seconds: float, clips: int) -> list[Path]:
    """Write one clip of chords and swelling noise, and copies of it; return the files."""
    rng = np.random.default_rng(42)
    first = folder / f"0.{ending}"
    with soundfile.SoundFile(first, "w", SOURCE_RATE, 2) as file:
        for second in range(int(seconds)):
            clock = second + np.arange(SOURCE_RATE) / SOURCE_RATE
            chord = sum(np.sin(2 * np.pi * hertz * clock) for hertz in rng.uniform(100, 2_000, 3))
            noise = rng.standard_normal((SOURCE_RATE, 2)) * (0.5 + 0.5 * np.sin(clock))[:, None]
            file.write(0.1 * chord[:, None] + 0.03 * noise)
    return [first, *(Path(shutil.copy(first, folder / f"{number}.{ending}")) for number in range(1, clips))]


def feature_extractor() -> Extract:
    """Return a function that extracts Qwen2.5-Omni's features from a clip of any length."""
    extractor = WhisperFeatureExtractor(feature_size=128)

    def extract(samples: np.ndarray) -> Features:
        return extractor(samples, sampling_rate=MODEL_RATE, padding=False, truncation=False, return_tensors="np")[
            "input_features"
        ]

    return extract


def ours(paths: Sequence[Path], extract: Extract, workers: int) -> list[Features]:
    """Decode clips and extract their features in a pool of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda path: extract(decode(path, MODEL_RATE)), paths))
    finally:
        torch.set_num_threads(threads)


def theirs(paths: Iterable[Path], extract: Extract) -> list[Features]:
    """Load each clip with librosa and extract its features, one clip after another, with torch's default threads."""
    return [extract(librosa.load(path, sr=MODEL_RATE)[0]) for path in paths]


def compare(paths: Sequence[Path], *, seconds: float, repeats: int, workers: int) -> Comparison:
    """Time both sides, after a warm-up in which their features are compared bit by bit."""
    extract = feature_extractor()
    for features, other in zip(ours(paths[:2], extract, workers), theirs(paths[:2], extract), strict=True):
        np.testing.assert_array_equal(features, other)
    result = Comparison(seconds * len(paths), [], [], [], [], [])
    for _ in range(repeats):
        result.ours.append(timed(lambda: ours(paths, extract, workers)))
        result.theirs.append(timed(lambda: theirs(paths, extract)))
        result.our_decoding.append(timed(lambda: decode(paths[0], MODEL_RATE)))
        result.their_decoding.append(timed(lambda: librosa.load(paths[0], sr=MODEL_RATE)))
        samples = decode(paths[0], MODEL_RATE)
        result.features.append(timed(lambda samples=samples: extract(samples)))
    return result


def timed(work: Callable[[], object]) -> float:
    """Return the wall seconds of one call of `work`."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def audio_table(results: dict[str, Comparison], *, workers: int) -> Table:
    """Return a table of medians per format: all clips on both sides, our speed, and the parts of one clip's time."""
    table = Table(title=f"audio to features, {workers} threads, medians")
    for heading in (
        "format",
        "ours s",
        "theirs s",
        "ratio",
        "ours audio s/s",
        "decode ours s",
        "librosa s",
        "features s",
    ):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for ending, result in results.items():
        both = (statistics.median(result.ours), statistics.median(result.theirs))
        single = map(statistics.median, (result.our_decoding, result.their_decoding, result.features))
        table.add_row(
            ending.upper(),
            *(f"{value:.2f}" for value in both),
            f"{result.ratio:.2f} x",
            f"{result.audio_seconds / both[0]:.0f}",
            *(f"{value:.3f}" for value in single),
        )
    return table


def benchmark_audio(*, seconds: float, clips: int, repeats: int, workers: int) -> dict[str, Comparison]:
    """Write clips of each format to a temporary folder and compare both sides on them; return {format: comparison}."""
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for ending in FORMATS:
            folder = Path(name) / ending
            folder.mkdir()
            paths = write_clips(folder, ending, seconds=seconds, clips=clips)
            results[ending] = compare(paths, seconds=seconds, repeats=repeats, workers=workers)
    return results


def benchmark_overhead(*, repeats: int) -> list[tuple[float, float]]:
    """Return (the evaluation loop's wall seconds, the sum of its recorded stages), one pair per repeat."""
    from audiomarathon.benchmarks import get_task
    from audiomarathon.compression.method import Base
    from audiomarathon.embedded.mini_benchmark import mini_benchmark
    from audiomarathon.engine.batches import Plan
    from audiomarathon.engine.engine import open_local
    from audiomarathon.runs.folder import Job, RunFolder
    from audiomarathon.settings import own_settings

    task = get_task("tau")
    samples = task.load(task.find(mini_benchmark())).samples
    engine = open_local("embedded", own_settings(device="cpu"))
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        for repeat in range(repeats + 1):
            with RunFolder(Path(name) / str(repeat), {}) as folder:
                plan = Plan(task, samples, task.max_new_tokens, warm_up=repeat == 0)
                job = Job(Base(), folder)
                wall = timed(lambda plan=plan, job=job: engine.evaluate(plan, [job], progress=False))
                stages = [record["time"] for record in folder.records.values()]
            if repeat:  # the first is the warm-up
                kept = ("load", "preprocess", "encoder", "llm_prefill", "decode")
                pairs.append((wall, sum(times[stage] for times in stages for stage in kept)))
    return pairs


def overhead_table(pairs: Sequence[tuple[float, float]]) -> Table:
    """Return a table of the share of wall time outside the recorded stages: the median over repeats, and the range."""
    table = Table(title="harness overhead in timed mode (embedded model, tau of the mini benchmark)")
    for heading in ("wall s", "stages s", "overhead", "lowest", "highest"):
        table.add_column(heading, justify="right")
    shares = [1 - stages / wall for wall, stages in pairs]
    wall, stages = (statistics.median(values) for values in zip(*pairs, strict=True))
    shown = (statistics.median(shares), min(shares), max(shares))
    table.add_row(f"{wall:.2f}", f"{stages:.2f}", *(f"{share:.2%}" for share in shown))
    return table


def main() -> None:
    """Read the flags, run the benchmarks, and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=300, help="length of a clip (default: %(default)s)")
    parser.add_argument("--clips", type=int, default=4, help="clips a format (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="our threads (default: %(default)s, all cores)"
    )
    flags = parser.parse_args()
    results = benchmark_audio(seconds=flags.seconds, clips=flags.clips, repeats=flags.repeats, workers=flags.workers)
    Console().print(audio_table(results, workers=flags.workers))
    Console().print(overhead_table(benchmark_overhead(repeats=flags.repeats)))


if __name__ == "__main__":
    main()
