"""Evaluating a model behind an endpoint: requests in flight, one writer, latencies as a client sees them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon import audio
from audiomarathon.errors import AudioError, MethodError, SettingsError
from audiomarathon.evaluation.session import Engine, Hardware
from audiomarathon.models.checkpoint import Checkpoint
from audiomarathon.models.registry import get_model
from audiomarathon.pruning.method import Base, Method
from audiomarathon.settings import RunSettings
from audiomarathon.tasks.task import Sample

if TYPE_CHECKING:
    from audiomarathon.evaluation.batches import Plan
    from audiomarathon.evaluation.evaluate import Job
    from audiomarathon.models.openai_endpoint import Endpoint

_PRICES = ("OPENAI_PRICE_IN", "OPENAI_PRICE_OUT")


@dataclass(frozen=True)
class EndpointEngine(Engine):
    """A model that answers over a network.

    Attributes
    ----------
    prices
        Of a million prompt tokens and a million new tokens, in whatever currency; None where they are not known.
    """

    endpoint: Endpoint
    prices: tuple[float, float] | None = None

    def evaluate(self, plan: Plan, jobs: Sequence[Job]) -> None:
        """Ask for every sample that has no reply yet; at most so many requests are in flight at a time.

        Timed runs ask one by one: a latency under load says as much about the load as about the model.
        """
        from audiomarathon.evaluation.evaluate import pending_methods
        from audiomarathon.evaluation.live import watching

        (job,) = jobs
        pending = pending_methods(plan, jobs)
        todo = [sample for sample in plan.samples if sample.id in pending]
        in_flight = plan.batch_size or 1
        with (
            watching(plan, jobs, self.say, progress=self.progress) as bar,
            ThreadPoolExecutor(in_flight, "endpoint") as pool,
        ):
            waiting: set[Future[dict[str, Any]]] = set()
            samples = iter(todo)
            try:
                while True:
                    # No more is started than may run, so that clips wait on disk and not in memory.
                    for sample in _some(samples, in_flight - len(waiting)):
                        waiting.add(pool.submit(self._record, plan, sample))
                    if not waiting:
                        return
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        job.folder.append(future.result())
                        bar.update(1)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _record(self, plan: Plan, sample: Sample) -> dict[str, Any]:
        """Return the record of one sample: its reply, or why there is none."""
        from audiomarathon.evaluation.batches import prompt_of, reason_of
        from audiomarathon.evaluation.evaluate import error_record
        from audiomarathon.models.openai_endpoint import SAMPLING_RATE, EndpointError

        try:
            clips = tuple(audio.decode(path, SAMPLING_RATE) for path in sample.clips)
            prompt = prompt_of(plan, sample, clips)
            answer = self.endpoint.ask(prompt, max_new_tokens=plan.max_new_tokens, seed=plan.seed)
        except (AudioError, EndpointError, OSError) as error:
            return error_record(
                plan, sample, self.endpoint.clean(error) if isinstance(error, OSError) else reason_of(error)
            )
        reference = plan.task.reference(sample)
        return {
            "id": sample.id,
            "cluster": sample.cluster,
            "clips": plan.clips[sample.id] if plan.clips else None,
            "reply": answer.text,
            "finish": answer.finish,
            **plan.task.score(answer.text, reference),
            "reference": reference,
            "error": None,
            "clip_seconds": round(sum(len(clip) for clip in clips) / SAMPLING_RATE, 6),
            "truncated": False,
            **({"control": plan.control} if plan.control else {}),
            "prompt_tokens": answer.prompt_tokens,
            "audio_tokens": answer.audio_tokens,
            "kept_audio_tokens": answer.audio_tokens,
            "kv_lengths": None,
            "kv_bytes": None,
            "new_tokens": answer.new_tokens,
            "time": None,
            "peak_memory_bytes": None,
            "latency": {"first_token": answer.first_token, "total": answer.total} if plan.batch_size is None else None,
            "attempts": answer.attempts,
            "cost": self._cost(answer.prompt_tokens, answer.new_tokens),
        }

    def _cost(self, prompt_tokens: int | None, new_tokens: int | None) -> float | None:
        if self.prices is None or prompt_tokens is None or new_tokens is None:
            return None
        return (prompt_tokens * self.prices[0] + new_tokens * self.prices[1]) / 1e6

    def certificate(self) -> dict[str, Any] | None:
        """See :meth:`Engine.certificate`. Nobody can certify what is not seen."""
        return None

    def machine(self) -> dict[str, Any]:
        """See :meth:`Engine.machine`."""
        from audiomarathon.evaluation.environment import environment

        return {"environment": environment(), "gpu_before": [], "other_gpu_processes": []}

    def gpu_state(self) -> list[dict[str, str]]:
        """See :meth:`Engine.gpu_state`."""
        return []


def _some(samples: Any, count: int) -> list[Sample]:
    return [sample for _, sample in zip(range(count), samples, strict=False)]


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
    from audiomarathon.models.openai_endpoint import Endpoint

    env = os.environ if env is None else env
    if any(not isinstance(method, Base) for method in methods):
        raise MethodError(f"{model}: nothing of a model behind an endpoint can be pruned; allowed: base")
    if settings.decode_tokens:
        raise SettingsError(f"DECODE_TOKENS={settings.decode_tokens}: an endpoint cannot be made to go on; allowed: 0")
    spec = get_model(model)
    endpoint = Endpoint.from_env(settings.model_path, env)
    say(f"model {endpoint.model} at {endpoint.host}")
    checkpoint = Checkpoint(endpoint.model, Path(endpoint.model))
    hardware = Hardware("endpoint", "as served", f"endpoint {endpoint.host}")
    return EndpointEngine(
        checkpoint,
        f"{endpoint.url} {endpoint.model}",
        hardware,
        settings,
        tuple(methods),
        spec,
        say,
        progress,
        None,
        endpoint,
        _prices(env),
    )


def _prices(env: Mapping[str, str]) -> tuple[float, float] | None:
    given = [env.get(name, "") for name in _PRICES]
    if not any(given):
        return None
    try:
        into, out = (float(text) for text in given)
    except ValueError:
        raise SettingsError(
            f"{_PRICES[0]}={given[0]}, {_PRICES[1]}={given[1]}: allowed are two numbers, the prices of a million tokens"
        ) from None
    return into, out
