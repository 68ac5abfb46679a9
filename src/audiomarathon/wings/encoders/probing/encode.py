"""Encode clips to embeddings (the mean of a clip's frames, or all frames), in two ways: ours, and as in X-ARES.

With ours, a clip's embedding does not depend on its batch: a batch has clips of equal length; clips of different
lengths share a batch only if the encoder takes lengths and ignores padding. X-ARES pads every batch with zeros and
averages over the padding too, so its embeddings, and its published scores, depend on the other clips of a batch.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from audiomarathon.audio.decode import Samples, decode, probe
from audiomarathon.errors import AudioMarathonError, EncoderError, told
from audiomarathon.wings.encoders.encoder import Encoder
from audiomarathon.wings.encoders.probing.store import FrameStore, Rows, Store
from audiomarathon.wings.encoders.xares.task import Clip, Recipe

BATCH_SECONDS = 60.0  # limit of seconds of padded audio in a batch; ten times as many on a GPU
PART_BYTES, PART_S = 8 << 20, 20.0  # write a part (file) of the store after this many bytes or seconds
_MIXES = "hears clips of its length"  # key of a row of the store with the result of `mixes`, not an embedding
_APART = 1e-3  # a larger relative difference between embeddings is more than rounding
_AHEAD = 2  # number of batches decoded before they are needed


@dataclass(frozen=True)
class Heard:
    """A clip whose file has been hashed and measured, before it is encoded.

    Attributes
    ----------
    audio
        SHA-256 of the file's bytes.
    samples
        Length at the encoder's sampling rate.
    error
        Why the clip cannot be read; "" if it can.
    """

    clip: Clip
    audio: str
    samples: int
    error: str = ""


@dataclass(frozen=True)
class Item:
    """One embedding of a clip, made in the way of X-ARES.

    X-ARES cuts long clips into crops. If a clip's crops lie in several batches, it has an embedding for each batch.

    Attributes
    ----------
    row
        Key of the embedding in the store.
    """

    clip: Clip
    row: str


@dataclass(frozen=True)
class Batch:
    """The input of one call of the encoder.

    Attributes
    ----------
    cuts
        The audio: clips, each with the number of the crop to take, from 0.
    rows
        The embeddings to store, as {key in the store: position in the batch}.
    size
        Length of a crop in samples; 0 to take whole clips.
    padded
        Whether the mean is taken over frames of the padding too, as X-ARES does.
    """

    cuts: tuple[tuple[Heard, int], ...]
    rows: Mapping[str, int]
    size: int = 0
    padded: bool = False


Outcome = tuple[Rows, Mapping[str, str]]
"""Result of a batch: ({key in the store: embedding}, {key of a missing embedding: why it is missing})."""


@dataclass(kw_only=True)
class SharedEncoder(Encoder):
    """An encoder whose batches are encoded by a function `work`, such as one that sends them to other processes.

    Attributes
    ----------
    work
        Function that encodes batches; its arguments are the batches, and whether to keep frames. It yields (batch,
        ({key: embedding}, {key: error})) in any order.
    copies_on
        Device on which batches are encoded.
    """

    work: Callable[[Iterable[Batch], bool], Iterator[tuple[Batch, Outcome]]]
    copies_on: str


def hear(clips: Sequence[Clip], sampling_rate: int) -> list[Heard]:
    """Hash each clip's audio file and read its length; return one :class:`Heard` per clip, unreadable ones too."""

    def hash_clip(clip: Clip) -> Heard:
        digest = ""
        try:
            digest = hashlib.sha256(clip.audio.read_bytes()).hexdigest()
            info = probe(clip.audio)
        except (AudioMarathonError, OSError) as error:
            return Heard(clip, digest, 0, told(error))
        return Heard(clip, digest, -(-info.frames * sampling_rate // info.sampling_rate))

    with ThreadPoolExecutor() as pool:
        return [*pool.map(hash_clip, clips)]


def mixes(encoder: Encoder, store: Store) -> bool:
    """Tell whether other clips in the batch change a clip's features, tested with a much louder clip.

    If they do, clips must be encoded one by one. The answer is kept in the store.
    """
    import torch

    if store.has(_MIXES):
        return bool(store.rows[_MIXES][0])
    noise = torch.randn(2, encoder.sampling_rate, generator=torch.Generator().manual_seed(0))
    noise *= torch.tensor([[0.01], [1.0]])
    both, (alone,) = encoder.encode(noise), encoder.encode(noise[:1])
    mixed = (both[0] - alone).norm() > _APART * alone.norm()
    store.add({_MIXES: np.array([mixed], dtype=np.float32)})
    return bool(mixed)


def encode_own(
    encoder: Encoder, heard: Sequence[Heard], store: Store, step: Callable[[int], object] = lambda _n: None
) -> dict[str, str]:
    """Encode each clip independently of other clips, and store the embeddings; return {clip's id: error}.

    A clip that is too long for the encoder is encoded in windows of equal length; the frames of all windows are
    averaged.

    Parameters
    ----------
    step
        Called with the number of clips done since the last call.
    """
    failed = _encode(encoder, store, _own_batches(encoder, heard, store), step)
    return {heard_clip.clip.id: failed[heard_clip.audio] for heard_clip in heard if heard_clip.audio in failed}


def encode_published(
    encoder: Encoder,
    heard: Sequence[Heard],
    recipe: Recipe,
    store: Store,
    step: Callable[[int], object] = lambda _n: None,
) -> list[Item]:
    """Encode the clips of one part in the way of X-ARES, and store the embeddings; return an :class:`Item` for each.

    With `recipe.crop`, clips are cut into crops of equal length, and the rest is dropped; shorter clips are padded.
    Otherwise, clips are padded to the longest of their batch. Batches follow the order of the data. If a batch holds
    several crops of a clip, X-ARES uses only the first. A batch in which nothing is cut or padded reuses the embeddings
    of :func:`encode_own`, unless other clips of a batch change a clip's features (:func:`mixes`).

    Raises
    ------
    EncoderError
        The encoder fails on a batch.
    """
    size = round(recipe.crop * encoder.sampling_rate) if recipe.crop else 0
    alone = mixes(encoder, store)
    cuts = [
        (heard_clip, crop) for heard_clip in heard for crop in range(max(1, heard_clip.samples // size) if size else 1)
    ]
    items, batches = list[Item](), list[Batch]()
    for start in range(0, len(cuts), recipe.encode_batch):
        batch = cuts[start : start + recipe.encode_batch]
        first = {heard_clip.clip.id: place for place, (heard_clip, _) in reversed([*enumerate(batch)])}
        places = sorted(first.values())
        if not alone and {heard_clip.samples for heard_clip, _ in batch} == {size or batch[0][0].samples}:
            items += [Item(batch[place][0].clip, batch[place][0].audio) for place in places]
            continue
        content = json.dumps([size, *((heard_clip.audio, crop) for heard_clip, crop in batch)])
        name = hashlib.sha256(content.encode()).hexdigest()
        rows = {f"{name}:{place}": place for place in places}
        batches.append(Batch(tuple(batch), rows, size, padded=True))
        items += [Item(batch[place][0].clip, row) for row, place in rows.items()]
    if failed := _encode(encoder, store, batches, step):
        raise EncoderError(next(iter(failed.values())))
    return items


def _own_batches(encoder: Encoder, heard: Iterable[Heard], store: Store) -> list[Batch]:
    device = encoder.copies_on if isinstance(encoder, SharedEncoder) else encoder.device
    budget = BATCH_SECONDS * encoder.sampling_rate * (1 if device == "cpu" else 10)
    most = (encoder.max_seconds or np.inf) * encoder.sampling_rate
    groups: list[list[Heard]] = []
    alone = mixes(encoder, store)
    for heard_clip in sorted(
        {source.audio: source for source in heard}.values(), key=lambda distinct: (distinct.samples, distinct.audio)
    ):
        alike = groups and (
            groups[-1][0].samples == heard_clip.samples or (encoder.takes_lengths and heard_clip.samples <= most)
        )
        if alike and not alone and (len(groups[-1]) + 1) * heard_clip.samples <= budget:
            groups[-1].append(heard_clip)
        else:
            groups.append([heard_clip])
    return [
        Batch(tuple((member, 0) for member in batch), {member.audio: i for i, member in enumerate(batch)})
        for batch in groups
    ]


def _encode(encoder: Encoder, store: Store, batches: Iterable[Batch], step: Callable[[int], object]) -> dict[str, str]:
    """Encode the batches whose embeddings are not all in the store, and store the results; return {store key: error}.

    `step` is called with the number of clips done since its last call.
    """
    fresh, failed, written = Rows(), dict[str, str](), time.monotonic()
    work = encoder.work if isinstance(encoder, SharedEncoder) else partial(_here, encoder)

    def missing() -> Iterator[Batch]:
        for batch in batches:
            if all(store.has(row) for row in batch.rows):
                step(len(batch.cuts))
            else:
                yield batch

    try:
        for batch, (made, lost) in work(missing(), isinstance(store, FrameStore)):
            fresh |= made
            failed |= lost
            step(len(batch.cuts))
            if sum(row.nbytes for row in fresh.values()) > PART_BYTES or time.monotonic() - written > PART_S:
                store.add(fresh)
                fresh, written = Rows(), time.monotonic()
    finally:
        if fresh:
            store.add(fresh)
    return failed


def _here(encoder: Encoder, batches: Iterable[Batch], framed: bool) -> Iterator[tuple[Batch, Outcome]]:
    for batch, ready in _ahead(batches, encoder.sampling_rate):
        yield batch, encode_batch(encoder, batch, framed, ready)


def encode_batch(encoder: Encoder, batch: Batch, framed: bool, ready: Future[list[Samples]] | None = None) -> Outcome:
    """Encode a batch, after decoding its audio unless `ready` has it; if this fails, encode its clips one by one.

    Return ({key in the store: embedding}, {key: why its embedding is missing}). With `framed`, an embedding is the
    clip's frames, else their mean.
    """
    try:
        waves = ready.result() if ready else _decoded(batch.cuts, encoder.sampling_rate)
        return _rows(encoder, batch, waves, framed), {}
    except AudioMarathonError as error:
        parts = singly(batch)
        if len(parts) == 1:
            return {}, dict.fromkeys(batch.rows, told(error))
    made, failed = Rows(), dict[str, str]()
    for rows, reasons in (encode_batch(encoder, part, framed) for part in parts):
        made |= rows
        failed |= reasons
    return made, failed


def singly(batch: Batch) -> list[Batch]:
    """Split a batch into batches of one clip each; a batch made in the way of X-ARES stays whole."""
    if batch.padded:
        return [batch]
    return [Batch((cut,), {row: 0}) for cut, row in zip(batch.cuts, batch.rows, strict=True)]


def _ahead(batches: Iterable[Batch], rate: int) -> Iterator[tuple[Batch, Future[list[Samples]]]]:
    """Yield each batch with a future that gives its audio, resampled to `rate` Hz.

    The next batches are decoded while the encoder works.
    """
    waiting: deque[tuple[Batch, Future[list[Samples]]]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for batch in batches:
            waiting.append((batch, pool.submit(_decoded, batch.cuts, rate)))
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting


def _decoded(cuts: Sequence[tuple[Heard, int]], rate: int) -> list[Samples]:
    """Return, for each cut (clip, number of the crop), the audio of the clip's whole file; decode each file once.

    The caller takes the crop from it. `rate` is the sampling rate in Hz to which the audio is converted.
    """
    files = {heard_clip.audio: heard_clip.clip.audio for heard_clip, _ in cuts}
    waves = {audio: decode(file, rate) for audio, file in files.items()}
    return [waves[heard_clip.audio] for heard_clip, _ in cuts]


def _rows(encoder: Encoder, batch: Batch, waves: Sequence[Samples], framed: bool) -> Rows:
    """Encode a batch; return {key in the store: frames (if `framed`) or their mean}.

    `waves` is the audio of each cut of the batch. Audio that is longer than the encoder accepts is cut into windows.
    """
    import torch

    if batch.size:
        waves = [wave[crop * batch.size :][: batch.size] for wave, (_, crop) in zip(waves, batch.cuts, strict=True)]
    longest = batch.size or max(map(len, waves))
    audio = torch.zeros(len(waves), longest)
    for row, wave in zip(audio, waves, strict=True):
        row[: len(wave)] = torch.from_numpy(wave)
    with_lengths = encoder.takes_lengths and not batch.padded
    most = encoder.max_seconds * encoder.sampling_rate if encoder.max_seconds else longest
    hop = encoder.hop_size_in_ms * encoder.sampling_rate / 1000 if framed and most < longest else 1
    windows = -(-longest // max(1, int(most // hop * hop)))
    if windows == 1:
        outputs = [encoder.encode(audio, [len(wave) for wave in waves] if with_lengths else None)]
    elif framed:  # cut windows at whole hops, so that frames stay aligned
        size = round(math.ceil(longest / windows / hop) * hop)
        outputs = [encoder.encode(window) for window in torch.split(audio, size, dim=1)]
    else:
        outputs = [encoder.encode(window) for window in torch.tensor_split(audio, windows, dim=1)]
    if framed:
        return {row: torch.cat([part[place] for part in outputs]).numpy() for row, place in batch.rows.items()}
    means = [torch.cat(frames).double().mean(dim=0).numpy() for frames in zip(*outputs, strict=True)]
    return {row: means[place].astype(np.float32) for row, place in batch.rows.items()}
