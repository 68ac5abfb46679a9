"""Measure what methods save on random-weight models of any size: encoder, LLM prefill, decode, memory, and the ideal.

  python scripts/measure/benchmark_efficiency.py --config scaled --durations 30,90 --methods fast_v,snapkv --ratios 0.5
  python scripts/measure/benchmark_efficiency.py --config qwen2.5-omni-3b --device cuda --dtype bfloat16
  python scripts/measure/benchmark_efficiency.py --config qwen2.5-omni-7b --device cuda --durations 90,300 \
      --batches 1,16 --methods snapkv,ada_snapkv --ratios 0.5,0.9 --no-overhead      # what presses save in decode

Every setting is measured next to base, --repeats times, in rotating order. Speed-ups are medians over repeats of base ÷
setting. Each is compared with two yardsticks: the speed-up that counted FLOPs promise (`ideal`), and a control: the
same model without dropping, on a prompt that really is as short as the pruned prompt, counted for the layers after the
drop. A loss against the ideal but not against the control is due to the hardware; the rest is due to this project. The
ideal of decode is the bytes that a step of base reads (weights and cache) ÷ those of the setting. `÷ bytes` is a step's
time ÷ the time in which the device copies as many bytes; its minimum is 1. --decode is the setting DECODE.

  python scripts/measure/benchmark_efficiency.py --durations 30 --methods frame,merge_adjacent --at tower --cpu-time

With --at tower, the audio tower's speed-up stands beside its own ideal from FLOPs.

`overhead` is the cost of our code at the longest duration: the time of choosing and gathering (as share of base
prefill), and decode after one dropped audio token against the control, in pairs. benchmark_sweep.py measures what a
sweep saves over separate runs.

--prefill-chunk N measures each setting once more at each duration: peak memory and time of prefill in chunks of N
tokens ÷ those with whole prompts. On a CPU, the bytes of live tensors are counted, and the weights added.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from efficiency.chunks import chunked_against_whole
from efficiency.overhead import overheads
from efficiency.random_models import SIZES, random_model
from efficiency.stages import CpuTimeClock, Row, bandwidth, measure
from rich import box
from rich.console import Console
from rich.table import Table

from audiomarathon.cli.output import reporting_errors
from audiomarathon.compression.method import Base
from audiomarathon.compression.registry import get_method
from audiomarathon.costs.flops import count_cost
from audiomarathon.engine.setup import find_hardware
from audiomarathon.settings import ATTENTION, PLACES, RunSettings


def table(rows: Sequence[Row], rate: float) -> Table:
    """Return the measured rows as a readable table; `rate` is the device's memory bandwidth in bytes a second."""
    shown = Table(box=box.SIMPLE_HEAD)
    headings = (
        "s",
        "batch",
        "setting",
        "audio tokens",
        "KV MB",
        "peak GB",
        "encoder s",
        "LLM prefill s",
        "speed-up",
        "ideal",
    )
    for heading in (
        *headings,
        "control",
        "scoring",
        "first token",
        "ideal",
        "decode ms",
        "÷ bytes",
        "speed-up",
        "ideal",
    ):
        shown.add_column(heading, justify="left" if heading == "setting" else "right")
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or (rows[index + 1].seconds, rows[index + 1].batch) != (row.seconds, row.batch)
        shown.add_row(
            f"{row.seconds:g}",
            str(row.batch),
            row.setting,
            f"{row.kept} of {row.audio_tokens}",
            f"{row.kv_bytes / 1e6:.1f}",
            "–" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 1e9:.2f}",
            f"{row.encoder_s:.3f}",
            f"{row.llm_prefill_s:.3f}",
            f"{row.prefill_speed_up:.2f}×",
            _times(row.prefill_ideal),
            _times(row.prefill_control),
            f"{row.scoring_share:.1%}",
            f"{row.first_token_speed_up:.2f}×",
            _times(row.first_token_ideal),
            f"{1000 * row.decode_per_token_s:.2f}",
            _times(row.decode_bytes and row.decode_per_token_s * rate / row.decode_bytes),
            f"{row.decode_speed_up:.2f}×",
            _times(row.decode_ideal),
            end_section=last,
        )
    return shown


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def at_least(low: float, read: Callable[[str], Any] = int) -> Callable[[str], Any]:
    """Return a parser of numbers for argparse that refuses numbers below `low`."""

    def number(text: str) -> Any:
        value = read(text)
        if not value >= low:
            raise argparse.ArgumentTypeError(f"{text} is not allowed; allowed: {low:g} or more")
        return value

    return number


def joined(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser for argparse of values joined by commas."""

    def values(text: str) -> list[Any]:
        return [read(part) for part in text.split(",")]

    return values


def read_flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=SIZES, default="scaled")
    parser.add_argument(
        "--durations",
        type=joined(at_least(1, float)),
        help="seconds of audio [30,90,180,300; scaled: 30,90]",
    )
    parser.add_argument("--methods", default="random,fast_v,dart,snapkv", help="[%(default)s]")
    parser.add_argument("--ratios", type=joined(float), default=[0.3, 0.5, 0.9], help="[0.3,0.5,0.9]")
    parser.add_argument("--layer", type=at_least(0), default=2)
    parser.add_argument("--at", choices=PLACES, default="layer")
    parser.add_argument("--tower-layer", type=at_least(0), help="with --at tower [half of the tower's layers]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N [%(default)s]")
    parser.add_argument("--dtype", default="auto", help="[bfloat16 on a GPU, float32 on a CPU]")
    parser.add_argument("--attn-implementation", choices=ATTENTION, default="sdpa")
    parser.add_argument("--decode", choices=("auto", "graph", "eager"), default="auto", help="[graph on a GPU]")
    parser.add_argument("--batches", type=joined(at_least(1)), default=[1], help="samples a batch [1]")
    parser.add_argument("--repeats", type=at_least(1), default=3)
    parser.add_argument(
        "--decode-tokens", type=at_least(2), default=64, help="length of the forced decode [%(default)s]"
    )
    parser.add_argument("--threads", type=at_least(1), help="CPU threads [torch's own choice; 1 with --cpu-time]")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds of one thread, for a shared machine")
    parser.add_argument("--prefill-chunk", type=at_least(1), help="also measure prefill in chunks of so many tokens")
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--no-overhead", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark_efficiency.json"))
    flags = parser.parse_args(arguments)
    if not flags.output.parent.is_dir():  # fail now, not after an hour of measuring
        parser.error(f"--output {flags.output}: there is no folder {flags.output.parent}")
    return flags


@reporting_errors
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every duration, print the table, and write all figures to the file `--output`."""
    flags = read_flags(arguments)
    transformers.logging.set_verbosity_error()
    threads = flags.threads or (1 if flags.cpu_time else None)
    if threads:
        torch.set_num_threads(threads)
    hardware = find_hardware(RunSettings.read({}, device=flags.device, dtype=flags.dtype))
    gpu = hardware.device.startswith("cuda")
    names = flags.methods.split(",")
    place = {"layer": flags.layer, "at": flags.at, "tower_layer": flags.tower_layer}
    named = [get_method(name, ratio, **place) for name in names for ratio in flags.ratios]
    methods = list({method.label: method for method in (Base(), *named)}.values())  # drop repeated names
    lm = random_model(flags.config, hardware.device, hardware.dtype, flags.attn_implementation)
    lm.decode = flags.decode if flags.decode != "auto" else "graph" if gpu else "eager"
    rate = bandwidth(hardware.device)
    if flags.cpu_time:
        lm.clock = CpuTimeClock()
    cost = count_cost(lm)
    for method in methods:
        method.check(lm)
    durations = flags.durations or ([30.0, 90.0] if flags.config in ("scaled", "tiny") else [30.0, 90.0, 180.0, 300.0])
    rows: list[Row] = []
    for seconds, batch in itertools.product(durations, flags.batches):
        rows += measure(
            lm,
            cost,
            seconds,
            methods,
            repeats=flags.repeats,
            decode_tokens=flags.decode_tokens,
            control=not flags.no_control,
            batch=batch,
        )
    overhead = {}
    if not flags.no_overhead:
        overhead = overheads(lm, max(durations), repeats=flags.repeats, decode_tokens=flags.decode_tokens)
    chunks = []
    if flags.prefill_chunk:
        for seconds in durations:
            chunks += chunked_against_whole(lm, seconds, methods, flags.prefill_chunk, repeats=flags.repeats)
    Console(width=190).print(table(rows, rate))
    for measurement in chunks:
        peaks, times = ([measurement[f"{how}_{what}"] for how in ("chunked", "whole")] for what in ("peak_bytes", "s"))
        print(
            f"{measurement['seconds']:g} s, {measurement['setting']}, chunks of {measurement['chunk']} : whole: "
            f"peak {peaks[0] / 1e9:.2f} : {peaks[1] / 1e9:.2f} GB = {peaks[0] / peaks[1]:.2f}, "
            f"LLM prefill {times[0]:.3f} : {times[1]:.3f} s = {times[0] / times[1]:.2f}"
        )
    for row in rows if flags.at == "tower" else ():
        reached = f"{row.tower_speed_up:.3f}× of an ideal {row.tower_ideal:.3f}×"
        print(f"{row.setting}, {row.seconds:g} s: tower {reached}: {row.tower_speed_up / row.tower_ideal:.1%}")
    for name, share in overhead.get("choosing_and_gathering_share_of_base_prefill", {}).items():
        print(f"{name}, choosing and gathering: {share:.2%} of base's LLM prefill at {max(durations):g} s")
    for name, median_row in overhead.get("decode_against_control", {}).items():
        spread = f"{median_row['lowest']:.3f} to {median_row['highest']:.3f} in {len(median_row['each'])} pairs"
        print(f"{name}, decode a token ÷ control's: {median_row['median']:.3f} ({spread})")
    machine = torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {torch.get_num_threads()} threads"
    facts = {
        "machine": machine,
        "time": "CPU seconds" if flags.cpu_time else "wall seconds",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "flags": {name: str(value) for name, value in vars(flags).items()},
        "size": asdict(SIZES[flags.config]),
        "decode": lm.decode,
        "bytes_a_second": rate,
        "cost": cost.as_json(),
        "overhead": overhead,
        "chunks": chunks,
        "rows": [asdict(measured) for measured in rows],
    }
    flags.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
