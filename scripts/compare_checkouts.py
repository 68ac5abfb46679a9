"""Compare two versions of this repository: same replies, tokens kept, cache, bytes and FLOPs.

Usage: compare_checkouts.py OLD NEW [--families voxtral,phi4mm]

OLD and NEW are folders with a checkout, or commits of this repository. In a separate process, each version builds the
tiny random checkpoints of its tests and generates under every method, with sdpa and with eager attention, for one
prompt of two clips and for a batch of three. Prints the differences; the exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
RATIO = 0.5
JOINED = "frame:0.5+snapkv:0.3"
SHOWN = 20

#: {name: modules that define it in different versions of the package, newest first}.
PLACES = {
    "all_methods": ("compression.registry", "pruning.registry"),
    "get_method": ("compression.registry", "pruning.registry"),
    "count_cost": ("costs.flops", "evaluation.flops"),
    "Prompt": ("models.prompt",),
    "AudioLM": ("models.audio_lm",),
    "MethodError": ("errors",),
}


def find(name: str) -> Any:
    """Return the package's class or function `name`, from the module that defines it in the imported version."""
    for place in PLACES[name]:
        with contextlib.suppress(ModuleNotFoundError):
            return getattr(importlib.import_module(f"audiomarathon.{place}"), name)
    raise SystemExit(f"error: this version has no {name} in {', '.join(PLACES[name])}")


def trace(families: list[str]) -> dict[str, Any]:
    """Return what the imported version does, as {family, attention and method: facts such as token ids}."""
    import torch
    from families import FAMILIES  # builders of the tests of this version

    torch.set_num_threads(1)
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for key in families or FAMILIES:
            path = FAMILIES[key].checkpoint(Path(folder) / key)
            for attention in ("sdpa", "eager"):
                lm = FAMILIES[key].load(path, attention)
                facts[f"{key} {attention} FLOPs"] = find("count_cost")(lm).as_json()
                for name, fact in of_methods(lm):
                    facts[f"{key} {attention} {name}"] = fact
            print(f"  {key}", file=sys.stderr, flush=True)
    return facts


def of_methods(lm: Any) -> Iterator[tuple[str, Any]]:
    """Yield (method's name and batch size, facts) of a model under every method, for one prompt and for a batch."""
    get_method, refused = find("get_method"), find("MethodError")
    names = [method.key for method in find("all_methods")()]
    methods = [get_method(name, 0.0 if name == "base" else RATIO) for name in names]
    for method in [*methods, get_method(JOINED)]:
        try:
            method.check(lm)
        except refused as error:
            yield method.label, f"refused: {type(error).__name__}"
            continue
        for size in (1, 3) if method.batches else (1,):
            yield f"{method.label} batch {size}", generated(lm, method, lm.prepare(prompts()[:size]))


def generated(lm: Any, method: Any, inputs: Any) -> dict[str, Any]:
    """Generate once; return {name: fact to compare}: token ids, kept tokens and cache entries, and the cache's size."""
    takes_method = "method" in inspect.signature(find("AudioLM").generate).parameters
    applied = method if takes_method else method.applied_to(lm, inputs)
    done = lm.generate(inputs, applied, max_new_tokens=6, keep_entries=True)
    return {
        "token ids": [list(reply.token_ids) for reply in done.replies],
        "kept positions": [digest(kept) for kept in done.kept_positions or ()],
        "kept entries": [digest(kept) for kept in done.kept_entries or ()],
        "kept audio tokens": list(done.kept_audio_tokens),
        "cache lengths": list(done.kv_lengths),
        "KV bytes": done.kv_bytes,
    }


def digest(tensor: Any) -> str:
    """Return a tensor's shape and the hash of its bytes, as text."""
    return f"{tuple(tensor.shape)} {hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()[:12]}"


def prompts() -> list[Any]:
    """Return three prompts of unequal lengths; the first has two clips."""
    import numpy as np

    def noise(seconds: float, seed: int) -> Any:
        samples = np.random.default_rng(seed).standard_normal(round(seconds * 16000))
        return (0.1 * samples).astype(np.float32)

    prompt = find("Prompt")
    return [
        prompt("Which is it?\n\nA. cat\nB. dog", (noise(5.3, 1), noise(3.05, 2)), seed=11),
        prompt("And now?", (noise(4.0, 3),), seed=12),
        prompt("A longer question about a short clip, with many words in it", (noise(1.2, 4),), seed=13),
    ]


@contextlib.contextmanager
def checkout(name: str) -> Iterator[Path]:
    """Yield the folder of a version: the named folder, or a temporary work tree of a commit."""
    if (Path(name) / "src" / "audiomarathon").is_dir():
        yield Path(name).resolve()
        return
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "checkout"
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), name], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def traced(name: str, families: list[str]) -> dict[str, Any]:
    """Return what a version does, as :func:`trace` does, from a separate process."""
    print(name, file=sys.stderr)
    with checkout(name) as place:
        env = os.environ | {"PYTHONPATH": f"{place / 'src'}{os.pathsep}{place / 'tests'}"}
        command = [sys.executable, "-W", "ignore", __file__, "--trace", "--families", ",".join(families)]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return one line for each fact that differs between two versions or is missing in one."""
    lines = []
    for name in sorted({*old, *new}):
        before, after = old.get(name, "missing"), new.get(name, "missing")
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            parts = [part for part in {**before, **after} if before.get(part) != after.get(part)]
            lines += [f"{name}: {part}: {before.get(part)} → {after.get(part)}" for part in parts]
        else:
            lines.append(f"{name}: {before} → {after}")
    return lines


def main() -> None:
    """Compare two versions, or with `--trace` (in a separate process) print the facts of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", metavar="OLD")
    parser.add_argument("new", nargs="?", metavar="NEW")
    parser.add_argument("--families", default="", help="keys of the tests' families, joined by commas; default all")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    families = [name for name in arguments.families.split(",") if name]
    if arguments.trace:
        print(json.dumps(trace(families)))
        return
    if not (arguments.old and arguments.new):
        parser.error("name two checkouts: OLD NEW")
    old, new = traced(arguments.old, families), traced(arguments.new, families)
    lines = differences(old, new)
    for line in lines[:SHOWN]:
        print(line)
    if len(lines) > SHOWN:
        print(f"… and {len(lines) - SHOWN} more")
    runs = sum(1 for fact in new.values() if isinstance(fact, dict) and "token ids" in fact)
    print(f"{len(lines)} differences in {len(new)} facts ({runs} calls of generate)")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
