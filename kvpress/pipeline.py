"""Ask a model about your own audio, with part of the audio dropped, and see what that buys beside the whole.

Examples:
  python kvpress/pipeline.py talk.wav --prompt "What is it about?" --model qwen2.5-omni-3b --press snapkv --ratio 0.5
  python kvpress/pipeline.py a.wav b.wav --prompt "Which of the two is louder?" --press knorm:0.5 --press fast_v:0.5
  python kvpress/pipeline.py talk.wav --prompt "Who speaks?" --press fast_v:0.5+snapkv:0.3 --decode-tokens 64

--press takes any method of `audiomarathon list methods`: presses shrink the KV cache after prefill, token pruning
(fast_v, dart, frame, …) drops audio tokens inside the LLM. The ratio is the fraction of audio tokens removed. Every
press that is named is run, and `base` (nothing dropped) beside them; the audio is encoded once. What no flag says, the
env vars of a run do (MODEL_PATH, DEVICE, DTYPE, ATTN_IMPLEMENTATION, …), but for PRUNE_METHOD and PRUNE_RATIO.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from audiomarathon.cli.output import reporting_errors
from audiomarathon.engine.answer import Answer, answers, own_settings


def read_flags() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audio", nargs="+", help="audio files: WAV, FLAC, OGG, MP3, at any rate")
    parser.add_argument("--prompt", required=True, help="what to ask; plain text, clips come before it")
    parser.add_argument(
        "--press", action="append", help="method, or method:ratio; may be given several times", default=[]
    )
    parser.add_argument("--ratio", help="fraction of audio removed, for presses without one of their own [0.5]")
    parser.add_argument("--layer", help="layer K at which token pruning drops [2]")
    parser.add_argument("--scope", help="audio; all lets presses remove text too [audio]")
    parser.add_argument("--model", default="embedded", help="a name of `audiomarathon list models` [%(default)s]")
    parser.add_argument("--model-path", help="another checkpoint of that model: hub id or folder")
    parser.add_argument("--device", help="auto, cpu, cuda, cuda:N [auto]")
    parser.add_argument("--dtype", help="auto, float32, float16, bfloat16 [auto]")
    parser.add_argument("--attn-implementation", help="sdpa, eager, flash_attention_2 [sdpa]")
    parser.add_argument("--max-new-tokens", help="token limit of a reply [256]")
    parser.add_argument("--decode-tokens", help="also decode exactly so many tokens, to time decode on [off]")
    return parser.parse_args()


def timing_table(shown: Sequence[Answer]) -> Table:
    """Return one row a method; `base` comes first, and prefill is set against it."""
    first = shown[0]
    table = Table(
        title=f"{first.audio_seconds:.1f} s of audio; times in ms, the encoder's one time shared by all",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("method")
    for heading in ("audio tokens", "KV MB", "encoder", "LLM prefill", "vs base", "of it scoring", "decode", "a token"):
        table.add_column(heading, justify="right")
    for one in shown:
        table.add_row(
            one.method,
            f"{'–' if one.kept_audio_tokens is None else one.kept_audio_tokens} of {one.audio_tokens}",
            f"{one.kv_bytes / 1e6:.2f}",
            f"{1000 * one.stages.encoder:.1f}",
            f"{1000 * one.stages.llm_prefill:.1f}",
            f"{first.stages.llm_prefill / one.stages.llm_prefill:.2f}×",
            f"{1000 * one.scoring:.1f}",
            f"{1000 * one.stages.decode:.1f}",
            "–" if one.decode_per_token is None else f"{1000 * one.decode_per_token:.2f}",
        )
    return table


@reporting_errors
def main() -> None:
    """Answer under `base` and under each press, then print the times."""
    flags = read_flags()
    names = (
        "layer",
        "scope",
        "model_path",
        "device",
        "dtype",
        "attn_implementation",
        "max_new_tokens",
        "decode_tokens",
    )
    settings = own_settings(ratio=flags.ratio or "0.5", **{name: getattr(flags, name) for name in names})
    methods = ["base:0", *(press for press in flags.press if press != "base")]
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    shown: list[Answer] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("once", category=UserWarning)
        for one in answers(flags.audio, flags.prompt, methods, model=flags.model, settings=settings):
            cut = " (cut by the token limit)" if one.finish == "length" else ""
            console.print(f"{one.method}: {one.text.strip()}{cut}", markup=False, soft_wrap=True)
            shown.append(one)
    console.print(timing_table(shown))


if __name__ == "__main__":
    main()
