"""Ask a model about your own audio, with part of the audio removed, and compare replies and times with `base`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from rich import box
from rich.console import Console
from rich.table import Table

from audiomarathon.cli.command import run_script, with_settings
from audiomarathon.cli.options import Model, argument, complete_methods, option
from audiomarathon.engine.answer import Answer, answers
from audiomarathon.settings import own_settings


def timing_table(shown: Sequence[Answer]) -> Table:
    """Return a table with a row per method; `base` comes first, and LLM prefill is compared with it."""
    first = shown[0]
    table = Table(
        title=f"{first.audio_seconds:.1f} s of audio; times in ms; the encoder runs once for all methods",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("method")
    for heading in ("audio tokens", "KV MB", "encoder", "LLM prefill", "vs base", "of it scoring", "decode", "a token"):
        table.add_column(heading, justify="right")
    for one in shown:
        call, stages = one.generation, one.generation.stages
        (kept,) = call.kept_audio_tokens
        table.add_row(
            one.method,
            f"{'–' if kept is None else kept} of {one.audio_tokens}",
            f"{call.kv_bytes / 1e6:.2f}",
            f"{1000 * stages.encoder:.1f}",
            f"{1000 * stages.llm_prefill:.1f}",
            f"{first.generation.stages.llm_prefill / stages.llm_prefill:.2f}×",
            f"{1000 * call.scoring:.1f}",
            f"{1000 * stages.decode:.1f}",
            "–" if one.decode_per_token is None else f"{1000 * one.decode_per_token:.2f}",
        )
    return table


_SETTINGS = (
    "layer", "at", "scope", "model_path", "device", "dtype", "attn_implementation", "max_new_tokens", "decode_tokens",
)  # fmt: skip


@with_settings(*_SETTINGS, read=dict)
def pipeline(
    settings: dict[str, Any],
    audio: Annotated[list[Path], argument("Audio files: WAV, FLAC, OGG, MP3, at any rate.")],
    prompt: Annotated[str, option("Question about the audio, in plain text; the clips come before it.")],
    press: Annotated[list[str], option("Method, or method:ratio; repeatable.", complete=complete_methods)] = [],  # noqa: B006
    ratio: Annotated[str, option("Fraction of audio removed, for methods given without a ratio.")] = "0.5",
    model: Model = "embedded",
) -> None:
    """Ask a model about your own audio, with part of the audio removed, and compare replies and times with `base`.

    Examples:
      python kvpress/pipeline.py talk.wav --prompt "What is it?" --model qwen2.5-omni-3b --press snapkv --ratio 0.5
      python kvpress/pipeline.py a.wav b.wav --prompt "Which of the two is louder?" --press knorm:0.5 --press fast_v:0.5
      python kvpress/pipeline.py talk.wav --prompt "Who speaks?" --press fast_v:0.5+snapkv:0.3 --decode-tokens 64

    --press takes any method of `audiomarathon list methods`: presses shrink the KV cache after prefill, token pruning
    (fast_v, dart, frame, …) drops audio tokens inside the LLM. The ratio is the fraction of audio tokens removed.
    `base` (nothing removed) runs first, then every named method; the audio is encoded once. Replies end at 256 tokens
    unless --max-new-tokens says otherwise. Other settings come from a run's env vars, except PRUNE_METHOD and
    PRUNE_RATIO.
    """
    read = own_settings(ratio=ratio, **settings)
    methods = ["base:0", *(one for one in press if one != "base")]
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    shown: list[Answer] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("once", category=UserWarning)
        for one in answers(audio, prompt, methods, model=model, settings=read):
            cut = " (cut by the token limit)" if one.generation.replies[0].finish == "length" else ""
            console.print(f"{one.method}: {one.text.strip()}{cut}", markup=False, soft_wrap=True)
            shown.append(one)
    console.print(timing_table(shown))


if __name__ == "__main__":
    run_script(pipeline)
