"""What is known of a sample of a run: its record and its verdict; and the figure that a task is ranked by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Corpus:
    """The references of all of a task's data, by which scorers weigh words, whatever part of it was run.

    Attributes
    ----------
    references
        The texts of each item.
    """

    references: tuple[tuple[str, ...], ...]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the texts, in hex, whatever the items' order."""
        return hashlib.sha256(json.dumps(sorted(self.references)).encode()).hexdigest()

    def __hash__(self) -> int:
        """Return the texts' hash, worked out once."""
        return hash(self.hash)


@dataclass(frozen=True, slots=True)
class Record:
    """One answered or failed sample: a line of `samples.jsonl`.

    Attributes
    ----------
    id, cluster
        The sample, and what makes it depend on others.
    reference
        What a scorer needs to know of the sample, so that scoring needs no data.
    error
        Why there is no reply; None of an answered sample.
    reply, transcript
        The model's text, raw; and the transcript that a family took out of the sentence around it.
    clips
        Hash of the clips' content.
    groups
        By which figures can be broken down without the data (`category`, for one).
    finish
        `stop`, or `length` when the token limit cut the reply.
    clip_seconds
        Length of all clips as the model heard them.
    truncated
        Whether the family cut the audio short; None where a server does not say.
    control
        What there was to hear instead of the clips (`silence`, …).
    prompt_tokens, audio_tokens, window_padding_tokens, kept_audio_tokens, new_tokens
        Counts; of audio tokens how many stand for a window's padding, and how many the method kept.
    kept_audio_bits
        Which; see :mod:`audiomarathon.runs.kept_audio`.
    kv_lengths, kv_bytes
        Entries of each layer's cache after prefill, and the bytes of all.
    peak_memory_bytes
        Of the GPU.
    time
        Seconds of each stage: `load`, `preprocess`, `encoder`, `llm_prefill`, `prefill`, `decode`, and `scoring`, which
        is part of prefill: what went into choosing what to keep. None of an untimed sample.
    encoder_shared
        Whether several settings, or samples of one clip, shared the audio tower's pass.
    forced_decode
        `tokens`, `seconds` and `per_token` of the forced decode run.
    latency
        `first_token` and `total` of a request to an endpoint, in seconds.
    session
        When the run began: records of one session were measured side by side.
    attempts, cost, key_masked
        Of a request: how many were made, what it cost, and whether the key was masked in the reply.
    judgements
        What judges answered about this sample: by judge and request hash their texts, None for a failed request. They
        lie in files of their own (`judges/judgements.py`), and are put here by what reads a run folder.
    corpus
        The references of the whole data, where the task's scorer weighs words by them; put here like judgements.
    """

    id: str
    cluster: str = ""
    clips: str | None = None
    reply: str | None = None
    transcript: str | None = None
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
    kv_lengths: Sequence[int] | None = None
    kv_bytes: int | None = None
    new_tokens: int | None = None
    time: Mapping[str, float] | None = None
    peak_memory_bytes: int | None = None
    session: str | None = None
    encoder_shared: bool | None = None
    forced_decode: Mapping[str, float] | None = None
    latency: Mapping[str, float] | None = None
    attempts: int | None = None
    cost: float | None = None
    judgements: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    corpus: Corpus | None = None

    @property
    def answered(self) -> bool:
        """Whether there is a reply."""
        return self.error is None

    @property
    def text(self) -> str:
        """What is judged: the transcript where a family took one out of the reply, else the whole reply."""
        return self.reply or "" if self.transcript is None else self.transcript

    def to_json(self) -> dict[str, Any]:
        """Return the record as `samples.jsonl` holds it: what does not apply is left out."""
        names = _OF_FAILED if self.error is not None else _NAMES
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None or name not in _LEFT_OUT}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        """Return the record of a line that was checked; names of other versions are passed over."""
        known = {name: content[name] for name in _NAMES if name in content}
        if content.get("error") is not None:  # of what failed little may be known
            known = {name: value for name, value in known.items() if value is not None}
        return cls(**known)


_NAMES = tuple(one.name for one in fields(Record) if one.name not in ("judgements", "corpus"))
_OF_FAILED = ("id", "cluster", "clips", "reply", "reference", "groups", "error", "session")
_LEFT_OUT = frozenset(
    ("transcript", "key_masked", "groups", "control", "session", "encoder_shared", "forced_decode", "latency")
) | {"attempts", "cost"}


@dataclass(frozen=True)
class Figure:
    """The one figure that a task is ranked by.

    Attributes
    ----------
    name
        Its key in `summary.json` and among the scorer's sums.
    title
        What tables and axes call it.
    low, high
        Its range; None for no bound.
    better
        Which way is better.
    chance
        What guessing gives; None where that is not known, or depends on the sample.
    """

    name: str
    title: str
    low: float | None = 0.0
    high: float | None = 1.0
    better: Literal["up", "down"] = "up"
    chance: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a scorer says of one answered sample: the fields of its line in `verdicts-<scorer>.jsonl`."""

    record: Record
    values: Mapping[str, Any]
