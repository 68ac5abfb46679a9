"""What a method is: a small frozen dataclass that changes a model for the length of one `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, ClassVar

from audiomarathon.errors import LogitsError, MethodError
from audiomarathon.models.trace import Trace

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM
    from audiomarathon.models.generation import Generation
    from audiomarathon.models.prompt import Inputs


def kept_count(total: int, ratio: float) -> int:
    """Return how many of `total` audio tokens stay when the fraction `ratio` is removed.

    k = min(N, max(1, N − ⌊N·r + ½⌋)), with r as the decimal number that the user wrote, so that 0.3 of 5 removes
    ⌊1.5 + ½⌋ = 2 and not what binary floats or banker's rounding make of it. No token stays only where there was none.
    """
    removed = int((total * Decimal(str(ratio)) + Decimal("0.5")).to_integral_value(ROUND_FLOOR))
    return min(total, max(1, total - removed))


def plain(ratio: float) -> str:
    """Return a ratio as people write it: 0.3 for 0.30000000000000004, and all digits of one that has them."""
    return f"{Decimal(str(round(ratio, 12))).normalize():f}"


@dataclass(frozen=True)
class Method(ABC):
    """A way to spend less on long audio.

    A method is applied around one `generate` call, by :meth:`generate`. It works by hooks that come off in `finally`;
    no code of a model is copied or patched for good.

    Class attributes: `key` (what users type), `title` (one line), `paper` (arXiv number or ""), `saves` (what gets
    cheaper), `needs` (what it asks of model and settings), `note` (what a reader of its figures has to know), `batches`
    (whether several samples may run at once). A method with a field `layer` is given `PRUNE_LAYER_IDX` there.
    """

    key: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    saves: ClassVar[str]

    needs: ClassVar[str] = ""
    note: ClassVar[str] = ""
    batches: ClassVar[bool] = True

    ratio: float = 0.0

    @abstractmethod
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> AbstractContextManager[Trace]:
        """Apply the method to a model for one batch.

        Parameters
        ----------
        lm
            The loaded model.
        inputs
            The batch: audio mask and padding mask of shape (B, S), and a seed a sample.
        """

    def generate(self, lm: AudioLM, inputs: Inputs, **options: Any) -> Generation:
        """Generate for a batch with the method applied; `options` are those of :meth:`AudioLM.generate`.

        Raises
        ------
        LogitsError
            When the model's logits are not finite under the method.
        MethodError
            When the cache after prefill is not as long as the method says, or a position was kept twice.
        """
        try:
            done = lm.generate(inputs, self.applied_to(lm, inputs), **options)
        except LogitsError as error:
            raise LogitsError(f"{self.label}: {error}") from None
        if done.expected_lengths not in (None, done.kv_lengths):
            raise MethodError(
                f"{self.label} did not do what it says: the cache holds {done.kv_lengths} entries a layer, "
                f"{done.expected_lengths} were to stay"
            )
        if any((row.diff() <= 0).any() for row in done.kept_positions or ()):
            raise MethodError(f"{self.label} kept a prompt position twice, or not in order")
        return done

    def check_config(self, config: Any) -> None:  # noqa: B027
        """Refuse what the decoder's config alone rules out; a plan asks this without weights.

        Raises
        ------
        MethodError
            Saying why, and what is possible.
        """

    def check(self, lm: AudioLM) -> None:
        """Refuse a model that cannot carry the method, before the first sample.

        Raises
        ------
        MethodError
            Saying why, and what is possible.
        """
        self.check_config(lm.decoder.config)

    @property
    def label(self) -> str:
        """Name for folders and tables: `frame-0.5-layer2`; no binary noise in the ratio."""
        layer, scope = getattr(self, "layer", None), getattr(self, "scope", "audio")
        name = f"{self.key}-{plain(self.ratio)}" + (f"-layer{layer}" if layer is not None and self.ratio else "")
        return name if scope == "audio" else f"{name}-{scope}"

    def parts(self) -> dict[str, object]:
        """Return the objects whose code decides what is done, by their names."""
        return {self.key: self}

    def parameters(self) -> dict[str, Any]:
        """Every field of the method, for records and identities."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class Base(Method):
    """Nothing is dropped: what every other setting is measured against."""

    key: ClassVar[str] = "base"
    title: ClassVar[str] = "nothing dropped; the reference"
    saves: ClassVar[str] = "–"

    @contextmanager
    def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:  # noqa: ARG002
        """See :meth:`Method.applied_to`."""
        yield Trace(tuple(inputs.audio_tokens))
