"""Compare dropping a published model's encoder states before its decoder with dropping them inside its encoder.

  python scripts/real/tower.py --results tower_results      # about 20 minutes on two free cores; --limit 8 for a look

Whisper base hears the prompts of speech.py with states dropped at the input, or from one of the encoder's layers on.
Four sweeps make the transcripts. Then the encoder's CPU seconds for one clip are measured in turns. The result is a
table and a picture: the word error rate beside the time, and its difference from the same method at the input.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import speech
import torch
import whisper_base
from demo import command

from audiomarathon import load_runs
from audiomarathon.audio.decode import decode
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.registry import get_method
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.timing import Clock
from audiomarathon.models.whisper import Whisper

RATIOS = "0.5,0.8"
PLACES: Sequence[tuple[str, int | None, str]] = (
    ("input", None, "frame,merge_frame"),
    ("tower", 1, "frame,merge_frame,a_tome_like"),
    ("tower", 3, "frame,merge_frame"),
    ("tower", 5, "frame,merge_frame"),
)
DRAWS, REPEATS, SEED = 4000, 5, 42


class CpuClock(Clock):
    """A clock of this process's CPU seconds, which excludes the time of other programs."""

    def mark(self) -> float:
        """Return the CPU seconds of this process so far."""
        return time.process_time()


def settings() -> list[Method]:
    """Return every setting of the sweeps; the one without compression (base) comes first."""
    methods: list[Method] = [Base()]
    for at, layer, names in PLACES:
        for name in names.split(","):
            methods += [get_method(name, float(r), at=at, tower_layer=layer) for r in RATIOS.split(",")]
    return methods


def encoder_seconds(folder: Path, clip: Path) -> dict[str, float]:
    """Return {setting: median CPU seconds of the encoder on one clip}; settings are measured in turns."""
    torch.set_num_threads(1)
    lm = Whisper.load(folder, device="cpu", dtype="float32", attn_implementation="sdpa")
    lm.clock = CpuClock()
    inputs = lm.prepare([Prompt("", (decode(clip, lm.sampling_rate),), seed=SEED)])
    times: dict[str, list[float]] = {}
    for _turn in range(REPEATS + 1):
        for method in settings():
            done = method.generate(lm, inputs, max_new_tokens=1)
            times.setdefault(method.label, []).append(done.stages.encoder)
    return {label: statistics.median(seconds[1:]) for label, seconds in times.items()}


def rates(results: Path) -> dict[str, dict[str, Any]]:
    """Return each setting's word error rate, and its difference from the same method and ratio before the decoder.

    Intervals of 95 % are percentiles over resampled clusters, the same for all settings.
    """
    records = load_runs(results).records
    errors = records.pivot_table(index="cluster", columns="setting", values="errors", aggfunc="sum")
    words = records.pivot_table(index="cluster", columns="setting", values="words", aggfunc="sum")["base-0"]
    rng = np.random.default_rng(SEED)
    drawn = rng.integers(0, len(words), (DRAWS, len(words)))
    said = words.to_numpy()[drawn].sum(1)
    by_setting: dict[str, dict[str, Any]] = {}
    for label in errors.columns:
        setting_errors = errors[label].to_numpy()
        sums = setting_errors[drawn].sum(1) / said
        by_setting[label] = {
            "wer": setting_errors.sum() / words.sum(),
            "interval": np.percentile(sums, [2.5, 97.5]).tolist(),
        }
        at_input = "-".join([*label.split("-")[:2], "input"])
        if "-tower" in label and at_input in errors.columns:
            apart = setting_errors - errors[at_input].to_numpy()
            ends = np.percentile(apart[drawn].sum(1) / said, [2.5, 97.5]).tolist()
            by_setting[label] |= {"more_than_input": apart.sum() / words.sum(), "more_interval": ends}
    return by_setting


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw word error rate against the encoder's seconds: one line per place and method, one point per ratio."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150)
    axes = figure.add_subplot()
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for label, row in rows.items():
        if label != "base-0":
            name, ratio, place = label.split("-")
            lines.setdefault((name, place), []).append({**row, "ratio": ratio})
    base = rows["base-0"]
    colours = {"input": "#333333", "tower1": "#B34700", "tower3": "#0068A8", "tower5": "#00704F"}
    marks = {"frame": "o", "merge_frame": "s", "a_tome_like": "^"}
    for (name, place), points in sorted(lines.items()):
        seconds = [base["seconds"], *(ratio_point["seconds"] for ratio_point in points)]
        wer = [base["wer"], *(ratio_point["wer"] for ratio_point in points)]
        words = "at the input" if place == "input" else f"from encoder layer {place.removeprefix('tower')} on"
        dashed = "--" if name == "merge_frame" else ":" if name == "a_tome_like" else "-"
        axes.plot(seconds, wer, dashed, marker=marks[name], color=colours[place], label=f"{name} {words}")
        for point in points:
            axes.annotate(
                point["ratio"], (point["seconds"], point["wer"]), xytext=(4, 4), textcoords="offset points", size=7
            )
    axes.axhline(base["wer"], color="#BBBBBB", linewidth=0.8)
    axes.set(xlabel="encoder, CPU seconds a window of 30 s", ylabel="word error rate", yscale="log")
    axes.legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweeps, measure, print the table, and draw the picture; return 1 if a sweep failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("tower_results"), help="results folder (tower_results)")
    parser.add_argument("--limit", type=int, default=0, help="clips of up to 28 s; 0 = all (0)")
    parser.add_argument("-o", "--picture", type=Path, default=Path("tower_curve.png"))
    given = parser.parse_args(arguments)
    data, results = given.results / "speech", given.results / "runs"
    if whisper_base.main() or speech.main([str(data)]):
        return 1
    folder = whisper_base.whisper_base()
    task = data / "prompts.toml"
    shared = ["--model", "whisper-base", "--model-path", folder, "--data", data, "--results", results, "--no-timing"]
    for at, layer, names in PLACES:
        place = ["--at", at, *(["--tower-layer", layer] if layer is not None else [])]
        grid = ["--methods", names, "--ratios", RATIOS, "--limit", given.limit]
        if command("sweep", task, *shared, *place, *grid):
            return 1
    rows = rates(results)
    for label, seconds in encoder_seconds(folder, sorted((data / "prompts").glob("*.flac"))[0]).items():
        rows[label]["seconds"] = seconds
    base = rows["base-0"]["seconds"]
    for label, row in rows.items():
        low, high = row["interval"]
        line = f"{label:28} WER {row['wer']:.3f} [{low:.3f}, {high:.3f}]  encoder {row['seconds']:.3f} s"
        line += f" ({base / row['seconds']:.2f}×)"
        if "more_than_input" in row:
            low, high = row["more_interval"]
            line += f"  than at the input {row['more_than_input']:+.3f} [{low:+.3f}, {high:+.3f}]"
        print(line)
    (given.results / "tower.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    draw(rows, given.picture)
    print(given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
