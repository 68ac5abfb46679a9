"""Ask a model about your own audio, with part of the audio removed, and compare replies and times with `base`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from audiomarathon.cli.command import run_script, with_settings
from audiomarathon.cli.options import Model, argument, complete_methods, option
from audiomarathon.engine.answer import Answer, answers
from audiomarathon.report.render import NONE, Kind, Table, show
from audiomarathon.settings import own_settings
from audiomarathon.terminal import console

_TENTHS = Kind(form=".1f", scale=1e3)  # seconds, shown as milliseconds
_KINDS = {
    "audio tokens": Kind(),
    "KV MB": Kind(form=".2f", scale=1e-6),
    **dict.fromkeys(("encoder", "LLM prefill", "of it scoring", "decode"), _TENTHS),
    "vs base": Kind(form=lambda times: f"{times:.2f}×"),
    "a token": Kind(form=".2f", scale=1e3),
}


def timing_table(shown: Sequence[Answer]) -> Table:
    """Return a table of times, one row per method; `base` (nothing removed), the one to compare with, is first."""
    rows, base = [], shown[0].generation.stages.llm_prefill
    for answer in shown:
        call, stages = answer.generation, answer.generation.stages
        (kept,) = call.kept_audio_tokens
        rows.append(
            {
                "method": answer.method,
                "audio tokens": f"{NONE if kept is None else kept} of {answer.audio_tokens}",
                "KV MB": call.kv_bytes,
                "encoder": stages.encoder,
                "LLM prefill": stages.llm_prefill,
                "vs base": base / stages.llm_prefill,
                "of it scoring": call.scoring,
                "decode": stages.decode,
                "a token": answer.decode_per_token,
            }
        )
    title = f"{shown[0].audio_seconds:.1f} s of audio; times in ms; the encoder runs once for all methods"
    return Table.of(rows, title=title, kinds=_KINDS)


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
    methods = ["base:0", *(method for method in press if method != "base")]
    out, shown = console(), list[Answer]()
    with warnings.catch_warnings():
        warnings.filterwarnings("once", category=UserWarning)
        for answer in answers(audio, prompt, methods, model=model, settings=read):
            cut = " (cut by the token limit)" if answer.generation.replies[0].finish == "length" else ""
            out.print(f"{answer.method}: {answer.text.strip()}{cut}", markup=False, soft_wrap=True)
            shown.append(answer)
    show(timing_table(shown))


if __name__ == "__main__":
    run_script(pipeline)
