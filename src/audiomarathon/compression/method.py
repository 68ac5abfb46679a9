"""The base class of compression methods: frozen dataclasses that change a model for the length of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.errors import LogitsError, MethodError
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    import torch

    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.generation import Generation
    from audiomarathon.models.prompt import Inputs


#: Methods that can drop states of an encoder-decoder; for messages.
STATES_DROPPED_BY = (
    "random, frame, merge_adjacent, merge_frame, at the input (--at input) or in the tower (--at tower); "
    "divprune, keep_loud, keep_speech, at the input"
)


def kept_count(total: int, ratio: float) -> int:
    """Return k, the number of tokens to keep out of `total` when the fraction `ratio` of them is removed.

    With N tokens and ratio r, k = min(N, max(1, N − ⌊N·r + ½⌋)). r is the decimal number that the user wrote, and
    halves are rounded up: ratio 0.3 of 5 tokens removes ⌊1.5 + ½⌋ = 2. k is 0 only if N is 0.
    """
    removed = int((total * Decimal(str(ratio)) + Decimal("0.5")).to_integral_value(ROUND_FLOOR))
    return min(total, max(1, total - removed))


def at_stride(total: int, kept: int) -> torch.Tensor:
    """Return the indices that keep k = `kept` of N = `total` tokens at a uniform stride: ⌊i·N/k⌋ for i < k."""
    import torch

    return torch.arange(kept) * total // max(kept, 1)


def plain(ratio: float) -> str:
    """Return a ratio as text, without the error of binary floats: 0.3 for 0.30000000000000004."""
    return f"{Decimal(str(round(ratio, 12))).normalize():f}"


@dataclass(frozen=True)
class Method(ABC):
    """A compression method: a way to reduce the cost of long audio.

    :meth:`generate` applies a method during one `generate` call. Methods work by hooks, which are always removed after
    the call. They contain no copies of modelling code.

    Class attributes: `key` (the name users type), `title` (one line), `paper` (arXiv number or ""), `saves` (what gets
    cheaper), `needs` (requirements on model and settings), `note` (a caveat for readers of its results), `batches`
    (whether it supports several samples at once). If a method has a field `layer`, it gets the value of
    `PRUNE_LAYER_IDX`.
    """

    key: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    saves: ClassVar[str]

    needs: ClassVar[str] = ""
    note: ClassVar[str] = ""
    batches: ClassVar[bool] = True
    package: ClassVar[tuple[str, str]] = ("", "")
    """Import name of an optional package that the method needs, and the command that installs it."""
    static_decode: ClassVar[bool] = False
    """Whether decode needs only the method's trace, and none of its code, so that decode may run as a CUDA graph."""
    chunked_prefill: ClassVar[bool] = False
    """Whether the method keeps the same tokens or entries if each layer of the LLM processes the prompt in chunks."""

    ratio: float = 0.0

    @abstractmethod
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> AbstractContextManager[Trace]:
        """Return a context manager that applies the method to a model for one batch, and yields the trace.

        The trace is the method's report about what it kept.

        Parameters
        ----------
        lm
            The loaded model.
        inputs
            The batch: audio mask and padding mask of shape (B, S), and a seed per sample.
        """

    def generate(self, lm: AudioLM, inputs: Inputs, **options: Any) -> Generation:
        """Generate replies to a batch with the method applied; `options` are those of :meth:`AudioLM.generate`.

        Raises
        ------
        LogitsError
            The model's logits hold NaN or infinite numbers.
        MethodError
            The caches after prefill are not as long as the method predicted, or a position was kept twice or not
            in order.
        """
        try:
            done = lm.generate(
                inputs,
                self.applied_to(lm, inputs),
                static=self.decodes_statically,
                chunked=self.prefills_in_chunks,
                **options,
            )
        except LogitsError as error:
            raise LogitsError(f"{self.label}: {error}") from None
        if done.expected_lengths not in (None, done.kv_lengths):
            raise MethodError(
                f"{self.label}: after prefill the layers' caches have {done.kv_lengths} entries, "
                f"but the method predicted {done.expected_lengths}"
            )
        if any((row.diff() <= 0).any() for row in done.kept_positions or ()):
            raise MethodError(f"{self.label} kept a prompt position twice, or not in order")
        return done

    def check_config(self, config: Any) -> None:  # noqa: B027
        """Raise an error if the method cannot work with a decoder's config; by default, never.

        A sweep's plan calls this without weights.

        Raises
        ------
        MethodError
            The method cannot work; the message says why, and what is allowed.
        """

    def check_family(self, family: type[AudioLM], depth: int) -> None:  # noqa: B027
        """Raise an error if the method cannot work with a model family, before its weights are loaded; by default,
        never.

        `depth` is the number of layers of the family's audio tower, or 0 if it is unknown.

        Raises
        ------
        MethodError
            The method cannot work; the message says why, and what is allowed.
        """

    def check(self, lm: AudioLM) -> None:
        """Raise an error if the method cannot work with a loaded model; called before the first sample.

        Raises
        ------
        MethodError
            The method cannot work; the message says why, and what is allowed.
        """
        self.check_config(lm.decoder.config)

    @property
    def changes_tower(self) -> bool:
        """Whether the method changes the audio tower's output, so that other settings' output cannot be reused."""
        return getattr(self, "at", "") == "tower" and self.ratio > 0

    @property
    def decodes_statically(self) -> bool:
        """Whether decode may run as a CUDA graph: the value of `static_decode`.

        It is False if a subclass overrides `applied_to` without stating `static_decode` itself.
        """
        return self._says("static_decode")

    @property
    def prefills_in_chunks(self) -> bool:
        """Whether prefill may run in chunks: the value of `chunked_prefill`.

        It is False if a subclass overrides `applied_to` without stating `chunked_prefill` itself.
        """
        return self._says("chunked_prefill")

    def _says(self, fact: str) -> bool:
        says: Any = next(kind for kind in type(self).__mro__ if fact in vars(kind))
        return bool(getattr(says, fact)) and says.applied_to is type(self).applied_to

    @property
    def label(self) -> str:
        """Name for folders and tables, such as `frame-0.5-layer2`."""
        layer, scope = getattr(self, "layer", None), getattr(self, "scope", "audio")
        name = f"{self.key}-{plain(self.ratio)}" + (f"-layer{layer}" if layer is not None and self.ratio else "")
        return name if scope == "audio" else f"{name}-{scope}"

    def parts(self) -> dict[str, object]:
        """Return {name: object} of the objects whose source code helps to tell runs apart: the method itself."""
        return {self.key: self}

    def parameters(self) -> dict[str, Any]:
        """Return the method's fields as {name: value}, which tell runs apart."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Base(Method):
    """The method that drops nothing: the run without compression, with which all other settings are compared."""

    key: ClassVar[str] = "base"
    title: ClassVar[str] = "nothing dropped; the reference"
    saves: ClassVar[str] = "–"
    static_decode: ClassVar[bool] = True
    chunked_prefill: ClassVar[bool] = True

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
        """Change nothing inside the `with` block, and yield the method's report (trace).

        The report says only how similar neighbouring audio tokens are (`redundancy`).
        """
        from audiomarathon.compression.redundancy import redundancy_measured

        trace = Trace(tuple(inputs.audio_tokens))
        with nullcontext() if lm.cross else redundancy_measured(lm, inputs, trace):
            yield trace
