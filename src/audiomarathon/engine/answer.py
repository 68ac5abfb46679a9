"""Answer a prompt about your own audio under any method, with times and token counts.

`answer` runs one method. `answers` runs several on the same audio, which is decoded and encoded once, so that their
times are comparable.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audiomarathon.audio import decode as audio
from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import as_method
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.errors import SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.timing import Stages
from audiomarathon.settings import RunSettings

MAX_NEW_TOKENS = 256
_WARM_UP_TOKENS = 2


@dataclass(frozen=True)
class Answer:
    """A reply to a prompt about audio, with its cost.

    Attributes
    ----------
    method
        Label of the method, such as `snapkv-0.5`.
    text, finish
        The reply, and why it ended: `stop`, or `length` at the token limit.
    audio_seconds
        Length of all clips together.
    audio_tokens, kept_audio_tokens
        Before and after the method; None after a method that also drops text, since heads then keep different numbers.
    kv_lengths, kv_bytes
        Entries of each layer's cache after prefill, and the bytes of the whole cache.
    stages
        Seconds of encoder, LLM prefill and decode. The encoder runs once for all methods that :func:`answers` compares.
    decode_per_token
        Seconds per token after the first, from a forced run if `DECODE_TOKENS` is set, else from the reply; None for a
        reply of one token.
    scoring
        Seconds of the LLM prefill that the method spent on choosing tokens.
    generation
        All other facts of the call.
    """

    method: str
    text: str
    finish: str
    audio_seconds: float
    audio_tokens: int
    kept_audio_tokens: int | None
    kv_lengths: tuple[int, ...]
    kv_bytes: int
    stages: Stages
    decode_per_token: float | None
    scoring: float
    generation: Generation


def answer(
    audio_paths: str | Path | Sequence[str | Path],
    prompt: str,
    *,
    model: str | AudioLM = "embedded",
    method: str | Method = "base",
    settings: RunSettings | None = None,
) -> Answer:
    """Answer a prompt about one or more audio files.

    Parameters
    ----------
    audio_paths
        One or more files, in the prompt's order.
    prompt
        Plain text; the model's chat template is added.
    model
        A model's name, or a model loaded by :func:`open_model`.
    method
        A method, or text such as `"snapkv:0.5"` or `"fast_v:0.5+snapkv:0.3"`.
    settings
        Checkpoint, device, dtype, token limit and so on; :func:`own_settings` when None.

    Raises
    ------
    AudioMarathonError
        A file cannot be decoded, a name is unknown, or the method does not apply to the model.

    Examples
    --------
    >>> answer("talk.wav", "Who speaks?", model="qwen2.5-omni-3b", method="snapkv:0.5").text  # doctest: +SKIP
    """
    (only,) = answers(audio_paths, prompt, [method], model=model, settings=settings, warm_up=False)
    return only


def answers(
    audio_paths: str | Path | Sequence[str | Path],
    prompt: str,
    methods: Sequence[str | Method],
    *,
    model: str | AudioLM = "embedded",
    settings: RunSettings | None = None,
    warm_up: bool = True,
) -> Iterator[Answer]:
    """Answer a prompt under each of several methods; decoding and the audio tower run once. See :func:`answer`.

    Parameters
    ----------
    warm_up
        Run every method once before, not counted: the first call chooses kernels and claims memory.
    """
    settings = settings or own_settings()
    chosen = [as_method(method, settings) for method in methods]
    paths = [Path(audio_paths)] if isinstance(audio_paths, str | Path) else [Path(path) for path in audio_paths]
    if not paths:
        raise SettingsError("no audio: name at least one file")
    for path in paths:
        audio.probe(path)  # before the model is loaded, which takes longer
    lm = open_model(model, settings, chosen) if isinstance(model, str) else model
    for method in chosen:
        method.check(lm)
    clips = tuple(audio.decode(path, lm.sampling_rate) for path in paths)
    inputs = lm.prepare([Prompt(prompt, clips, settings.seed)])
    limit = settings.max_new_tokens or MAX_NEW_TOKENS
    for method, generation in generations(lm, inputs, chosen, limit, warm_up=warm_up):
        (reply,), stages = generation.replies, generation.stages
        per_token = stages.decode / (reply.new_tokens - 1) if reply.new_tokens > 1 else None
        if settings.decode_tokens:
            forced = method.generate(lm, inputs, max_new_tokens=settings.decode_tokens, ignore_end=True)
            per_token = forced.stages.decode / (settings.decode_tokens - 1)
        yield Answer(
            method=method.label,
            text=reply.text,
            finish=reply.finish,
            audio_seconds=sum(len(clip) for clip in clips) / lm.sampling_rate,
            audio_tokens=inputs.audio_tokens[0],
            kept_audio_tokens=generation.kept_audio_tokens[0],
            kv_lengths=generation.kv_lengths,
            kv_bytes=generation.kv_bytes,
            stages=stages,
            decode_per_token=per_token,
            scoring=generation.scoring,
            generation=generation,
        )


def generations(
    lm: AudioLM,
    inputs: Inputs,
    methods: Sequence[Method],
    max_new_tokens: int,
    *,
    warm_up: bool = False,
    keep_entries: bool = False,
) -> Iterator[tuple[Method, Generation]]:
    """Generate under each method; the audio tower runs once, and every method gets its measured time."""
    encoder: float | None = None
    with encoder_shared(lm) as memory:
        if warm_up:
            for method in methods:
                method.generate(lm, inputs, max_new_tokens=_WARM_UP_TOKENS)
            memory.clear()
        for method in methods:
            done = method.generate(lm, inputs, max_new_tokens=max_new_tokens, keep_entries=keep_entries)
            encoder = done.stages.encoder if encoder is None else encoder
            yield method, dataclasses.replace(done, stages=dataclasses.replace(done.stages, encoder=encoder))


def own_settings(**flags: Any) -> RunSettings:
    """Read settings from flags, then env vars; see :meth:`RunSettings.read`.

    `PRUNE_METHOD` and `PRUNE_RATIO` are ignored: the caller names the methods.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("PRUNE_METHOD", "PRUNE_RATIO")}
    return RunSettings.read(env, **flags)


def open_model(name: str, settings: RunSettings, methods: Sequence[Method] = ()) -> AudioLM:
    """Load a model by name, as a run does, and check that the methods apply to it.

    Raises
    ------
    AudioMarathonError
        The name is unknown, or the checkpoint or device is missing.
    """
    from audiomarathon.engine.local import open_local

    return open_local(name, settings, methods).lm
