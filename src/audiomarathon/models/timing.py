"""Time the encoder, prefill and decode of a `generate` call, and read peak memory.

All stages are timed in one `generate` call. The calls of the audio tower are the stage `encoder`. Prefill ends at the
first call of a logits processor, and the rest is decode. So nothing runs twice, and times of different calls are never
subtracted from each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import LogitsProcessor


@dataclass(frozen=True)
class Stages:
    """Seconds of each stage of one `generate` call.

    Attributes
    ----------
    encoder
        Time in the audio tower.
    llm_prefill
        Time from the start of `generate` to the first token's logits, without the audio tower.
    decode
        Time from the first token's logits to the end, without `decode_setup`.
    decode_setup
        Time to prepare decode as a CUDA graph; None if decode ran eagerly.
    """

    encoder: float
    llm_prefill: float
    decode: float
    decode_setup: float | None = None

    @property
    def prefill(self) -> float:
        """Time to first token: the seconds of encoder and LLM prefill together."""
        return self.encoder + self.llm_prefill


class Clock:
    """Takes times with `perf_counter`, on a CPU or on several GPUs.

    On a CPU, a call has done its work when it returns. With several GPUs, wait for all of them at each mark, since CUDA
    events of different GPUs cannot be compared.
    """

    captures: ClassVar[bool] = True
    """Whether decode may be captured as a CUDA graph while this clock runs."""

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = devices

    def mark(self) -> Any:
        """Return the present moment as a mark, to pass to :meth:`seconds`."""
        self.synchronize()
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks; call :meth:`synchronize` first."""
        return float(end - start)

    def synchronize(self) -> None:
        """Wait until all GPUs have finished their work; on a CPU, return at once."""
        for device in self.devices:
            torch.cuda.synchronize(device)

    def reset_peak_memory(self) -> None:
        """Start a new measurement of the peak of GPU memory, which :meth:`peak_memory_bytes` returns."""
        for device in self.devices:
            torch.cuda.reset_peak_memory_stats(device)

    def peak_memory_bytes(self) -> int | None:
        """Return the bytes of GPU memory at the peak since the last reset, summed over GPUs; None on a CPU.

        On a CPU, only the peak of the whole process is known.
        """
        return sum(map(torch.cuda.max_memory_allocated, self.devices)) if self.devices else None


class CudaClock(Clock):
    """Takes times with CUDA events on one GPU's stream, so that a mark never waits for the GPU."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.devices[0]))
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1000.0


def make_clock(model: nn.Module) -> Clock:
    """Return the clock that fits the devices that hold a model's parameters."""
    devices = sorted({p.device for p in model.parameters() if p.device.type == "cuda"}, key=lambda d: d.index or 0)
    return CudaClock(devices) if len(devices) == 1 else Clock(devices)


class TokenWatch(LogitsProcessor):  # type: ignore[misc]
    """A logits processor that leaves the logits as they are, and only watches them.

    When the first token's logits exist, the functions `calls` are run once. Each step's highest logit is kept; it is
    NaN if any logit is NaN.

    One processor runs all functions, because transformers inspects each processor's signature at every token (9 µs).
    """

    def __init__(self, *calls: Callable[[], None]) -> None:
        self._calls = calls
        self._highest: list[torch.Tensor] = []  # one per step, kept on the GPU so that nothing waits for it

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:  # noqa: ARG002
        calls, self._calls = self._calls, ()
        for call in calls:
            call()
        self._highest.append(scores.amax(-1))
        return scores

    def add(self, highest: torch.Tensor) -> None:
        """Store the highest logits, shape (steps, B), of steps that ran without calling this processor, after those
        stored so far.
        """
        self._highest += highest.unbind()

    def first_not_finite(self, row: int, steps: int) -> int | None:
        """Return the first step, from 1, whose highest logit is NaN or infinite; None if there is no such step.

        Only the first `steps` steps of the sample in this `row` of the batch are checked.
        """
        finite = torch.stack(self._highest)[:steps, row].isfinite().tolist()
        return None if all(finite) else finite.index(False) + 1


class StageTimer:
    """Times the stages of one `generate` call.

    Wrap the call in :meth:`watching`, with :meth:`start` before and :meth:`stop` after it. Call
    :meth:`mark_first_token` when the first token's logits exist.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._encoder: list[tuple[Any, Any]] = []
        self._encoder_peaks: list[int] = []
        self._start: Any = None
        self._first: Any = None
        self._end: Any = None
        self._setup: list[tuple[Any, Any]] | None = None

    @contextmanager
    def watching(self, audio_tower: nn.Module) -> Iterator[None]:
        """Time each call of the audio tower inside the `with` block, and note the peak of GPU memory at its end."""
        begun: list[Any] = []

        def before(_module: nn.Module, _args: Any) -> None:
            begun.append(self.clock.mark())

        def after(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._encoder.append((begun.pop(), self.clock.mark()))
            # Keep the tower's peak separately: settings share one run of the tower, and only the LLM's peaks differ.
            if (peak := self.clock.peak_memory_bytes()) is not None:
                self._encoder_peaks.append(peak)
                self.clock.reset_peak_memory()

        with audio_tower.register_forward_pre_hook(before), audio_tower.register_forward_hook(after):
            yield

    def start(self) -> None:
        """Wait for the device, reset the measurement of its peak memory, and mark the start of the `generate` call."""
        self.clock.synchronize()
        self.clock.reset_peak_memory()
        self._start = self.clock.mark()

    def mark_first_token(self) -> None:
        """Mark the end of prefill: the first token's logits exist."""
        self._first = self.clock.mark()

    def stop(self, end: Any = None, setup: list[tuple[Any, Any]] | None = None) -> None:
        """Mark the end of the `generate` call, then wait for the device.

        `end` is a mark to use as the end instead of this moment. `setup` has pairs of marks around the preparation of
        decode as a CUDA graph. If decode ran eagerly (without a graph), both are None.
        """
        self._end, self._setup = self.clock.mark() if end is None else end, setup
        self.clock.synchronize()

    def encoder_peak_memory_bytes(self) -> int | None:
        """Return the peak of GPU memory until the audio tower was done; None if the tower did not run, or on a CPU."""
        return max(self._encoder_peaks, default=None)

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of GPU memory of the whole `generate` call; None on a CPU. Call :meth:`stop` first."""
        peak = self.clock.peak_memory_bytes()
        return None if peak is None else max([peak, *self._encoder_peaks])

    def stages(self, asides: Sequence[tuple[Any, Any]] = ()) -> Stages:
        """Return the seconds of each stage; call :meth:`stop` first.

        `asides` are pairs of marks around measurements that count for no stage; their time is subtracted from LLM
        prefill.
        """
        encoder = sum(self.clock.seconds(begin, end) for begin, end in self._encoder)
        prefill = self.clock.seconds(self._start, self._first)
        prefill -= sum(self.clock.seconds(begin, end) for begin, end in asides)
        decode, setup = self.clock.seconds(self._first, self._end), None
        if self._setup is not None:
            setup = sum(self.clock.seconds(begin, end) for begin, end in self._setup)
            decode -= setup
        return Stages(encoder, prefill - encoder, decode, setup)


class CacheProbe:
    """Reads the sizes of the KV cache at the end of prefill: each layer's number of positions, and the bytes of all
    layers.

    For an encoder-decoder, the lengths are those of all layers' self-attention, then those of their cross-attention.
    """

    def __init__(self) -> None:
        self.lengths: tuple[int, ...] = ()
        self.bytes = 0
        self._cache: Any = None

    def watching(self, decoder: nn.Module) -> RemovableHandle:
        """Hook the decoder to remember the KV cache that it gets in prefill, until :meth:`read` is called.

        Return the hook's handle.
        """

        def remember(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
            self._cache = kwargs.get("past_key_values")
            handle.remove()

        handle = decoder.register_forward_pre_hook(remember, with_kwargs=True)
        return handle

    def read(self) -> None:
        """Store the KV cache's sizes in `lengths` and `bytes`, then forget the cache.

        Call this at the end of prefill.
        """
        caches = [getattr(self._cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")]
        parts = [cache for cache in caches if cache is not None] or [self._cache] * (self._cache is not None)
        layers = [layer for part in parts for layer in part.layers if torch.is_tensor(layer.keys)]
        self.lengths = tuple(int(layer.keys.shape[-2]) for layer in layers)
        self.bytes = sum(part.nbytes for layer in layers for part in (layer.keys, layer.values))
        self._cache = None
