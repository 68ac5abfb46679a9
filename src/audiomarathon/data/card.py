"""Write a card of a data root: counts, durations, class balance, licence and audio examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile

from audiomarathon.audio.decode import as_pcm, decode, probe
from audiomarathon.benchmarks import Loaded, Sample, Task, select
from audiomarathon.benchmarks.manifest import Manifest, read_manifest
from audiomarathon.benchmarks.registry import benchmark_of
from audiomarathon.data.durations import Durations, durations
from audiomarathon.errors import AudioError, DataError, SettingsError
from audiomarathon.records import LETTERS

EXAMPLES = 10
EXCERPT_S = 20.0


@dataclass(frozen=True)
class _Part:
    """One task on the card."""

    task: Task
    loaded: Loaded
    found: Durations
    manifest: Manifest

    def row(self) -> dict[str, Any]:
        """Return the task's values for the templates."""
        figures = self.found.statistics()
        expected = self.manifest.expected(self.task)
        balance = Counter(sample.stratum for sample in self.loaded.samples if sample.stratum)
        most = max(balance.values(), default=1)
        return {
            "key": self.task.key,
            "title": self.task.title,
            "samples": len(self.loaded.samples),
            "expected": expected.count if expected else len(self.loaded.samples),
            "licence": self.manifest.licence_of(self.task),
            "balance": [(name, n, round(100 * n / most)) for name, n in sorted(balance.items())],
            "clusters": len({sample.cluster for sample in self.loaded.samples}),
            "bad": len(self.loaded.bad_rows) + len(self.found.broken),
            **{name: figures[name] for name in ("clips", "total_hours", "min", "p50", "max")},
        }


def write_card(tasks: Sequence[tuple[Task, Loaded]], folder: Path, *, seed: int = 42, jobs: int = 0) -> list[Path]:
    """Write `card.md`, `card.html` and `audio/` with ten excerpts to a folder; return the two pages.

    Parameters
    ----------
    tasks
        The tasks to describe; examples are taken from them in turn.
    seed
        Chooses the examples.

    Raises
    ------
    SettingsError
        Without jinja2 (the extra `report`).
    DataError
        The folder cannot be written, or no clip can be read.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise SettingsError("cards need jinja2: pip install 'audiomarathon[report]'") from None
    parts = [
        _Part(task, loaded, durations(task, loaded, jobs=jobs), read_manifest(loaded.folder)) for task, loaded in tasks
    ]
    try:
        (folder / "audio").mkdir(parents=True, exist_ok=True)
        rows = [part.row() for part in parts]
        content: dict[str, Any] = {
            "name": parts[0].manifest.name if parts[0].manifest.file else benchmark_of(parts[0].task.key),
            "licences": sorted({row["licence"] for row in rows}),
            "tasks": rows,
            "hours": sum(row["total_hours"] for row in rows),
            "examples": _examples(parts, folder, seed),
            "excerpt": EXCERPT_S,
        }
        pages = []
        for name, escape in (("card.md", False), ("card.html", True)):
            loader = PackageLoader("audiomarathon.report", "card_template")
            environment = Environment(
                loader=loader, autoescape=escape, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
            )
            environment.filters["plain"] = markdown
            pages.append(folder / name)
            pages[-1].write_text(environment.get_template(name).render(content), encoding="utf-8")
    except soundfile.LibsndfileError as error:
        raise DataError(f"{folder}: cannot be written ({error.error_string}); is the disk full?") from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return pages


def markdown(text: object) -> str:
    """Return a text as one line without Markdown or HTML markup."""
    line = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*_[]|#!~" else character for character in line)


def _examples(parts: Sequence[_Part], folder: Path, seed: int) -> list[dict[str, Any]]:
    """Write excerpts of ten samples, taken from the tasks in turn; return their descriptions."""
    heard = [(part, [sample for sample in part.loaded.samples if sample.clips]) for part in parts]
    orders = [(part, iter(select(samples, EXAMPLES, seed))) for part, samples in heard]
    examples: list[dict[str, Any]] = []
    turns = [(part, sample) for _ in range(EXAMPLES) for part, order in orders if (sample := next(order, None))]
    for part, sample in turns:
        if len(examples) == EXAMPLES:
            break
        name = f"{len(examples):02d}-{part.task.key.replace('/', '-')}.wav"
        try:
            _write_excerpt(sample, folder / "audio" / name)
        except AudioError:
            continue  # counted as bad; another sample takes its place
        options = list(zip(LETTERS, sample.options, strict=False))
        facts = {"task": part.task.key, "id": sample.id, "question": sample.question, "answer": sample.right}
        examples.append({**facts, "audio": f"audio/{name}", "options": options})
    return examples


def _write_excerpt(sample: Sample, target: Path) -> None:
    """Write the first seconds of a clip, or the seconds around the deciding event if it is known."""
    rate = probe(sample.clips[0]).sampling_rate
    clip = decode(sample.clips[0], rate)
    onset = sample.meta.get("event_onset")
    middle = float(onset) + float(sample.meta.get("event_seconds") or 0) / 2 if onset is not None else 0.0
    start = int(max(0.0, min(middle - EXCERPT_S / 2, len(clip) / rate - EXCERPT_S)) * rate)
    part = clip[start : start + int(EXCERPT_S * rate)]
    soundfile.write(target, as_pcm(part), rate, subtype="PCM_16")
