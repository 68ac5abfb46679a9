"""Write a card, a page that describes a data folder: counts, durations, class balance, licence and audio examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audiomarathon.audio.decode import as_pcm, decode, probe, write_pcm
from audiomarathon.benchmarks import Loaded, Sample, Task, select
from audiomarathon.benchmarks.manifest import read_manifest
from audiomarathon.benchmarks.registry import benchmark_of
from audiomarathon.data.durations import durations
from audiomarathon.errors import AudioError, SettingsError
from audiomarathon.files import write_text
from audiomarathon.records import LETTERS
from audiomarathon.settings import SEED

EXAMPLES = 10
EXCERPT_S = 20.0


def write_card(tasks: Sequence[tuple[Task, Loaded]], folder: Path, *, jobs: int = 0) -> list[Path]:
    """Write a card of the given tasks' data to a folder: `card.md`, `card.html`, and ten excerpts in `audio/`.

    Return the paths of the two pages.

    Parameters
    ----------
    tasks
        The tasks to describe; the excerpts come from each task in turn.

    Raises
    ------
    SettingsError
        jinja2 (the extra `report`) is not installed.
    RecordError
        The folder cannot be written.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise SettingsError("cards need jinja2: pip install 'audiomarathon[report]'") from None
    rows = [_row(task, loaded, jobs) for task, loaded in tasks]
    manifest = read_manifest(tasks[0][1].folder)
    content: dict[str, Any] = {
        "name": manifest.name if manifest.file else benchmark_of(tasks[0][0].key),
        "licences": sorted({row["licence"] for row in rows}),
        "tasks": rows,
        "hours": sum(row["total_hours"] for row in rows),
        "examples": _examples(tasks, folder),
        "excerpt": EXCERPT_S,
    }
    loader = PackageLoader("audiomarathon.report", "card_template")
    pages = [folder / "card.md", folder / "card.html"]
    for page in pages:
        environment = Environment(
            loader=loader,
            autoescape=page.suffix == ".html",
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["plain"] = markdown
        write_text(page, environment.get_template(page.name).render(content))
    return pages


def _row(task: Task, loaded: Loaded, jobs: int) -> dict[str, Any]:
    """Return the values that a card shows for a task, as {name: value}: counts, durations, licence, class balance."""
    task_durations, manifest = durations(task, loaded, jobs=jobs), read_manifest(loaded.folder)
    figures, expected = task_durations.statistics(), manifest.expected(task)
    balance = Counter(sample.stratum for sample in loaded.samples if sample.stratum)
    most = max(balance.values(), default=1)
    return {
        "key": task.key,
        "title": task.title,
        "samples": len(loaded.samples),
        "expected": expected.count if expected else len(loaded.samples),
        "licence": manifest.licence_of(task),
        "balance": [(name, n, round(100 * n / most)) for name, n in sorted(balance.items())],
        "clusters": len({sample.cluster for sample in loaded.samples}),
        "bad": len(loaded.bad_rows) + len(task_durations.broken),
        **{name: figures[name] for name in ("clips", "total_hours", "min", "p50", "max")},
    }


def markdown(text: object) -> str:
    """Escape a text for Markdown and HTML, so that no part of it is markup; write it as one line."""
    line = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*_[]|#!~" else character for character in line)


def _examples(tasks: Sequence[tuple[Task, Loaded]], folder: Path) -> list[dict[str, Any]]:
    """Write audio excerpts of ten samples, taken from the tasks in turn, to the card's folder.

    Return a list with a dict for each excerpt: `task`, `id`, `question`, `answer`, `audio` (its path), `options`.
    """
    heard = [(task, [sample for sample in loaded.samples if sample.clips]) for task, loaded in tasks]
    orders = [(task.key, iter(select(samples, EXAMPLES, SEED))) for task, samples in heard]
    examples: list[dict[str, Any]] = []
    turns = [(key, sample) for _ in range(EXAMPLES) for key, order in orders if (sample := next(order, None))]
    for key, sample in turns:
        if len(examples) == EXAMPLES:
            break
        name = f"{len(examples):02d}-{key.replace('/', '-')}.wav"
        try:
            _write_excerpt(sample, folder / "audio" / name)
        except AudioError:
            continue  # the clip is unreadable and already counted as such; take another sample
        options = list(zip(LETTERS, sample.options, strict=False))
        facts = {"task": key, "id": sample.id, "question": sample.question, "answer": sample.right}
        examples.append({**facts, "audio": f"audio/{name}", "options": options})
    return examples


def _write_excerpt(sample: Sample, target: Path) -> None:
    """Write a short excerpt of a sample's clip: around the event that decides the answer, if known, else the start."""
    rate = probe(sample.clips[0]).sampling_rate
    clip = decode(sample.clips[0], rate)
    onset = sample.meta.get("event_onset")
    middle = float(onset) + float(sample.meta.get("event_seconds") or 0) / 2 if onset is not None else 0.0
    start = int(max(0.0, min(middle - EXCERPT_S / 2, len(clip) / rate - EXCERPT_S)) * rate)
    part = clip[start : start + int(EXCERPT_S * rate)]
    write_pcm(target, as_pcm(part), rate)
