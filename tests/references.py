"""Plain reference versions of all methods, after METHODS.md and the papers: loops, float64, full attention.

Nothing here comes from the code under test. Queries, keys and values are projected from the model's hidden states and
rotated in this module. Attention weights are those that the model returns with eager attention.
"""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch

THETA = 10000.0  # the tiny checkpoint's


@dataclass(eq=False)
class Layer:
    """The inputs of one layer. Layers compare by identity, so that scores can be cached.

    entering (S, D), normed (entering after the decoder's final norm), queries before rotation (H, S, d), keys after
    rotation and values (Hkv, S, d), and the model's attention weights (H, S, S).
    """

    entering: np.ndarray
    normed: np.ndarray
    raw_query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    attention: np.ndarray

    def of(self, places: Sequence[int]) -> Layer:
        """Return the layer at only some prompt positions."""
        rows = list(places)
        by_head = (self.raw_query[:, rows], self.key[:, rows], self.value[:, rows])
        return Layer(self.entering[rows], self.normed[rows], *by_head, self.attention[:, rows][:, :, rows])


def layers_of(lm: Any, inputs: Any, around: AbstractContextManager[Any] | None = None) -> list[Layer]:
    """Run the plain model with eager attention on one prompt; return its layers."""
    with around or nullcontext(), lm.generating(inputs, 1), torch.inference_mode():
        output = lm.model(**inputs.tensors, output_attentions=True, output_hidden_states=True, use_cache=True)
    layers = []
    config = lm.decoder.config
    for index, module in enumerate(lm.decoder.layers):
        entering = output.hidden_states[index][0].double().numpy()
        x = rms_norm(entering, module.input_layernorm.weight, config.rms_norm_eps)
        attention = module.self_attn
        query, key, value = (
            heads(x, projection) for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        layer = Layer(
            entering=entering,
            normed=rms_norm(entering, lm.decoder.norm.weight, config.rms_norm_eps),
            raw_query=query,
            key=np.stack([rotated(head, range(len(x))) for head in key]),
            value=value,
            attention=output.attentions[index][0].double().numpy(),
        )
        cached = output.past_key_values.layers[index]
        np.testing.assert_allclose(layer.key, cached.keys[0], atol=1e-4)  # checks the reference itself
        np.testing.assert_allclose(layer.value, cached.values[0], atol=1e-4)
        layers.append(layer)
    return layers


def rms_norm(x: np.ndarray, weight: Any, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight.detach().double().numpy()


def heads(x: np.ndarray, projection: Any, size: int = 8) -> np.ndarray:
    y = x @ projection.weight.detach().double().numpy().T + projection.bias.detach().double().numpy()
    return y.reshape(len(x), -1, size).transpose(1, 0, 2)


@functools.cache
def rotation(position: int, size: int) -> np.ndarray:
    """The rotary embedding of one position as a matrix."""
    turn, half = np.zeros((size, size)), size // 2
    for i in range(half):
        angle = position * THETA ** (-2 * i / size)
        turn[i, i] = turn[i + half, i + half] = math.cos(angle)
        turn[i, i + half], turn[i + half, i] = -math.sin(angle), math.sin(angle)
    return turn


def rotated(rows: np.ndarray, positions: Sequence[int]) -> np.ndarray:
    return np.stack([rotation(position, len(row)) @ row for row, position in zip(rows, positions, strict=True)])


# Token pruning, from the layer before K (`below`) and the layer K (`at`). Each returns the kept prompt positions.


def last_attention(below: Layer) -> list[float]:
    """Attention from the last prompt token, mean over heads."""
    return [
        sum(head[-1, place] for head in below.attention) / len(below.attention) for place in range(len(below.key[0]))
    ]


def segment_shares(total: int, k: int, segments: int = 10) -> list[tuple[int, int, int]]:
    """Return start, end and share of each equal segment. Shares are rounded by largest remainder."""
    bounds = [total * i // segments for i in range(segments + 1)]
    spans = list(pairwise(bounds))
    exact = [Fraction((end - start) * k, total) for start, end in spans]
    share = [math.floor(share_exact) for share_exact in exact]
    while sum(share) < k:
        remainders = [portion - whole for portion, whole in zip(exact, share, strict=True)]
        share[remainders.index(max(remainders))] += 1
    return [(start, end, count) for (start, end), count in zip(spans, share, strict=True)]


def dart(below: Layer, at: Layer, audio: list[int], k: int) -> set[int]:
    norm = [sum(abs(number) for head in below.key for number in head[place]) for place in range(len(below.key[0]))]
    after = range(audio[-1] + 1, len(norm))
    kept = sorted(audio, key=lambda place: -norm[place])[: min(4, k)]
    pivots = [*kept, *sorted(after, key=lambda place: -norm[place])[:4]]
    budget = k - len(kept)
    for rank, pivot in enumerate(pivots):
        share = budget // (len(pivots) - rank)
        free = [place for place in audio if place not in kept]
        kept += sorted(free, key=lambda place: cosine(at.normed[place], at.normed[pivot]))[:share]
        budget -= share
    return set(kept)


def runs_of_similar(vectors: list[np.ndarray], audio: list[int], k: int) -> list[list[int]]:
    """Join the most similar neighbours in `audio` until k runs are left. Neighbours separated by text join last."""
    pairs = range(len(audio) - 1)
    apart = {pair: audio[pair + 1] - audio[pair] > 1 for pair in pairs}
    best = sorted(pairs, key=lambda pair: (apart[pair], -cosine(vectors[pair], vectors[pair + 1])))
    joined = set(best[: len(audio) - k])
    runs = [[0]]
    for place in range(1, len(audio)):
        if place - 1 in joined:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def fastadasp(below: Layer, audio: list[int], k: int) -> tuple[list[list[int]], list[float]]:
    """Return the runs and each token's weight: the attention it receives from all queries, divided by its run's sum."""
    runs = runs_of_similar([np.concatenate([head[place] for head in below.key]) for place in audio], audio, k)
    received = [sum(float(row[place]) for head in below.attention for row in head) for place in audio]
    return runs, [received[place] / sum(received[other] for other in run) for run in runs for place in run]


def speechprune(below: Layer, at: Layer, audio: list[int], k: int) -> set[int]:
    question = range(audio[-1] + 1, len(at.entering))
    alike = {a: sum(cosine(at.entering[a], at.entering[t]) for t in question) / len(question) for a in audio}
    left = sorted(audio, key=lambda place: -alike[place])[: -(-(len(audio) + k) // 2)]
    score = last_attention(below)
    return set(sorted(left, key=lambda place: -score[place])[:k])


def divprune(at: Layer, audio: list[int], k: int) -> list[int]:
    """Choose the token farthest from its nearest one, then repeatedly the token farthest from all chosen tokens."""
    apart = [[1 - cosine(at.entering[a], at.entering[b]) for b in audio] for a in audio]
    places = range(len(audio))
    first = max(places, key=lambda a: min((apart[a][b] for b in places if b != a), default=0))
    chosen = [first]
    while len(chosen) < k:
        free = [a for a in places if a not in chosen]
        chosen.append(max(free, key=lambda a: min(apart[a][b] for b in chosen)))
    return [audio[place] for place in chosen]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))


# KV presses: scores (Hkv, S), infinite for entries that always stay.


def knorm(layer: Layer, **_: Any) -> np.ndarray:
    return np.array([[-math.sqrt(sum(number**2 for number in key)) for key in head] for head in layer.key])


def keydiff(layer: Layer, **_: Any) -> np.ndarray:
    scores = []
    for head in layer.key:
        mean = sum(key / math.sqrt(key @ key) for key in head) / len(head)
        scores.append([-cosine(key, mean) for key in head])
    return np.array(scores)


def streaming_llm(layer: Layer, candidates: list[int], **_: Any) -> np.ndarray:
    length = layer.key.shape[1]
    score = [math.inf if place in candidates[:4] else place for place in range(length)]
    return np.array([score] * len(layer.key), dtype=float)


def tova(layer: Layer, **_: Any) -> np.ndarray:
    return np.array([[*last_attention(layer)[:-1], math.inf]] * len(layer.key))  # the last entry always stays


def snapkv(layer: Layer, **_: Any) -> np.ndarray:
    return _votes(layer).copy()


@functools.lru_cache(16)  # called for every ratio
def _votes(layer: Layer) -> np.ndarray:
    length = layer.key.shape[1]
    window = min(64, length - 1)
    rows, outside = range(length - window, length), length - window
    scores = np.full((len(layer.key), length), math.inf)
    group = len(layer.attention) // len(layer.key)
    for head in range(len(layer.key)):
        mean = [
            sum(layer.attention[head * group + g, row, place] for g in range(group) for row in rows) / group / window
            for place in range(outside)
        ]
        for place in range(outside):
            scores[head, place] = sum(mean[max(0, place - 2) : place + 3]) / 5  # zeros beyond the edges
    return scores


def expected_attention(layer: Layer, following: int, **_: Any) -> np.ndarray:
    return _expected(layer, following).copy()


@functools.lru_cache(16)
def _expected(layer: Layer, following: int) -> np.ndarray:
    size = layer.key.shape[-1]
    turn = sum(rotation(following + step, size) for step in range(512)) / 512
    group = len(layer.raw_query) // len(layer.key)
    scores = np.zeros(layer.key.shape[:2])
    for head, queries in enumerate(layer.raw_query):
        mean = sum(queries[4:]) / len(queries[4:])
        covariance = sum(np.outer(query - mean, query - mean) for query in queries[4:]) / len(queries[4:])
        mean, covariance = turn @ mean, turn @ covariance @ turn.T
        keys = layer.key[head // group, 4:]
        expected = [math.exp(mean @ key / math.sqrt(size) + key @ covariance @ key / size / 2) for key in keys]
        scores[head // group, 4:] += np.array(expected) / sum(expected) / group
    scores *= np.sqrt((layer.value**2).sum(-1))
    scores[:, :4] = math.inf
    return scores


def audio_kv(layer: Layer, candidates: list[int], **_: Any) -> np.ndarray:
    scores = snapkv(layer)
    places = [place for place in candidates if math.isfinite(scores[0, place])]
    count = len(places)
    passed = max(1, round((count // 2 + 1) / 4))  # frequencies, including the mean
    for head in scores:
        signal = [head[place] for place in places]
        low = np.zeros(count)
        for frequency in range(passed):
            wave = _wave(frequency, count)
            part = sum(value * turn for value, turn in zip(signal, wave, strict=True))
            low += [(1 if frequency == 0 else 2) * (part * turn.conjugate()).real / count for turn in wave]
        head[places] = low
    return scores


@functools.cache
def _wave(frequency: int, count: int) -> list[complex]:
    return [cmath.exp(-2j * math.pi * frequency * t / count) for t in range(count)]


def pyramid_line(total: int, k: int, layers: int, beta: int = 20) -> list[float]:
    """Return exact budgets with mean k: from 2k − last down to last = k / β, or as steep as `total` allows."""
    last = max(1.0, k / beta)
    first = 2 * k - last
    if first > total:
        first, last = total, 2 * k - total
    return [first + (last - first) * layer / (layers - 1) for layer in range(layers)]


PRESSES = {
    "knorm": knorm, "keydiff": keydiff, "streaming_llm": streaming_llm, "tova": tova, "snapkv": snapkv,
    "expected_attention": expected_attention, "audio_kv": audio_kv, "pyramidkv": snapkv,
}  # fmt: skip
