"""Evaluate a model behind an endpoint, with several requests at a time. This machine measures the latencies."""

from __future__ import annotations

import base64
import io
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import soundfile

from audiomarathon.benchmarks.task import Sample
from audiomarathon.compression.method import Base, Method
from audiomarathon.endpoint.client import Answer, Endpoint, EndpointError
from audiomarathon.engine.batches import Plan, heard
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.evaluate import Labelled, asked, error_record
from audiomarathon.engine.setup import Hardware, Setup
from audiomarathon.errors import AudioError, MethodError, ModelError, SettingsError, told, warn
from audiomarathon.models.checkpoint import Checkpoint
from audiomarathon.models.prompt import Prompt, Waveform
from audiomarathon.models.registry import get_model
from audiomarathon.records import Record
from audiomarathon.settings import AUTO, RunSettings
from audiomarathon.text import Say
from audiomarathon.thinking import without_thinking

SAMPLING_RATE = 16_000
_GIVE_UP = 6  # stop when so many samples in a row failed, plus two for each request that may run at once
_QUIET_S = 10.0  # seconds without a reply until a line tells the user why
_OF_SERVER = ("device", "device_map", "dtype", "attn_implementation", "sdpa_backends", "decode", "prefill_chunk")
_PATIENCE_S = 10.0  # seconds to wait for open requests when the run ends with an error


@dataclass(frozen=True)
class EndpointEngine(Engine):
    """An engine whose model answers over a network."""

    endpoint: Endpoint

    def answer(self, plan: Plan, pending: Mapping[str, Sequence[Method]], say: Say) -> Generator[Labelled]:
        """Send a request for every pending sample, at most `batch_size` at a time; yield (label of the setting,
        record).

        A timed run sends one request at a time, since several would slow each other.
        """
        (method,) = self.setup.methods
        samples = iter([sample for sample in plan.samples if sample.id in pending])
        at_once, last_trouble = plan.batch_size or 1, ""
        running: set[Future[Record]] = set()
        with ThreadPoolExecutor(at_once, "endpoint") as pool, self.endpoint:
            try:
                while True:
                    # Submit only as many as may run at once: waiting samples would hold their clips in memory.
                    running.update(
                        pool.submit(self._record, plan, sample) for sample in islice(samples, at_once - len(running))
                    )
                    if not running:
                        return
                    finished = wait(running, _QUIET_S, FIRST_COMPLETED).done
                    if not finished and self.endpoint.trouble not in ("", last_trouble):
                        last_trouble = self.endpoint.trouble
                        say(f"{self.endpoint.host}: {last_trouble}; retrying")
                    for future in finished:
                        yield method.label, future.result()
                        running.discard(future)  # not before the yield: after an interrupt, the handler yields the rest
                    if self.endpoint.given_up >= _GIVE_UP + 2 * at_once:
                        advice = "see the last sample's 'error'; run the same command again when it responds"
                        raise ModelError(f"{self.endpoint.host} stopped responding: {advice}")
            except (ModelError, KeyboardInterrupt) as error:
                patience = _PATIENCE_S if isinstance(error, ModelError) else 0.0
                for future in wait(running, patience).done:  # keep answers that arrive while the run ends
                    if not future.exception() and future.result().answered:
                        yield method.label, future.result()
                raise

    def _record(self, plan: Plan, sample: Sample) -> Record:
        """Send one sample's request; return the sample's record, with the reply or the error."""
        try:
            prompt = heard(plan, sample, SAMPLING_RATE)
            answer = self.endpoint.chat(messages_of(prompt), max_new_tokens=plan.max_new_tokens, seed=plan.seed)
        except (AudioError, EndpointError) as error:
            return error_record(plan, sample, told(error))
        if odd := _odd(answer, plan.max_new_tokens):
            warn(f"{self.endpoint.host}: {odd}")
        return replace(
            asked(plan, sample),
            reply=answer.text,
            finish=answer.finish,
            key_masked=answer.masked or None,
            clip_seconds=round(sum(map(len, prompt.clips)) / SAMPLING_RATE, 6),
            truncated=None,  # the server does not say whether it cuts audio
            prompt_tokens=answer.prompt_tokens,
            audio_tokens=answer.audio_tokens,
            kept_audio_tokens=answer.audio_tokens,
            new_tokens=answer.new_tokens,
            latency={"first_token": answer.first_token, "total": answer.total} if plan.batch_size is None else None,
            attempts=answer.attempts,
            cost=answer.cost,
        )

    def state(self) -> dict[str, Any]:
        """Describe the machine that sends the requests: load, CPU seconds and versions (:meth:`Engine.state`).

        GPUs are left out, since a server on this machine may use them for this model.
        """
        return {**super().state(), "gpu": [], "other_gpu_processes": []}


def _odd(answer: Answer, most_tokens: int) -> str:
    """Return a warning, with advice, about a reply that is empty, cut off or filtered by the server; "" for a normal
    reply.
    """
    if answer.finish == "content_filter":
        return "the content filter cut replies (filtered); change its settings"
    if without_thinking(answer.text).strip():
        return ""
    if answer.finish == "length":
        limit = f"the token limit ({most_tokens}) cut replies before their text began"
        return f"{limit}; raise MAX_NEW_TOKENS, or turn off thinking"
    if answer.text.strip():
        return "some replies have no text after their thinking; turn off thinking, or use another model"
    return "some replies are empty; check that the model takes audio, and its chat template on the server"


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as a list of one chat message: first the clips, then the text.

    The clips are 16-bit WAV files at `SAMPLING_RATE`, encoded in base64.
    """
    clips = [{"type": "input_audio", "input_audio": {"data": _wav(clip), "format": "wav"}} for clip in prompt.clips]
    return [{"role": "user", "content": [*clips, {"type": "text", "text": prompt.text}]}]


def _wav(clip: Waveform) -> str:
    """Return a clip as a 16-bit WAV file, encoded in base64."""
    stream = io.BytesIO()
    soundfile.write(stream, clip, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    return base64.b64encode(stream.getbuffer()).decode()


def open_endpoint(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    say: Say = lambda _line: None,
) -> EndpointEngine:
    """Return the engine for a model behind an endpoint, without sending a request.

    Raises
    ------
    MethodError
        A method is not `base`.
    SettingsError
        The address, the key or the model's name is missing, or a setting has no effect here.
    """
    if any(not isinstance(method, Base) for method in methods):
        raise MethodError(f"{model}: methods do not apply to a model behind an endpoint; allowed: base")
    _check_settings(settings)
    spec = get_model(model)
    endpoint = Endpoint.from_env(settings.model_path)
    say(f"model {endpoint.model} at {endpoint.host}")
    # The variant "endpoint" keeps these run folders apart from those of the same checkpoint on this machine.
    checkpoint = Checkpoint(endpoint.model, Path(endpoint.model), "endpoint")
    hardware = Hardware("endpoint", "as served", f"endpoint {endpoint.host}")
    setup = Setup(
        checkpoint,
        f"{endpoint.url} {endpoint.model}",
        hardware,
        replace(settings, attn_implementation="as served"),
        tuple(methods),
        spec,
    )
    return EndpointEngine(setup, None, endpoint)


def _check_settings(settings: RunSettings) -> None:
    """Raise SettingsError for settings that apply only to local models.

    At an endpoint they have no effect, but `run.json` would list them.
    """
    if settings.decode_tokens:
        raise SettingsError(f"DECODE_TOKENS={settings.decode_tokens}: an endpoint stops at the end token; allowed: 0")
    if settings.batch_size == AUTO:
        raise SettingsError("BATCH_SIZE=auto: an endpoint's memory is unknown; allowed: a whole number from 1")
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in _OF_SERVER and value != field.default:
            raise SettingsError(f"{field.metadata['env']}={value}: leave it out; the endpoint's server decides that")
