"""Transcripts from finished runs, which a text LLM reads in place of clips: the prompt around them, and their costs.

The transcriber and the LLM together are called a cascade.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from audiomarathon.benchmarks.task import Sample, Task
from audiomarathon.compression.method import Base, Method
from audiomarathon.judges.protocol import shielded
from audiomarathon.models.registry import ModelSpec
from audiomarathon.records import Record
from audiomarathon.runs.folder import CODE
from audiomarathon.runs.read import Run
from audiomarathon.runs.summary import CASCADE
from audiomarathon.scoring.heard import words_of
from audiomarathon.text import counted

#: The prompt of every question about clips; it belongs to a run's identity.
FRAME = "You cannot hear the audio. A speech recogniser wrote down what is said in it:\n\n{transcripts}\n\n{question}"
#: Format of a transcript in a prompt about several clips; and the text in place of a transcript without words.
NUMBERED, NO_WORDS = "Audio {number}: {transcript}", "(no words were heard)"

#: Times of an LLM's replies: those of its stages, or the latency of an endpoint's requests.
STAGES, LATENCY = "stages", "latency"

#: Field of `run.json` and of a cascade's identity: the prompt that the transcriber got.
WORDING = "wording"

_OF_DATA = ("data", "prompts", "control", "version", "decode_tokens")
_OF_MACHINE = ("device", "sdpa_backends", "timing", "decode", "prefill_chunk")
_CONDITIONS = ("checkpoint", "dtype", "attention", "seed", "language", "max_new_tokens")
_ADDED = ("load", "preprocess", "scoring")
_AFTER_LOADING = ("encoder", "llm_prefill", "decode", "decode_setup")


@dataclass(frozen=True)
class Reading:
    """The transcripts that a text LLM reads in place of one sample's clips: a record per clip, in order."""

    records: tuple[Record, ...]

    @property
    def texts(self) -> list[str]:
        """The text of each clip's transcript; control tokens of chat templates in it are broken up."""
        return [shielded(record, None).text.strip() for record in self.records]

    def worded(self, question: str) -> str:
        """Return the prompt for the LLM: the transcripts, then the question.

        For a sample without clips, it is only the question.
        """
        if not (texts := [text if words_of(text) else NO_WORDS for text in self.texts]):
            return question
        if len(texts) > 1:
            texts = [NUMBERED.format(number=number, transcript=text) for number, text in enumerate(texts, 1)]
        return FRAME.format(transcripts="\n\n".join(texts), question=question)

    def added_to(self, record: Record) -> Record:
        """Return the LLM's record of a sample, with the costs of making the transcripts added.

        The stage `encoder` is the transcription: tower, prefill and decode of the model that transcribes. `load` and
        `preprocess` are sums. Times are left out if a part was not timed. Counts of audio tokens are the transcriber's.
        """
        if not (parts := self.records):
            return record
        seconds, timed = _total(map(_transcription, parts)), [record.time for record in (record, *parts) if record.time]
        time = latency = None
        if record.time and len(timed) > len(parts):
            time = {**record.time, **{name: sum(times.get(name, 0.0) for times in timed) for name in _ADDED}}
            time |= {"encoder": seconds, "prefill": seconds + record.time["llm_prefill"]}
        if record.latency and seconds is not None:
            latency = {name: seconds + latency_s for name, latency_s in record.latency.items()}
        peaks = [record.peak_memory_bytes for record in (record, *parts)]
        charged = [
            record.cost for record in (record, *parts) if record.attempts is not None
        ]  # a local part costs nothing
        sessions = sorted({str(part.session) for part in parts})
        return replace(
            record,
            clip_seconds=round(sum(part.clip_seconds for part in parts), 6),
            truncated=None if None in (cut := [part.truncated for part in parts]) else any(cut),
            audio_tokens=_total(part.audio_tokens for part in parts),
            kept_audio_tokens=_total(part.kept_audio_tokens for part in parts),
            window_padding_tokens=sum(part.window_padding_tokens for part in parts),
            time=time,
            latency=latency,
            busy=None,  # busy seconds of the GPU, and the seconds of a batch, are the LLM's only
            batch=None,
            peak_memory_bytes=None if None in peaks else max(filter(None, peaks)),
            encoder_shared=any(part.encoder_shared for part in parts) if time else None,
            session=record.session and " + ".join([record.session, *sessions]),
            cost=_total(charged) if charged else None,
        )


def _transcription(record: Record) -> float | None:
    """Return how many seconds a model took to make a transcript, without reading the audio file; None if not timed."""
    if record.time:
        return sum(record.time.get(stage, 0.0) for stage in _AFTER_LOADING)
    return record.latency["total"] if record.latency else None


def _total(values: Iterable[Any]) -> Any:
    """Return the sum of the values; None if any value is unknown (None)."""
    return None if None in (known := list(values)) else sum(known)


@dataclass(frozen=True)
class Transcriber(Base):
    """The setting of a text LLM that reads transcripts in place of audio; it removes nothing itself, like `base`.

    Attributes
    ----------
    system
        Name of the checkpoint that made the transcripts.
    setting
        Label of the transcriber's setting, which also becomes the label of the cascade's setting.
    made_by
        Everything that determines the transcripts: the identity of their run, without its data.
    readings
        The transcripts to read, as {task key: {sample id: transcripts}}.
    times
        Kind of times of the LLM's replies: :data:`STAGES`, :data:`LATENCY` or "" for none.
    """

    title: ClassVar[str] = "transcripts of another model's setting"

    system: str = ""
    setting: str = ""
    made_by: Mapping[str, Any] = field(default_factory=dict)
    readings: Mapping[str, Mapping[str, Reading]] = field(default_factory=dict)
    times: str = STAGES

    @property
    def label(self) -> str:
        """Label of the transcriber's setting, such as `frame-0.5-input`."""
        return self.setting

    @property
    def note(self) -> str:  # type: ignore[override]
        """Text for reports: what the times of a cascade (transcriber and LLM) include, and flaws of the transcripts."""
        device = self.made_by.get("device")
        on = f"on {device}" if device else "which was not timed, so no times are shown"
        says = {
            STAGES: f"the encoder's time is the transcription by {self.system} ({on}); time to first token adds the "
            "LLM's prefill, which ran in another process",
            LATENCY: f"latencies include the transcription by {self.system} ({on})",
        }
        return "; ".join(filter(None, (says.get(self.times), self.flaws)))

    @property
    def flaws(self) -> str:
        """Text with the numbers of transcripts that the token limit cut, and of those without words; "" if there are
        none.
        """
        every = {
            str(record.clips): record
            for task_readings in self.readings.values()
            for each in task_readings.values()
            for record in each.records
        }
        cut = sum(record.finish == "length" for record in every.values())
        wordless = sum(not words_of(record.text) for record in every.values())
        flaws = [f"{cut:,} cut by the token limit"] * bool(cut) + [f"{wordless:,} without words"] * bool(wordless)
        return f"of {counted(len(every), 'transcript')}, {' and '.join(flaws)}" if flaws else ""

    def reading(self, task: Task) -> Transcriber:
        """Return a copy with the transcripts of one task only, so that its note counts only these."""
        return replace(self, readings={task.key: self.readings[task.key]})

    def parameters(self) -> dict[str, Any]:
        """Return the identity's fields that tell a cascade (LLM on transcripts) from a run of the LLM alone.

        The result is {name: value}; `transcriber`, for example, names the checkpoint that made the transcripts.
        """
        of_method = {name: value for name, value in self.made_by.items() if _is_of_method(name)}
        conditions = [self.made_by.get(name) for name in _CONDITIONS]
        conditions += [value for name, value in sorted(self.made_by.items()) if name.startswith(f"{CODE}model ")]
        conditions += [self.made_by[WORDING]] if WORDING in self.made_by else []
        return {
            **of_method,
            "origin": CASCADE,
            "frame": " | ".join((FRAME, NUMBERED, NO_WORDS)),
            "transcripts": hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:12],
            "transcriber": self.system,
            **{f"transcriber's {name}": value for name, value in self.made_by.items()},
        }


def _is_of_method(name: str) -> bool:
    return name not in (*_CONDITIONS, *_OF_MACHINE, "model", WORDING) and not name.startswith(CODE)


def made_by(run: Run) -> dict[str, Any]:
    """Return, as {name: value}, everything that determines a run's transcripts: model, prompt, and the identity without
    its data.

    The prompt is a hash of the run's different prompts. Unlike the identity's `prompts`, this hash does not depend on
    the number of samples, so it is equal for runs of the same request over different clips. Models that take no prompt,
    and runs of older versions, have no such hash.
    """
    kept = {
        name: value
        for name, value in run.identity.items()
        if name not in _OF_DATA and not name.startswith(f"{CODE}task ")
    }
    worded = {WORDING: run.facts[WORDING]} if run.facts.get(WORDING) else {}
    return {"model": run.facts.get("model"), **kept, **worded}


def wording_of(spec: ModelSpec, task: Task, samples: Sequence[Sample]) -> dict[str, str]:
    """Return {field of `run.json`: a hash of a task's different prompts}; {} for a model that takes no prompt.

    Models that can only transcribe, such as Whisper, take no prompt.
    """
    if not spec.remote and spec.load_family().transcribes_only:
        return {}
    different = sorted({task.prompt(sample) for sample in samples})
    return {WORDING: hashlib.sha256("\0".join(different).encode()).hexdigest()[:12]}


def readings_of(methods: Sequence[Method], task: Task) -> Mapping[str, Reading]:
    """Return the transcripts that a text LLM reads for a task, as {sample id: transcripts}.

    The result is empty for models that take audio.
    """
    readings = [method.readings.get(task.key, {}) for method in methods if isinstance(method, Transcriber)]
    return readings[0] if readings else {}


def texts_of(method: Method, task: Task) -> dict[str, list[str]]:
    """Return the transcripts that a text LLM reads, as {sample id: [text of each clip's transcript]}.

    The result is empty for models that take audio.
    """
    return {id_: reading.texts for id_, reading in readings_of([method], task).items()}
