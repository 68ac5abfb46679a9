"""Nonsense from a method or from the weights is an error, never a record that looks sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.press import Cached, KVPress
from audiomarathon.compression.presses.knorm import Knorm
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.token_pruner import Evidence, TokenPruner
from audiomarathon.errors import MethodError, ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.trace import Trace


def generate(lm: AudioLM, prompts: list[Prompt], method: Method, **more: Any) -> Any:
    return method.generate(lm, lm.prepare(prompts), max_new_tokens=3, **more)


def _moved(evidence: Evidence) -> torch.Tensor:
    evidence.positions.fill_(int(evidence.positions[0]))
    return torch.arange(evidence.n_keep)


@dataclass(frozen=True)
class Pruner(TokenPruner):
    """Select tokens by `choice`."""

    key: ClassVar[str] = "mine"
    title: ClassVar[str] = "nonsense"

    choice: Callable[[Evidence], torch.Tensor] = _moved

    def select(self, evidence: Evidence) -> torch.Tensor:
        return self.choice(evidence)


@dataclass(frozen=True)
class ScoredPruner(Pruner):
    """Select tokens during prefill."""

    scored: ClassVar[bool] = True


@pytest.mark.parametrize("kind", [Pruner, ScoredPruner])
@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (lambda evidence: torch.zeros(evidence.n_keep, dtype=torch.long), "twice"),
        (
            lambda evidence: torch.arange(evidence.n_keep) + len(evidence.positions) - evidence.n_keep + 1,
            "out of range",
        ),
        (lambda evidence: -1 - torch.arange(evidence.n_keep), "out of range"),
        (_moved, "changed .*positions"),
        (lambda evidence: torch.arange(evidence.n_keep).float(), "float32"),
    ],
    ids=["twice", "beyond the end", "negative", "positions changed", "not integers"],
)
def test_an_invalid_selection_by_a_pruner_is_an_error(
    lm: AudioLM, prompts: list[Prompt], kind: type[Pruner], choice: Callable[..., Any], said: str
) -> None:
    with pytest.raises(MethodError, match=f"^mine-0.5-layer2:? .*{said}"):
        generate(lm, prompts, kind(0.5, choice=choice))


def test_tokens_selected_in_any_order_give_the_same_logits(lm: AudioLM, prompts: list[Prompt]) -> None:
    sound = generate(lm, prompts, Pruner(0.5, choice=lambda evidence: torch.arange(evidence.n_keep)), keep_logits=True)
    turned = Pruner(0.5, choice=lambda evidence: torch.arange(evidence.n_keep).flip(0).int())
    assert torch.equal(generate(lm, prompts, turned, keep_logits=True).logits, sound.logits)


def _one_nan_in_the_last_layer(cached: Cached) -> torch.Tensor:
    score = torch.rand(cached.key.shape[:2])
    if cached.layer == 3:
        score[0, cached.candidates[4]] = torch.nan
    return score


def _candidates_moved(cached: Cached) -> torch.Tensor:
    cached.candidates.sub_(1)
    return torch.rand(cached.key.shape[:2])


@dataclass(frozen=True)
class Press(KVPress):
    """Score entries by `scoring`."""

    key: ClassVar[str] = "mine"
    title: ClassVar[str] = "nonsense"

    scoring: Callable[[Cached], torch.Tensor] = _candidates_moved

    def score(self, cached: Cached) -> torch.Tensor:
        return self.scoring(cached)


@pytest.mark.parametrize(
    ("scoring", "said"),
    [
        (lambda cached: torch.full(cached.key.shape[:2], torch.nan), "layer 0 hold NaN"),
        (_one_nan_in_the_last_layer, "layer 3 hold NaN"),
        (lambda cached: torch.ones(cached.key.shape[:2], dtype=torch.long), "int64"),
        (lambda cached: torch.rand(1, cached.key.shape[1]), "shape"),
        (_candidates_moved, "changed .*candidates"),
    ],
    ids=["all NaN", "one NaN", "integers", "one head", "candidates changed"],
)
@pytest.mark.parametrize("scope", ["audio", "all"])
def test_invalid_scores_of_a_press_are_an_error(
    lm: AudioLM, prompts: list[Prompt], scoring: Callable[..., Any], said: str, scope: str
) -> None:
    with pytest.raises(MethodError, match=f"(?s)mine-0.5.*{said}"):
        generate(lm, prompts[:1], Press(0.5, scope=scope, scoring=scoring))


def test_infinite_scores_of_a_press_are_allowed(lm: AudioLM, prompts: list[Prompt]) -> None:
    press = Press(0.5, scoring=lambda cached: torch.full(cached.key.shape[:2], -torch.inf))
    assert generate(lm, prompts[:1], press).kept_audio_tokens[0] < lm.prepare(prompts[:1]).audio_tokens[0]


@pytest.mark.parametrize("budget", [-3, 10_000])
def test_invalid_layer_budgets_of_a_press_are_an_error(lm: AudioLM, prompts: list[Prompt], budget: int) -> None:
    class Greedy(Knorm):
        def budgets(self, total: int, layers: int) -> list[int]:
            return [budget] * layers

    with pytest.raises(MethodError, match=r"knorm-0\.5: budgets"):
        generate(lm, prompts[:1], Greedy(0.5))


@pytest.mark.parametrize("wrong", [1, -1])
def test_a_kv_cache_length_that_differs_from_the_expected_one_is_an_error(
    lm: AudioLM, prompts: list[Prompt], wrong: int
) -> None:
    class Boastful(Base):
        @contextmanager
        def applied_to(self, lm: AudioLM, inputs: Inputs) -> Iterator[Trace]:
            with super().applied_to(lm, inputs) as trace:
                length = inputs.audio_mask.shape[1]
                trace.expected_lengths = (*[length] * (len(lm.decoder_layers) - 1), length + wrong)
                yield trace

    with pytest.raises(MethodError, match="entries"):
        generate(lm, prompts[:1], Boastful())


@contextmanager
def poisoned(lm: AudioLM, value: float, row: int, step: int) -> Iterator[None]:
    """Make one logit of one sample NaN or infinite at one step."""
    calls: list[None] = []

    def poison(_module: torch.nn.Module, _args: Any, logits: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        if len(calls) == step:
            logits = logits.clone()
            logits[row, -1, 7] = value
        return logits

    with lm.lm_head.register_forward_hook(poison):
        yield


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("row", [0, 2])
def test_nan_or_infinite_logits_are_an_error(
    lm: AudioLM, prompts: list[Prompt], value: float, step: int, row: int
) -> None:
    with poisoned(lm, value, row, step), pytest.raises(ModelError, match=f"^frame-0.5-layer2: .*token {step} .*NaN"):
        generate(lm, prompts, Frame(0.5), ignore_end=True)


def test_invalid_logits_after_the_end_of_a_reply_are_ignored(
    lm: AudioLM, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch runs until its longest reply ends. Logits after the end of the other replies are discarded."""
    free = generate(lm, prompts, Base(), ignore_end=True)
    ends = {reply.token_ids[0] for reply in free.replies[:1]}
    if any(ends & set(reply.token_ids) for reply in free.replies[1:]):
        pytest.skip("the random model ends all replies at once")
    monkeypatch.setattr(lm, "end_tokens", tuple(ends))
    with poisoned(lm, torch.nan, 0, 3):
        assert generate(lm, prompts, Base()).replies[0].finish == "stop"


def test_logits_of_minus_infinity_for_part_of_the_vocabulary_are_allowed(lm: AudioLM, prompts: list[Prompt]) -> None:
    with poisoned(lm, -torch.inf, 0, 1):
        generate(lm, prompts, Base())
