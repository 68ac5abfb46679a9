"""Evaluating a model behind an endpoint: requests in flight, one writer, latencies as a client sees them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.audio import decode as audio
from audiomarathon.benchmarks.task import Sample
from audiomarathon.compression.method import Base, Method
from audiomarathon.engine.engine import Engine
from audiomarathon.engine.setup import Hardware, Setup
from audiomarathon.errors import AudioError, MethodError, ModelError, SettingsError
from audiomarathon.models.checkpoint import Checkpoint
from audiomarathon.models.registry import get_model
from audiomarathon.records import Record
from audiomarathon.settings import RunSettings

if TYPE_CHECKING:
    from audiomarathon.endpoint.client import Answer, Endpoint
    from audiomarathon.engine.batches import Plan
    from audiomarathon.runs.folder import Job

_PRICES = ("OPENAI_PRICE_IN", "OPENAI_PRICE_OUT", "OPENAI_PRICE_AUDIO")
_GIVE_UP = 6  # samples in a row that fail in spite of all attempts, and two rounds of those in flight
_QUIET_S = 10.0  # without any sample done, after which it is said what is amiss
_PATIENCE_S = 10.0  # for requests that are on their way when the run cannot go on


@dataclass(frozen=True)
class Prices:
    """What a million tokens cost, in whatever currency: of text in the prompt, of the reply, of audio in the prompt."""

    text: float
    reply: float
    audio: float | None = None

    def cost(self, answer: Answer) -> float | None:
        """Return what a reply cost; None where the server does not count what it takes to know."""
        heard = 0 if self.audio is None else answer.audio_tokens
        if answer.prompt_tokens is None or answer.new_tokens is None or heard is None:
            return None
        text = (answer.prompt_tokens - heard) * self.text
        return (text + heard * (self.audio or 0.0) + answer.new_tokens * self.reply) / 1e6


@dataclass(frozen=True)
class EndpointEngine(Engine):
    """A model that answers over a network.

    Attributes
    ----------
    prices
        None where they are not known; then there is no cost on record.
    """

    endpoint: Endpoint
    prices: Prices | None = None

    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Ask for every sample that has no reply yet; at most so many requests are in flight at a time.

        Timed runs ask one by one: a latency under load says as much about the load as about the model.
        """
        from audiomarathon.engine.evaluate import pending_methods
        from audiomarathon.engine.progress_view import watching

        (job,) = jobs
        pending = pending_methods(plan, jobs)
        samples = iter([sample for sample in plan.samples if sample.id in pending])
        at_once, told = plan.batch_size or 1, ""
        running: set[Future[Record]] = set()
        with (
            watching(plan, jobs, self.say, progress=self.progress) as bar,
            ThreadPoolExecutor(at_once, "endpoint") as pool,
            self.endpoint,
        ):
            try:
                while True:
                    # No more is started than may run, so that clips wait on disk and not in memory.
                    running.update(
                        pool.submit(self._record, plan, one) for one in islice(samples, at_once - len(running))
                    )
                    if not running:
                        return
                    finished = wait(running, _QUIET_S, FIRST_COMPLETED).done
                    if not finished and self.endpoint.trouble not in ("", told):
                        told = self.endpoint.trouble
                        self.say(f"{self.endpoint.host}: {told}; tried again")
                    for future in finished:
                        job.folder.append(future.result())
                        running.discard(future)
                        bar.update(1)
                    if self.endpoint.given_up >= _GIVE_UP + 2 * at_once:
                        last = "its last error is on record; run the same command again when it is back"
                        raise ModelError(f"{self.endpoint.host} answers nothing any more: {last}")
            except (ModelError, KeyboardInterrupt) as error:
                patience = _PATIENCE_S if isinstance(error, ModelError) else 0.0
                for future in wait(running, patience).done:  # an answer beside the one that ends the run is kept
                    if not future.exception() and future.result().answered:
                        job.folder.append(future.result())
                raise

    def _record(self, plan: Plan, sample: Sample) -> Record:
        """Return the record of one sample: its reply, or why there is none."""
        from audiomarathon.endpoint.client import EndpointError
        from audiomarathon.engine.batches import reason_of
        from audiomarathon.engine.evaluate import asked, error_record

        try:
            request, seconds = self._request(plan, sample)
            answer = self.endpoint.send(request, plan.max_new_tokens)
        except (AudioError, EndpointError) as error:
            return error_record(plan, sample, reason_of(error))
        return replace(
            asked(plan, sample),
            reply=answer.text,
            finish=answer.finish,
            key_masked=answer.masked or None,
            clip_seconds=round(seconds, 6),
            truncated=None,  # whether the server cuts what it hears, it does not say
            prompt_tokens=answer.prompt_tokens,
            audio_tokens=answer.audio_tokens,
            kept_audio_tokens=answer.audio_tokens,
            new_tokens=answer.new_tokens,
            latency={"first_token": answer.first_token, "total": answer.total} if plan.batch_size is None else None,
            attempts=answer.attempts,
            cost=self.prices.cost(answer) if self.prices else None,
        )

    def _request(self, plan: Plan, sample: Sample) -> tuple[bytes, float]:
        """Return what asks a sample's question, and the length of its clips, which it needs no longer."""
        from audiomarathon.endpoint.client import SAMPLING_RATE
        from audiomarathon.engine.batches import prompt_of, unchanged_clips

        with unchanged_clips(plan, sample):
            clips = tuple(audio.decode(path, SAMPLING_RATE) for path in sample.clips)
        prompt = prompt_of(plan, sample, clips)
        request = self.endpoint.request(prompt, max_new_tokens=plan.max_new_tokens, seed=plan.seed)
        return request, sum(len(clip) for clip in clips) / SAMPLING_RATE

    def certificate(self) -> dict[str, Any] | None:
        """See :meth:`Engine.certificate`. Nobody can certify what is not seen."""
        return None

    def machine(self) -> dict[str, Any]:
        """See :meth:`Engine.machine`."""
        from audiomarathon.engine.environment import environment

        return {"environment": environment(), "other_gpu_processes": []}

    def state(self) -> dict[str, Any]:
        """See :meth:`Engine.state`: that of this machine, which sends the requests."""
        from audiomarathon.engine.environment import cpu_seconds, load

        return {"gpu": [], "load": load(os.getpid()), "cpu_s": {str(os.getpid()): cpu_seconds()}}


def open_endpoint(
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    say: Callable[[str], None] = lambda _line: None,
    progress: bool | None = None,
    env: Mapping[str, str] | None = None,
) -> EndpointEngine:
    """Return the engine of a model behind an endpoint; nothing is asked of it yet.

    Raises
    ------
    MethodError
        For anything but `base`.
    SettingsError
        When the address, the key or the model's name is missing, or a setting means nothing here.
    """
    from audiomarathon.endpoint.client import Endpoint

    env = os.environ if env is None else env
    if any(not isinstance(method, Base) for method in methods):
        raise MethodError(f"{model}: nothing of a model behind an endpoint can be pruned; allowed: base")
    _check_settings(settings)
    spec = get_model(model)
    endpoint = Endpoint.from_env(settings.model_path, env)
    say(f"model {endpoint.model} at {endpoint.host}")
    # A folder of its own, beside that of the same checkpoint run here.
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
    return EndpointEngine(setup, say, progress, None, endpoint, _prices(env))


def _check_settings(settings: RunSettings) -> None:
    """Refuse settings of a model that runs here: ignored they would label the records with what is not so."""
    if settings.decode_tokens:
        raise SettingsError(f"DECODE_TOKENS={settings.decode_tokens}: an endpoint cannot be made to go on; allowed: 0")
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in ("device", "device_map", "dtype", "attn_implementation") and value != field.default:
            raise SettingsError(
                f"{field.metadata['env']}={value}: how the model runs is its server's to say; leave this out"
            )


def _prices(env: Mapping[str, str]) -> Prices | None:
    given = {name: env[name] for name in _PRICES if env.get(name)}
    if not given:
        return None
    try:
        values = {name: float(text) for name, text in given.items()}
    except ValueError:
        values = {}
    if not {*_PRICES[:2]} <= values.keys() or not all(0 <= value < inf for value in values.values()):
        shown = ", ".join(f"{name}={env.get(name, '')}" for name in _PRICES)
        raise SettingsError(f"{shown}: allowed are prices of a million tokens, the first two together, from 0")
    return Prices(*(values.get(name) for name in _PRICES))  # type: ignore[arg-type]
