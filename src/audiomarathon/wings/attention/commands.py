"""`audiomarathon attention`: capture and draw what a model attends to."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from audiomarathon.cli.command import group, run_script, with_settings
from audiomarathon.cli.options import DeviceName, ModelOrNone, Runs, Tasks, option, output_folder
from audiomarathon.cli.output import say
from audiomarathon.cli.run import evaluate
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import file_name
from audiomarathon.models.registry import all_models
from audiomarathon.settings import SEED, RunSettings, own_settings
from audiomarathon.text import utc_name


@with_settings(but=("save_attn",), read=partial(RunSettings.read, save_attn=True))
def capture(
    settings: RunSettings,
    tasks: Tasks,
    model: ModelOrNone = None,
    sample: Annotated[list[str] | None, option("Capture only the sample with this id; repeatable.")] = None,
    full: Annotated[
        bool,
        option(
            "Also write whole attention maps for LALM Bench's tools: 4 × layers × tokens² bytes per sample.",
            "--attn-full",
            "--full",
        ),
    ] = False,
    yes: Annotated[bool, option("Also write whole maps of prompts over 4,096 tokens.", "--yes", "-y")] = False,
) -> int:
    """Capture what a model attends to, under any method, in one extra, untimed call per sample.

    Examples:
    audiomarathon attention capture tau --model qwen2.5-omni --limit 20
    audiomarathon attention capture tau --model qwen2.5-omni --limit 20 --method fast_v --ratio 0.5
    audiomarathon attention plot results/tau

    Each sample's attention (0.3 MB for 30 s of audio, 1.1 MB for 300 s) goes to attention/ in the run's folder. Samples
    without a stored reply are run first, as by `audiomarathon run --save-attn`; stored replies are kept.
    """
    from audiomarathon.engine.attention_capture import LONGEST_FULL

    longest = (sys.maxsize if yes else LONGEST_FULL) if full else 0
    return evaluate(tasks, model, replace(settings, samples=tuple(sample or ()), attn_full=longest, attn_only=True))


def plot(
    runs: Runs,
    output: Annotated[Path, output_folder("Folder of the pictures.")] = Path("attention"),
    layer: Annotated[
        int,
        option(
            "K: show how well attention in layer K − 1 predicts later layers; 0 chooses 2, or the lowest possible K.",
            min=0,
        ),
    ] = 0,
    sample: Annotated[str, option("Draw only this sample.")] = "",
) -> None:
    """Draw captured attention by head, by layer, as maps and over time; show whether early layers predict later ones.

    Example: audiomarathon attention plot results/tau -o pictures
    """
    from audiomarathon.runs.read import read_runs
    from audiomarathon.wings.attention.pictures import draw

    for path in draw(read_runs(runs), output, layer=layer, sample=sample):
        say(f"wrote {path}")


def visualize(
    prompt: Annotated[str, option("Prompt to draw.")] = "",
    input_jsonl: Annotated[
        Path | None, option('File with lines "prompt", {"prompt": …} or {"messages": […]}, optionally with "id".')
    ] = None,
    model: Annotated[str, option("Model (audiomarathon list models) or hub id.")] = "gemma3n",
    model_path: Annotated[str, option("Checkpoint to load instead of the model's default.")] = "",
    device: DeviceName = "auto",
    dtype: Annotated[str, option("Precision: auto, float32, float16 or bfloat16.")] = "auto",
    layers: Annotated[str, option("Layers to draw: all, or numbers such as 0 5 8.")] = "all",
    max_layers: Annotated[int, option("Draw the first N layers; 0 = all.", min=0)] = 0,
    limit_samples: Annotated[int, option("Draw the first N prompts; 0 = all.", min=0)] = 0,
    output_dir: Annotated[Path, option("Output folder.")] = Path("outputs/attn"),
    run_name: Annotated[str, option("Name of the subfolder (default: the time in UTC).")] = "",
    seed: Annotated[int, option("Seed of random methods.", min=0)] = SEED,
    yes: Annotated[bool, option("Also draw prompts over 4,096 tokens.", "--yes", "-y")] = False,
    faithful: Annotated[
        bool, option("Average prompts of unequal length as LALM Bench: cut all to the shortest.", "--faithful")
    ] = False,
) -> None:
    """Draw a model's whole attention maps on prompts; called like LALM Bench's script.

    Examples:
    python visualization.py --prompt "Hello" --layers 0 1 --limit-samples 1
    python visualization.py --input-jsonl prompts.jsonl --model qwen2.5-omni
    """
    import numpy as np

    from audiomarathon.audio.decode import decode
    from audiomarathon.compression.method import Base
    from audiomarathon.engine.attention_capture import LONGEST_FULL, capture_whole, check_layers
    from audiomarathon.engine.engine import open_local
    from audiomarathon.models.prompt import Prompt
    from audiomarathon.wings.attention.maps import Whole, draw_mean, draw_sample

    prompts = list(_prompts(prompt, input_jsonl).items())[: limit_samples or None]
    flags = {"device": device, "dtype": dtype, "attn_layers": layers, "save_attn": True, "seed": seed}
    settings = own_settings(model_path=model_path or None, **flags)
    lm = open_local(next((listed.key for listed in all_models() if listed.checkpoint == model), model), settings).lm
    chosen = settings.attn_layers or tuple(range(len(lm.decoder_layers)))
    check_layers(lm, settings.attn_layers)
    chosen, place = chosen[: max_layers or None], output_dir / file_name(run_name or utc_name())
    captured, longest = [], sys.maxsize if yes else LONGEST_FULL
    for name, (text, clips) in prompts:
        folder = place / file_name(name)
        read = Prompt(text, tuple(decode(clip, lm.sampling_rate) for clip in clips), seed)
        meta = {"model": model, "run_name": place.name, "sample_id": name, "prompt": text}
        seen = capture_whole(lm, lm.prepare([read]), Base(), read, folder, longest=longest, facts=meta, layers=chosen)
        captured.append(Whole(name, np.load(folder / "attn.npy", mmap_mode="r"), seen.tokens, chosen))
        draw_sample(captured[-1], folder)
    draw_mean(captured, place, run=place.name, faithful=faithful)
    say(f"wrote {place}")


def _prompts(prompt: str, file: Path | None) -> dict[str, tuple[str, list[Path]]]:
    """Return the prompts to draw, from the text `prompt` and a JSONL file, as {prompt's id: (text, audio files)}."""
    from audiomarathon.benchmarks.rows import read_text

    prompts: dict[str, tuple[str, list[Path]]] = {"prompt_0000": (prompt, [])} if prompt else {}
    lines = read_text(file).split("\n") if file else []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
                row = {"prompt": row} if isinstance(row, str) else row
                (turn,) = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
                parts: Any = turn["content"] if turn["role"] == "user" else None
                parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
                texts = [part["text"] for part in parts if part["type"] == "text"]
                clips = [Path(part["audio"]) for part in parts if part["type"] == "audio"]
                name = str(row.get("id") or f"jsonl_{len(prompts):04d}")
                if len(texts) + len(clips) < len(parts) or name in prompts:
                    raise ValueError(name)
                prompts[name] = ("\n".join(texts), clips)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DataError(
                    f'{file}, line {number}: not a prompt; allowed: a text, {{"prompt": …}}, or {{"messages": […]}} '
                    "with a single user turn of text and audio; an id may occur only once"
                ) from error
    if not prompts:
        raise SettingsError("no prompt: give --prompt or --input-jsonl")
    return prompts


def door() -> None:
    """Run :func:`visualize` with the command line of LALM Bench's `visualization.py`, such as `--layers 0 1 2`."""
    words = list[str]()
    for word in sys.argv[1:]:
        joins = len(words) > 1 and words[-2] == "--layers" and not word.startswith("-")
        words = [*words[:-1], f"{words[-1]},{word}"] if joins else [*words, word]
    run_script(visualize, words, no_args_is_help=True)


attention_app = group("Capture and draw what a model attends to.", {"capture": capture, "plot": plot})
