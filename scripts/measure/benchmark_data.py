"""Measure how fast raw corpora become long clips: the builder of `Segment/` against pydub and librosa.

Each side joins the same ten-second clips to clips of 150 s at 16 kHz mono. Ours is the whole builder: headers read,
clips joined, manifest, hashes, metadata. Theirs is the loop that people write: load, mix down, resample, append, write.
CPU seconds are compared, child processes included (pydub decodes anything but WAV in an ffmpeg process), because wall
seconds on a shared machine include waiting. Runs are interleaved.

The other tables: reading headers; seconds a clip from 100 to 2,000 clips; peak memory of a process that builds 2 GB.
Needs pydub (`pip install pydub`; on Python 3.13 and later also audioop-lts), and ffmpeg for pydub on FLAC.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import librosa
import numpy as np
import soundfile
from rich.console import Console
from rich.table import Table

from audiomarathon.audio.decode import probe
from audiomarathon.segment.building import build
from audiomarathon.segment.corpora.tau import TauCorpus
from audiomarathon.segment.joining import Joining

CLIP_S, JOINED_S, RATE = 10, 150, 16_000
EACH = JOINED_S // CLIP_S
#: {name: suffix, rate, channels and sample format of the source clips}.
FORMATS = {
    "WAV 16 kHz mono 16 bit (VoxCeleb)": (".wav", 16_000, 1, "PCM_16"),
    "WAV 44.1 kHz mono 16 bit (DESED)": (".wav", 44_100, 1, "PCM_16"),
    "WAV 48 kHz stereo 24 bit (TAU)": (".wav", 48_000, 2, "PCM_24"),
    "FLAC 16 kHz mono 16 bit (LibriSpeech)": (".flac", 16_000, 1, "PCM_16"),
}


def corpus(folder: Path, form: tuple[str, int, int, str], clips: int) -> list[Path]:
    """Write a corpus in TAU's layout: eight different clips, and links to them under other names; return the files."""
    suffix, rate, channels, subtype = form
    rng, paths = np.random.default_rng(0), []
    (folder / "audio").mkdir(parents=True)
    lines = ["filename\tscene_label\tidentifier\tsource_label"]
    for number in range(clips):
        name = f"audio/park-lisbon-{number // (EACH * 10)}-{number:06d}-a{suffix}"
        if number < 8:
            clock = np.arange(CLIP_S * rate) / rate
            hum = 0.2 * np.sin(2 * np.pi * (200 + 40 * number) * clock)
            noise = 0.02 * rng.standard_normal((len(clock), channels))
            soundfile.write(folder / name, hum[:, None] + noise, rate, subtype=subtype)
        else:
            os.link(paths[number % 8], folder / name)
        paths.append(folder / name)
        lines.append(f"{name}\tpark\tlisbon-{number // (EACH * 10)}\ta")
    (folder / "meta.csv").write_text("\n".join(lines) + "\n")
    return paths


def ours(folder: Path, out: Path) -> None:
    """Join the clips with this project's builder, in one job."""
    reader = TauCorpus([folder], 42)
    build(reader, Joining(JOINED_S, JOINED_S, 0, 0, RATE), out)


def with_pydub(paths: Sequence[Path], out: Path) -> None:
    """Join the clips with pydub, by appending segments as its examples do."""
    from pydub import AudioSegment

    out.mkdir()
    for number in range(len(paths) // EACH):
        joined = AudioSegment.empty()
        for path in paths[number * EACH : (number + 1) * EACH]:
            joined += AudioSegment.from_file(path).set_channels(1).set_frame_rate(RATE).set_sample_width(2)
        joined.export(out / f"{number}.wav", format="wav")


def with_librosa(paths: Sequence[Path], out: Path) -> None:
    """Join the clips with librosa: load, concatenate, write."""
    out.mkdir()
    for number in range(len(paths) // EACH):
        clips = [librosa.load(path, sr=RATE)[0] for path in paths[number * EACH : (number + 1) * EACH]]
        soundfile.write(out / f"{number}.wav", np.concatenate(clips), RATE)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call of `work`, child processes included."""

    def spent() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in both)

    start = spent()
    work()
    return spent() - start


def in_turns(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of each side over interleaved runs, after one warm-up run."""
    spent: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats + 1):
        for side, work in sides.items():
            spent[side].append(cpu_seconds(work))
    return {side: statistics.median(values[1:]) for side, values in spent.items()}


def row(title: str, hours: float, seconds: dict[str, float]) -> list[str]:
    """Return a row of a table: audio-hours per CPU second of each side, and our speed ÷ that of the others."""
    speeds = [f"{hours / value:.2f}" for value in seconds.values()]
    mine, *others = seconds.values()
    return [title, *speeds, *(f"{other / mine:.1f}x" for other in others)]


def joining_and_probing(clips: int, repeats: int) -> tuple[Table, Table]:
    """Compare the three sides on each format; return (table for joining clips, table for reading their lengths)."""
    tables = []
    for title in (f"joining {clips} clips of {CLIP_S} s to {JOINED_S} s", f"the length of {clips} clips of {CLIP_S} s"):
        tables.append(Table(title=f"{title}: audio-hours per CPU second"))
        for heading in ("format", "ours", "pydub", "librosa", "ours / pydub", "ours / librosa"):
            tables[-1].add_column(heading, justify="left" if heading == "format" else "right")
    hours = clips * CLIP_S / 3600
    for title, form in FORMATS.items():
        with tempfile.TemporaryDirectory() as name:
            spent = compared(Path(name), corpus(Path(name) / "raw", form, clips), repeats)
        for table, seconds in zip(tables, spent, strict=True):
            table.add_row(*row(title, hours, seconds))
    return tables[0], tables[1]


def compared(root: Path, paths: Sequence[Path], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return (CPU seconds of each side for joining clips, the same for reading the clips' lengths)."""
    from pydub import AudioSegment

    def fresh(work: Callable[[Path], object]) -> None:
        shutil.rmtree(root / "out", ignore_errors=True)
        work(root / "out")

    joining = {
        "ours": lambda: fresh(lambda out: ours(root / "raw", out)),
        "pydub": lambda: fresh(lambda out: with_pydub(paths, out)),
        "librosa": lambda: fresh(lambda out: with_librosa(paths, out)),
    }
    probing = {
        "ours": lambda: [probe(path).seconds for path in paths],
        "pydub": lambda: [len(AudioSegment.from_file(path)) for path in paths],
        "librosa": lambda: [librosa.get_duration(path=path) for path in paths],
    }
    return in_turns(joining, repeats), in_turns(probing, repeats)


def growth(counts: Sequence[int], repeats: int) -> Table:
    """Return a table of CPU milliseconds per source clip, for whole builds of several sizes."""
    table = Table(title="growth: whole builds of TAU-like clips")
    for heading in ("clips", "CPU s", "ms a clip"):
        table.add_column(heading, justify="right")
    for clips in counts:
        with tempfile.TemporaryDirectory() as name:
            corpus(Path(name) / "raw", FORMATS["WAV 48 kHz stereo 24 bit (TAU)"], clips)
            runs = [
                cpu_seconds(lambda run=run, name=name: ours(Path(name) / "raw", Path(name) / str(run)))
                for run in range(repeats)
            ]
            spent = statistics.median(runs)
            table.add_row(str(clips), f"{spent:.2f}", f"{1000 * spent / clips:.2f}")
    return table


def memory(gigabytes: float) -> str:
    """Return a line with the peak memory of a process that builds a corpus this large, and of one that only imports."""
    form = FORMATS["WAV 48 kHz stereo 24 bit (TAU)"]
    clips = round(gigabytes * 1e9 / (CLIP_S * form[1] * form[2] * 3))
    with tempfile.TemporaryDirectory() as name:
        corpus(Path(name) / "raw", form, clips)
        peaks = []
        for arguments in ([], [str(Path(name) / "raw"), str(Path(name) / "out")]):
            command = [sys.executable, __file__, "--child", *arguments]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peaks.append(int(done.stdout.split()[-1]) / 1e3)
    return (
        f"peak memory building {clips} clips, {gigabytes:g} GB: {peaks[1]:.0f} MB ({peaks[0]:.0f} MB after importing)"
    )


def child(arguments: Sequence[str]) -> None:
    """Run the builder if arguments are given, then print this process's peak memory in kB.

    Linux's `ru_maxrss` of a child starts at its parent's size, so the kernel's own figure for this process is used.
    """
    if arguments:
        ours(Path(arguments[0]), Path(arguments[1]))
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))


def main() -> None:
    """Read the flags, run the benchmarks, and print their tables."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=300, help="clips a format (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each side (default: %(default)s)")
    parser.add_argument("--growth", default="100,500,2000", help="numbers of clips, by commas (default: %(default)s)")
    parser.add_argument("--gigabytes", type=float, default=2, help="corpus for peak memory (default: %(default)s)")
    flags = parser.parse_args()
    try:
        import pydub  # noqa: F401
    except ImportError:
        sys.exit("this benchmark compares with pydub: pip install pydub (Python 3.13 and later: also audioop-lts)")
    console = Console(width=140)
    console.print(memory(flags.gigabytes))
    console.print(growth([int(count) for count in flags.growth.split(",")], flags.repeats))
    for table in joining_and_probing(flags.clips, flags.repeats):
        console.print(table)


if __name__ == "__main__":
    main()
