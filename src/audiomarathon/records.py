"""The record of a sample (reply, tokens, times), the scorer's verdict on it, and facts about a task's main score."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any, Literal

from audiomarathon.thinking import without_thinking

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_REPLY = 100_000  # limit in characters for a reply from a server or a file; an hour of speech has 60,000


@dataclass(frozen=True)
class Corpus:
    """The reference texts of all samples of a task. Some scorers weight words by them, even if only some samples ran.

    Attributes
    ----------
    references
        For each sample, its reference texts.
    """

    references: tuple[tuple[str, ...], ...]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the texts, in hex; the order of the samples does not change it."""
        return hashlib.sha256(json.dumps(sorted(self.references)).encode()).hexdigest()

    def __hash__(self) -> int:
        """Return a hash of all texts, so that a corpus can be a key of caches."""
        return hash(self.hash)


class Packed(Mapping[str, float]):
    """A read-only mapping from names to numbers that takes a third of the memory of a dict.

    The names, and the type of each number, are stored once for all mappings in which they are equal.

    Parameters
    ----------
    numbers
        Floats, and whole numbers up to 2⁵³.
    """

    __slots__ = ("_kinds", "_numbers")

    def __init__(self, numbers: Mapping[str, float]) -> None:
        self._kinds = _kinds_of(tuple(numbers), tuple(map(type, numbers.values())))
        self._numbers = struct.pack(f"{len(numbers)}d", *numbers.values())

    def __getitem__(self, name: str) -> float:
        place, kind = self._kinds[name]
        return kind(_DOUBLE(self._numbers, place)[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __repr__(self) -> str:
        return repr(dict(self))


_DOUBLE = struct.Struct("d").unpack_from


@cache
def _kinds_of(names: tuple[str, ...], kinds: tuple[type[float], ...]) -> Mapping[str, tuple[int, type[float]]]:
    """Return the offset in bytes and the type of each number in a :class:`Packed`, as {name: (offset, type)}."""
    return {name: (8 * place, kind) for place, (name, kind) in enumerate(zip(names, kinds, strict=True))}


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one answered or failed sample: a line of `samples.jsonl`.

    Attributes
    ----------
    id, cluster
        Id of the sample, and name of its cluster: samples that are not statistically independent, such as questions
        about one clip, share a cluster.
    reference
        The facts that a scorer needs, such as the right answer, so that a run can be scored without the data.
    error
        Reason why there is no reply; None if the sample was answered.
    reply, transcript
        The model's raw text; and, for a model family that marks one in it, the transcript alone.
    clips
        Hash of the clips' content.
    transcripts_read
        The transcripts that a text LLM read in place of the clips, one a clip; None for a model that heard the clips.
    groups
        Labels such as `category`, so that figures can be broken down without the data.
    finish
        `stop`, or `length` if the token limit cut the reply.
    clip_seconds
        Length of all clips together, in seconds, as the model heard them.
    truncated
        Whether the model's code cut the audio; None if that is unknown, as behind an endpoint.
    control
        Kind of audio that replaced the clips (`silence`, …); None for the real audio.
    prompt_tokens, audio_tokens, window_padding_tokens, kept_audio_tokens, new_tokens
        Numbers of tokens: of the prompt; of the audio, before any is dropped; those of the audio that stand for
        silence at the end of the audio tower's windows; those that the method kept; and of the reply.
    kept_audio_bits
        Which audio tokens were kept: one bit per audio token, in base64.
    kept_audio_shares
        For an external press: the share of (layer, head) pairs that keep each audio token, as one byte per token in
        base64.
    redundancy
        For base (no method): the mean cosine similarity of neighbouring audio tokens that enter the LLM, at least 0.
        None for other methods.
    kv_lengths, kv_bytes
        Number of entries in each layer's KV cache after prefill, and the bytes of the KV cache of all layers.
    peak_memory_bytes
        Peak memory of the GPU.
    time
        Seconds of each stage: `load`, `preprocess`, `encoder`, `llm_prefill`, `prefill`, `decode`, and `scoring` (the
        part of prefill in which the method chose what to keep); `decode_setup` (seconds to prepare the graph) if decode
        ran as a graph. None for an untimed sample.
    warmed
        Seconds of the uncounted call that warmed the GPU up for this sample; None if there was no such call.
    busy
        Seconds in which the GPU worked in the stages `encoder`, `llm_prefill` and `decode` of one more, untimed call,
        and the decode `steps` of that call, which may be fewer; None for most samples.
    batch
        For an untimed sample in a batch: the batch's `samples`, how many were `planned`, its seconds in the stages
        `encoder`, `llm_prefill` and `decode` (and `decode_setup`), its share of `padding` among prompt tokens, the GPUs
        that ran it (`devices`), and its `peak_memory_bytes` if known. All samples of a batch hold the same values.
    encoder_shared
        Whether several settings, or several samples with the same clip, shared one run of the audio tower.
    forced_decode
        `tokens`, `seconds` and `per_token` of the forced decode run, which decodes a fixed number of tokens; and its
        `decode_setup`, as in `time`.
    latency
        `first_token` and `total` of a request to an endpoint, in seconds.
    session
        Start time and process of the command that made this record. A sample's records with the same session were
        measured side by side.
    attempts, cost, key_masked
        Number of requests to an endpoint, their cost, and whether the API key stood in the reply and was masked.
    extra
        For an imported record: further fields from the other program's log. None otherwise.
    judgements
        Judge models' replies about this sample, as {judge: {hash of the request: reply}}; a reply is None if the
        request failed. They are stored in separate files (`judges/judgements.py`) and added when a run folder is read.
    corpus
        The reference texts of all the task's data, if the scorer weights words by them; added when a run folder is
        read.
    """

    id: str
    cluster: str = ""
    clips: str | None = None
    reply: str | None = None
    transcript: str | None = None
    transcripts_read: Sequence[str] | None = None
    finish: str = ""
    key_masked: bool | None = None
    reference: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, str] | None = None
    error: str | None = None
    clip_seconds: float = 0.0
    truncated: bool | None = False
    control: str | None = None
    prompt_tokens: int | None = None
    audio_tokens: int | None = None
    window_padding_tokens: int = 0
    kept_audio_tokens: int | None = None
    kept_audio_bits: str | None = None
    kept_audio_shares: str | None = None
    redundancy: float | None = None
    kv_lengths: Sequence[int] | None = None
    kv_bytes: int | None = None
    new_tokens: int | None = None
    time: Mapping[str, float] | None = None
    warmed: float | None = None
    busy: Mapping[str, float] | None = None
    batch: Mapping[str, float] | None = None
    peak_memory_bytes: int | None = None
    session: str | None = None
    encoder_shared: bool | None = None
    forced_decode: Mapping[str, float] | None = None
    latency: Mapping[str, float] | None = None
    attempts: int | None = None
    cost: float | None = None
    extra: Mapping[str, Any] | None = None
    judgements: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    corpus: Corpus | None = None

    @property
    def answered(self) -> bool:
        """Whether the sample has a reply. If not, it failed with an error."""
        return self.error is None

    @property
    def raw(self) -> str:
        """The transcript if the model family marked one in the reply, else the whole reply."""
        return self.reply or "" if self.transcript is None else self.transcript

    @property
    def text(self) -> str:
        """The text to score: `raw` without the model's thinking."""
        return without_thinking(self.raw)

    def to_json(self) -> dict[str, Any]:
        """Return the record as the object in its line of `samples.jsonl`, without the fields that do not apply."""
        names = _OF_FAILED if self.error is not None else STORED
        values = {name: getattr(self, name) for name in names}
        return {
            name: dict(value) if isinstance(value, Packed) else value
            for name, value in values.items()
            if value is not None or name not in _LEFT_OUT
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        """Make a record from the object in a line of `samples.jsonl`.

        Fields that only other versions know are ignored.
        """
        known = {name: content[name] for name in STORED if name in content}
        if content.get("error") is not None:  # a failed sample may lack most fields
            known = {name: value for name, value in known.items() if value is not None}
        return cls(**known)


#: Names of the fields in a line of `samples.jsonl`.
STORED = tuple(field.name for field in fields(Record) if field.name not in ("judgements", "corpus"))
_OF_FAILED = ("id", "cluster", "clips", "reply", "reference", "groups", "error", "session", "extra")
_LEFT_OUT = frozenset(
    ("transcript", "key_masked", "groups", "control", "session", "encoder_shared", "forced_decode", "latency")
) | {
    *("attempts", "cost", "warmed", "busy", "batch", "transcripts_read", "extra"),
    *("kept_audio_shares", "redundancy"),
}


@dataclass(frozen=True)
class Figure:
    """Facts about a task's headline figure (its main score, such as macro-F1): names, bounds, and which end is better.

    Attributes
    ----------
    name
        The figure's key in `summary.json` and in the result of the scorer's `sums`.
    title
        The figure's name in tables and on axes.
    low, high
        Lowest and highest possible value; None if there is no bound.
    better
        Whether a higher (`up`) or lower (`down`) value is better.
    chance
        Expected value of the figure for random guesses; None if it is unknown, or differs between samples.
    """

    name: str
    title: str
    low: float | None = 0.0
    high: float | None = 1.0
    better: Literal["up", "down"] = "up"
    chance: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A scorer's verdict on an answered sample.

    Attributes
    ----------
    record
        The sample's record.
    values
        The fields of a line of `verdicts-<scorer>.jsonl`, such as whether the reply is right.
    """

    record: Record
    values: Mapping[str, Any]
