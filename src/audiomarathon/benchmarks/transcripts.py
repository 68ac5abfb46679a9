"""Tasks to transcribe another task's clips. In a cascade, a text LLM reads the transcripts (engine/cascade.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from audiomarathon.benchmarks.audiomarathon.librispeech import INSTRUCTION, LibriSpeech
from audiomarathon.benchmarks.fingerprint import clip_hashes
from audiomarathon.benchmarks.selection import select
from audiomarathon.benchmarks.task import Filters, Loaded, Sample, Task, name_id
from audiomarathon.errors import SettingsError
from audiomarathon.scoring.heard import Heard

#: Prefix of these tasks' keys, such as `transcripts/tau`.
PREFIX = "transcripts/"


@dataclass(frozen=True, eq=False)
class Transcripts(Task):
    """A task to transcribe the clips of another task (`asked`). Clips of the same content are one sample.

    A sample's id is its clip's name. Its cluster is that of the first question about the clip.
    """

    asked: Task

    max_new_tokens = LibriSpeech.max_new_tokens  # like the other task, so that runs of both can be compared
    scorer = Heard()
    transcribes = True

    def __post_init__(self) -> None:
        """Raise an error for a task whose clips cannot be transcribed.

        Raises
        ------
        SettingsError
            The task probes encoders, or is itself a task of transcripts.
        """
        if self.asked.own_command or isinstance(self.asked, Transcripts):
            raise SettingsError(
                f"{PREFIX}{self.asked.key}: allowed after {PREFIX}: a task that asks models about clips"
            )

    @property
    def key(self) -> str:  # type: ignore[override]
        """The task's key, such as `transcripts/tau`."""
        return f"{PREFIX}{self.asked.key}"

    @property
    def title(self) -> str:  # type: ignore[override]
        """One line about the task."""
        return f"Transcripts of the clips of {self.asked.key}"

    @property
    def language(self) -> str:  # type: ignore[override]
        """Language of the speech, as stated by the task that asks about the clips."""
        return self.asked.language

    @property
    def owner(self) -> Task:
        """The other task, which asks about the clips."""
        return self.asked

    def find(self, root: Any) -> Any:
        """Return the data folder of the other task, which asks about the clips."""
        return self.asked.find(root)

    def load(self, folder: Any, filters: Filters = Filters()) -> Loaded:
        """Return a sample for each clip of the other task; `filters` choose which samples of that task count."""
        loaded = self.asked.load(folder, filters)
        first = {clip: sample for sample in reversed(loaded.samples) for clip in sample.clips}
        alone = {clip: Sample(_name(loaded, clip), (clip,), INSTRUCTION, "", first[clip].cluster) for clip in first}
        contents = clip_hashes(alone.values())
        by_content = {contents[alone[clip].id]: alone[clip] for clip in sorted(first, reverse=True)}
        ids = {clip: by_content[contents[sample.id]].id for clip, sample in alone.items()}

        def limited(limit: int, seed: int) -> tuple[str, ...]:
            chosen = select(loaded.samples, limit, seed)
            return tuple(dict.fromkeys(ids[clip] for sample in chosen for clip in sample.clips))

        samples = tuple(sorted(by_content.values(), key=lambda sample: sample.id))
        return Loaded(loaded.folder, samples, loaded.bad_rows, loaded.left_out, gaps=loaded.gaps, limited=limited)

    def prompt(self, sample: Sample) -> str:
        """Return the request for a transcript, which is LibriSpeech's prompt."""
        return sample.question

    def reference(self, sample: Sample) -> dict[str, Any]:  # noqa: ARG002
        """Return {}: there is no reference for the scorer, since nobody knows what is said in the clips."""
        return {}


def _name(loaded: Loaded, clip: Any) -> str:
    """Return a clip's path within its task's folder, or its whole path if it lies elsewhere."""
    return name_id(clip.relative_to(loaded.folder).as_posix() if clip.is_relative_to(loaded.folder) else str(clip))
