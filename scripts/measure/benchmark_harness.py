"""Measure the harness: one timed pass against the published protocol, the report on many runs, and lmms-eval.

  python scripts/measure/benchmark_harness.py [--samples 10] [--runs 50 --records 1000] [--lmms-eval PYTHON --rounds 3]

1. The published protocol answers each sample in two passes: one that makes a single token, called prefill, then the
   whole generation again, and it decodes and prepares the audio for each. Ours answers in one pass and times its stages
   inside. Same tiny model, same samples, interleaved; the ratio counts.
2. `audiomarathon report` on synthetic runs, in a separate process: seconds, and peak memory.
3. With `--lmms-eval`, the interpreter of an environment that has lmms-eval (docs/benchmarks.md says how to make one):
   the same samples through its command and through ours, batch 1, alternating.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import librosa
import torch
from harness.beside_lmms_eval import beside_lmms_eval

from audiomarathon.audio import decode as audio
from audiomarathon.benchmarks import get_task, task_folder
from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.compression.method import Base
from audiomarathon.embedded.mini_benchmark import mini_benchmark
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.checkpoint import embedded_checkpoint
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model

TOKENS = 16


def ours(lm: AudioLM, task: Task, sample: Sample) -> None:
    """Answer one sample in a single pass, as a timed run of this project does."""
    clips = tuple(audio.decode(path, lm.sampling_rate) for path in sample.clips)
    Base().generate(lm, lm.prepare([Prompt(task.prompt(sample), clips)]), max_new_tokens=TOKENS)


def published(lm: AudioLM, task: Task, sample: Sample) -> None:
    """Answer one sample as the release's scripts do: one pass for a single token, then the whole generation again."""
    for tokens in (1, TOKENS):
        clips = tuple(librosa.load(path, sr=lm.sampling_rate, mono=True)[0] for path in sample.clips)
        inputs = lm.prepare([Prompt(task.prompt(sample), clips)])
        with torch.inference_mode():
            lm.model.generate(
                **inputs.tensors,
                do_sample=False,
                max_new_tokens=tokens,
                eos_token_id=list(lm.end_tokens),
                pad_token_id=lm.tokenizer.pad_token_id,
            )


def one_pass_or_two(count: int) -> None:
    """Print the time of our single pass ÷ the time of the published protocol's two passes."""
    family = get_model("embedded").load_family()
    lm = family.load(embedded_checkpoint(), device="cpu", dtype="float32", attn_implementation="sdpa")
    task = get_task("tau")
    samples = task.load(task_folder(task, mini_benchmark(), {})).samples[:count]
    ours(lm, task, samples[0])
    published(lm, task, samples[0])
    ratios = []
    for index, sample in enumerate(samples):
        seconds = {}
        for way in (ours, published) if index % 2 else (published, ours):
            begin = time.perf_counter()
            way(lm, task, sample)
            seconds[way] = time.perf_counter() - begin
        ratios.append(seconds[ours] / seconds[published])
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"one pass ÷ published protocol, {len(ratios)} samples: {middle:.2f} ({low:.2f} to {high:.2f})")


def made_up_runs(root: Path, runs: int, records: int) -> None:
    """Write synthetic run folders, like those of a sweep of ten settings over several tasks."""
    tasks = ("tau", "gtzan", "desed", "vesus", "had")
    for number in range(runs):
        task, ratio = tasks[number % len(tasks)], number // len(tasks) / 100
        folder = root / task / "M" / f"dart-{ratio:g}-layer2"
        folder.mkdir(parents=True)
        labels = ["a", "b", "c", "d"]
        with (folder / "samples.jsonl").open("w") as stream:
            for place in range(records):
                right = (place * 7 + number) % 3 > 0
                answer = labels[place % 4].upper()
                chosen = answer if right else labels[(place + 1) % 4].upper()
                stream.write(json.dumps({
                    "id": f"clip{place:04d}", "cluster": f"speaker{place // 5}", "reply": chosen, "finish": "stop",
                    "parsed": chosen, "rule": "letter", "correct": right, "strict": right, "error": None,
                    "reference": {"answer": answer, "options": labels, "labels": labels}, "session": "s",
                    "clip_seconds": 90.0 + place % 200, "prompt_tokens": 2500, "audio_tokens": 2400,
                    "kept_audio_tokens": 1200, "kept_audio_bits": "qqqq" * 100, "kv_lengths": [2500] * 28,
                    "kv_bytes": 10**8, "new_tokens": 2, "peak_memory_bytes": None, "forced_decode": None,
                    "time": {"load": 0.1, "preprocess": 0.1, "encoder": 0.2, "llm_prefill": 0.5, "prefill": 0.7,
                             "decode": 0.1, "scoring": 0.0},
                }) + "\n")  # fmt: skip
        identity = {"method": "dart", "ratio": ratio, "layer": 2, "device": "gpu", "data": "d", "prompts": "p"}
        facts = {"schema_version": 2, "task": task, "method": folder.name, "checkpoint": "/m/M", "identity": identity}
        (folder / "run.json").write_text(json.dumps(facts))
        summary = {"task": task, "headline": "macro_f1", "n": records, "errors": 0, "unparsed": 0, "complete": True}
        more = {"score": 0.66, "accuracy": 0.66, "intervals": {"score": [0.6, 0.7]}, "kv_bytes": 1e8}
        (folder / "summary.json").write_text(json.dumps(summary | more))


def report_on(runs: int, records: int) -> None:
    """Time `audiomarathon report` on synthetic runs; print seconds, peak memory and the page's size."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        made_up_runs(root / "results", runs, records)
        command = [sys.executable, "-m", "audiomarathon", "report", str(root / "results"), "-o", str(root / "r.html")]
        begin = time.perf_counter()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        size = (root / "r.html").stat().st_size / 1e6
        print(f"report on {runs} runs of {records} samples: {seconds:.1f} s, peak {peak:.2f} GB, page {size:.1f} MB")


def main() -> None:
    """Run the benchmarks, and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10, help="samples of benchmarks 1 and 3 (default 10)")
    parser.add_argument("--runs", type=int, default=50, help="runs of benchmark 2 (default 50)")
    parser.add_argument("--records", type=int, default=1000, help="records per run of benchmark 2 (default 1,000)")
    parser.add_argument("--lmms-eval", metavar="PYTHON", help="also run benchmark 3, with this interpreter's lmms-eval")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of benchmark 3 (default 3)")
    given = parser.parse_args()
    report_on(given.runs, given.records)
    one_pass_or_two(given.samples)
    if given.lmms_eval:
        beside_lmms_eval(given.lmms_eval, given.samples, given.rounds)


if __name__ == "__main__":
    main()
