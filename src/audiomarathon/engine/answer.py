"""Answer a prompt about your own audio under any compression method, with times and token counts.

`answer` runs one method. `answers` runs several on the same audio, which is decoded and encoded once, so that their
times are comparable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from audiomarathon.audio import decode as audio
from audiomarathon.compression.method import Method
from audiomarathon.compression.registry import as_method
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.engine.engine import open_local
from audiomarathon.engine.evaluate import forced_decode, run_uncounted
from audiomarathon.errors import SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.settings import RunSettings, own_settings

MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class Answer:
    """A reply to a prompt about audio, with its cost.

    Attributes
    ----------
    method
        Label of the method, such as `snapkv-0.5`.
    audio_seconds
        Length of all clips together.
    audio_tokens
        Number of audio tokens before the method drops any; `generation.kept_audio_tokens` has the number that it kept.
    decode_per_token
        Seconds per generated token, not counting the first one. With `DECODE_TOKENS=N` they come from a second call,
        which decodes exactly N tokens; else from the call that made the reply (None if the reply has one token).
    generation
        Output of the `generate` call: the reply, the seconds of each stage, and sizes of the KV cache. The encoder runs
        once for all methods of :func:`answers`; every answer has the seconds of that run.
    """

    method: str
    audio_seconds: float
    audio_tokens: int
    decode_per_token: float | None
    generation: Generation

    @property
    def text(self) -> str:
        """The model's reply as text, without special tokens."""
        return self.generation.replies[0].text


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
        Plain text, without a chat template: the model's template is added here.
    model
        A model's name, or a loaded model.
    method
        A method, or text such as `"snapkv:0.5"` or `"fast_v:0.5+snapkv:0.3"`.
    settings
        Checkpoint, device, dtype, token limit and so on; None reads them from the env vars (:func:`own_settings`).

    Raises
    ------
    AudioMarathonError
        A file cannot be decoded, a model or method is unknown, or the method does not apply to the model.

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
    """Answer a prompt under each of several methods; audio decoding and the audio tower run once.

    The other parameters are those of :func:`answer`.

    Parameters
    ----------
    warm_up
        Whether to run every method once beforehand, since a first call is slower.
    """
    settings = settings or own_settings()
    chosen = [as_method(method, settings) for method in methods]
    paths = [Path(audio_paths)] if isinstance(audio_paths, str | Path) else [Path(path) for path in audio_paths]
    if not paths:
        raise SettingsError("no audio: name at least one file")
    for path in paths:
        audio.probe(path)  # before the model is loaded, which takes longer
    lm = open_local(model, settings, chosen).lm if isinstance(model, str) else model
    for method in chosen:
        method.check(lm)
    clips = tuple(audio.decode(path, lm.sampling_rate) for path in paths)
    inputs, heard = lm.prepare([Prompt(prompt, clips, settings.seed)]), sum(map(len, clips)) / lm.sampling_rate
    limit = settings.max_new_tokens or MAX_NEW_TOKENS
    for method, generation in generations(lm, inputs, chosen, limit, warm_up=warm_up):
        (reply,), stages = generation.replies, generation.stages
        per_token = stages.decode / (reply.new_tokens - 1) if reply.new_tokens > 1 else None
        if forced := forced_decode(lm, inputs, method, settings.decode_tokens):
            per_token = forced["per_token"]
        yield Answer(method.label, heard, inputs.audio_tokens[0], per_token, generation)


def generations(
    lm: AudioLM,
    inputs: Inputs,
    methods: Sequence[Method],
    max_new_tokens: int,
    *,
    warm_up: bool = False,
    keep_entries: bool = False,
) -> Iterator[tuple[Method, Generation]]:
    """Generate a reply under each method; yield (method, generation).

    The audio tower (the audio encoder) runs once, and once more for each method that changes it. Every generation
    reports the seconds of the shared run, except those of methods that change the tower.

    Parameters
    ----------
    warm_up
        Whether to run every method once beforehand, without yielding the result.
    keep_entries
        Whether to report which KV-cache entries each layer kept; see :meth:`AudioLM.generate`.
    """
    encoder: float | None = None
    with encoder_shared(lm) as memory:
        if warm_up:
            run_uncounted(lm, inputs, methods)
            memory.clear()
        for method in methods:
            done = method.generate(lm, inputs, max_new_tokens=max_new_tokens, keep_entries=keep_entries)
            if method.changes_tower:
                yield method, done
                continue
            encoder = done.stages.encoder if encoder is None else encoder
            yield method, dataclasses.replace(done, stages=dataclasses.replace(done.stages, encoder=encoder))
