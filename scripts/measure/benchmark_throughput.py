"""Measure samples a second in batches on random-weight models: the gain of pruning for a user with a million clips.

  python scripts/measure/benchmark_throughput.py --config qwen2.5-omni-7b --device cuda
  python scripts/measure/benchmark_throughput.py --config scaled --durations 10 --batches 1,2,4 --new-tokens 8

Every setting runs with growing batches until one does not fit into memory. Seconds are those of tower, LLM prefill and
decode of one call, after an uncounted call of the same shape; clips are decoded and prepared before. `best` compares
each setting's fastest batch with base's fastest.

Three ideals are shown beside it, each base ÷ setting. FLOPs: of tower and LLM prefill for one sample. Bytes: those that
a decode step of this batch reads (weights and caches). Capacity: bytes of one sample's cache, so the gain in the number
of samples that fit beside the weights.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from benchmark_efficiency import at_least, joined
from efficiency.random_models import SIZES, random_model
from efficiency.stages import TEXT, forced, noise_of
from rich import box
from rich.console import Console
from rich.table import Table

from audiomarathon.cli.output import reporting_errors
from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import get_method
from audiomarathon.costs.cost import Cost, Drops
from audiomarathon.costs.flops import count_cost, drops_of
from audiomarathon.engine.out_of_memory import free_memory, is_out_of_memory
from audiomarathon.engine.setup import find_hardware
from audiomarathon.errors import ANY_ERROR
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Prompt
from audiomarathon.settings import RunSettings

METHODS = (
    get_method("base"),
    get_method("frame", 0.5, 2),
    get_method("frame", 0.9, 2),
    get_method("frame", 0.9, at="input"),
    get_method("snapkv", 0.9),
)


@dataclass(frozen=True)
class Row:
    """One setting with one batch size: a call's seconds per stage, samples a second, and the ideals (base ÷ setting).

    Base is the run without compression.
    """

    seconds: float
    setting: str
    batch: int
    encoder_s: float
    llm_prefill_s: float
    decode_s: float
    samples_per_second: float
    peak_memory_bytes: int | None
    kv_bytes: int
    ideal_flops: float | None = None
    ideal_bytes: float | None = None
    ideal_capacity: float | None = None


def measure(
    lm: AudioLM, cost: Cost, seconds: float, method: Method, batches: Sequence[int], new_tokens: int, repeats: int
) -> Iterator[Row]:
    """Measure one setting with growing batch sizes, until one does not fit into memory."""
    clip, drops, layers = noise_of(round(seconds * 25)), drops_of(method), len(cost.flops_per_token_per_layer)
    for size in batches:
        try:
            inputs = lm.prepare([Prompt(TEXT, (clip,), seed=row) for row in range(size)])
            forced(lm, inputs, method, 2)
            generations = [forced(lm, inputs, method, new_tokens) for _ in range(repeats)]
        except ANY_ERROR as error:
            if not is_out_of_memory(error):
                raise
            del error
            free_memory()
            return
        each = [statistics.median(stage) for stage in zip(*(
            (call.stages.encoder, call.stages.llm_prefill, call.stages.decode) for call in generations
        ), strict=True)]  # fmt: skip
        flops = None
        if drops is not None and cost.encoder_flops_per_second is not None:
            prompt, audio, encoder = inputs.prompt_tokens[0], inputs.audio_tokens[0], cost.encoder(seconds)
            whole, reduced = (
                encoder + cost.llm_prefill(drop.tokens(layers, prompt, audio)) for drop in (Drops(), drops)
            )
            flops = whole / reduced
        peak = max((generation.peak_memory_bytes or 0 for generation in generations), default=0) or None
        yield Row(seconds, method.label, size, *each, size / sum(each), peak, generations[0].kv_bytes // size, flops)


def beside_base(rows: Sequence[Row], cost: Cost) -> list[Row]:
    """Return the rows with the ideals that need the cache of base (the run without compression)."""
    base = {row.seconds: row.kv_bytes for row in rows if row.setting == METHODS[0].label}
    filled = []
    for row in rows:
        steps = [cost.step_bytes(kv, row.batch) for kv in (base[row.seconds], row.kv_bytes)]
        ideals = {"ideal_bytes": steps[0] / steps[1], "ideal_capacity": base[row.seconds] / row.kv_bytes}
        filled.append(Row(**{**asdict(row), **ideals}))
    return filled


def best(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return {duration and setting: its fastest batch, with its speed ÷ that of base's fastest batch}."""
    best_rows: dict[str, dict[str, float]] = {}
    for row in rows:
        key = f"{row.seconds:g} s {row.setting}"
        if row.samples_per_second > best_rows.get(key, {}).get("samples_per_second", 0.0):
            best_rows[key] = {"batch": row.batch, "samples_per_second": row.samples_per_second}
    for key, best_row in best_rows.items():
        seconds = key.partition(" s ")[0]
        best_row["against_base"] = (
            best_row["samples_per_second"] / best_rows[f"{seconds} s {METHODS[0].label}"]["samples_per_second"]
        )
    return best_rows


def table(rows: Sequence[Row]) -> Table:
    """Return the measured rows as a readable table."""
    shown = Table(box=box.SIMPLE_HEAD)
    for heading in ("s", "setting", "batch", "samples / s", "tower s", "LLM prefill s", "decode s", "peak GB",
                    "ideal: FLOPs", "bytes", "capacity"):  # fmt: skip
        shown.add_column(heading, justify="left" if heading == "setting" else "right")
    for row in rows:
        ideals = ("–" if x is None else f"{x:.2f}×" for x in (row.ideal_flops, row.ideal_bytes, row.ideal_capacity))
        shown.add_row(
            f"{row.seconds:g}", row.setting, str(row.batch), f"{row.samples_per_second:.3g}", f"{row.encoder_s:.3f}",
            f"{row.llm_prefill_s:.3f}", f"{row.decode_s:.3f}",
            "–" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 1e9:.1f}", *ideals,
        )  # fmt: skip
    return shown


@reporting_errors
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every duration and setting, print the table, and write all figures to the file `--output`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=SIZES, default="qwen2.5-omni-7b")
    parser.add_argument("--durations", type=joined(at_least(1, float)), default=[90.0, 300.0], help="[90,300]")
    parser.add_argument("--batches", type=joined(at_least(1)), default=[1, 2, 4, 8, 16, 32, 64], help="[1,2,4,…,64]")
    parser.add_argument("--new-tokens", type=at_least(2), default=16, help="tokens of each reply [%(default)s]")
    parser.add_argument("--repeats", type=at_least(1), default=3)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N [%(default)s]")
    parser.add_argument("--dtype", default="auto", help="[bfloat16 on a GPU, float32 on a CPU]")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark_throughput.json"))
    flags = parser.parse_args(arguments)
    if not flags.output.parent.is_dir():
        parser.error(f"--output {flags.output}: there is no folder {flags.output.parent}")
    transformers.logging.set_verbosity_error()
    hardware = find_hardware(RunSettings.read({}, device=flags.device, dtype=flags.dtype))
    lm = random_model(flags.config, hardware.device, hardware.dtype)
    cost, rows, console = count_cost(lm), list[Row](), Console()
    for seconds in flags.durations:
        for method in METHODS:
            rows += measure(lm, cost, seconds, method, flags.batches, flags.new_tokens, flags.repeats)
    if missing := {row.seconds for row in rows} - {row.seconds for row in rows if row.setting == METHODS[0].label}:
        rows = [row for row in rows if row.seconds not in missing]  # base fits in no batch: nothing to compare with
    rows = beside_base(rows, cost)
    console.print(table(rows))
    for key, row in best(rows).items():
        console.print(f"best at {key}: {row['samples_per_second']:.3g} a second in batches of {row['batch']:.0f}, "
                      f"{row['against_base']:.2f}× base")  # fmt: skip
    facts = {
        "config": flags.config, "device": hardware.device, "name": hardware.name, "dtype": hardware.dtype,
        "torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version(),
        "new_tokens": flags.new_tokens, "rows": [asdict(row) for row in rows], "best": best(rows),
    }  # fmt: skip
    flags.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
