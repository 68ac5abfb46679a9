"""Build a task's folder from a raw corpus: join its clips, group by group, and write the task's metadata.

Listings are sorted, chance is seeded, and each group's clips depend on that group alone; so the same corpus gives the
same bytes, with any number of jobs and however often the build was interrupted.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.manifest import FILE_NAME as FACTS_FILE
from audiomarathon.benchmarks.selection import draw
from audiomarathon.errors import DataError
from audiomarathon.files import write_json
from audiomarathon.segment.build_log import Ledger
from audiomarathon.segment.corpus import Corpus, Group
from audiomarathon.segment.group_clips import Builder
from audiomarathon.segment.joining import Joining


@dataclass(frozen=True)
class Built:
    """What a build did.

    Attributes
    ----------
    clips, new
        Clips in the folder, and how many of them this run made.
    seconds
        Their length in all.
    sources
        Source clips in them.
    left_out
        (source, reason) of those in none.
    """

    clips: int
    new: int
    seconds: float
    sources: int
    left_out: tuple[tuple[str, str], ...]


def build(
    corpus: Corpus, joining: Joining, folder: Path, *, limit: int = 0, jobs: int = 1, progress: bool = True
) -> Built:
    """Build a task's folder.

    Parameters
    ----------
    corpus
        What to read.
    joining
        Lengths, gap or crossfade, rate.
    folder
        Where to write; an interrupted build of the same settings is continued there.
    limit
        How many clips to make, one of each group in turn, in a seeded order of groups; 0 makes all.
    jobs
        Groups to work on at the same time.
    progress
        Show a progress bar.

    Raises
    ------
    DataError
        The corpus is not laid out as expected, no clip can be made of it, or the folder cannot be used.
    """
    if joining.low == joining.high and not corpus.cut:
        raise DataError(f"{corpus.title}: clips are joined whole, so --min must be less than --max")
    if within := next((root for root in corpus.roots if folder.resolve().is_relative_to(root.resolve())), None):
        raise DataError(f"{folder} lies within the raw corpus {within}; name a folder outside")
    settings = {"task": corpus.task, "seed": corpus.seed, **joining.settings, **corpus.options}
    with Ledger(folder, settings, limit) as ledger:
        groups = corpus.groups()
        names = Counter(group.name for group in groups)
        if twice := next((name for name, count in names.items() if count > 1), ""):
            raise DataError(f"{corpus.title}: {twice} is there twice; name one of its folders")
        for file, reason in corpus.left_out:
            ledger.leave_out(file, reason)
        total = limit or len(groups)
        layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        with tqdm(total=total, desc=corpus.title, disable=not progress, bar_format=layout) as bar:
            _make(Builder(corpus, joining, ledger, (lambda _: None) if limit else bar.update), groups, limit, jobs, bar)
        return _finish(corpus, joining, folder, ledger)


def _make(builder: Builder, groups: list[Group], limit: int, jobs: int, bar: tqdm[Any]) -> None:
    if limit:
        order = sorted(groups, key=lambda group: draw(builder.corpus.seed, "group", group.name))
        for _ in itertools.islice(_in_turns([builder.clips(group) for group in order]), limit):
            bar.update()
        return
    pool = ThreadPoolExecutor(jobs)
    try:
        for _ in pool.map(lambda group: deque(builder.clips(group), 0), groups):
            pass
    finally:
        builder.stopped = True  # an interruption waits for the clips at hand only
        pool.shutdown(cancel_futures=True)


def _in_turns(makers: Iterable[Iterator[str]]) -> Iterator[str]:
    """Yield the first of each, then the second of each that has one, and so on."""
    waiting = deque(makers)
    while waiting:
        maker = waiting.popleft()
        if (made := next(maker, None)) is not None:
            yield made
            waiting.append(maker)


def _finish(corpus: Corpus, joining: Joining, folder: Path, ledger: Ledger) -> Built:
    for clip, reason in corpus.write(folder, ledger.rows()):
        ledger.leave_out(clip, reason)
    ledger.finish()
    rows = [(row["seconds"], len(row["sources"])) for row in ledger.rows()]
    left_out = tuple((row["path"], row["reason"]) for row in ledger.left_out)
    if not rows:
        told = f", such as {left_out[0][0]}: {left_out[0][1]}" if left_out else ""
        raise DataError(f"{corpus.title}: no clip could be made; {len(left_out)} sources left out{told}")
    task = get_task(corpus.task)
    loaded = task.load(folder)
    if loaded.bad_rows:
        raise DataError(f"{corpus.title}: what was built is not what {task.key} expects: {loaded.bad_rows[0]}")
    expected = {"count": len(loaded.samples), "min_seconds": joining.low, "max_seconds": joining.high}
    facts = {"name": f"built from {corpus.title}", "licence": "that of the raw corpus", "tasks": {task.key: expected}}
    write_json(folder / FACTS_FILE, facts)
    seconds, sources = (sum(column) for column in zip(*rows, strict=True))
    return Built(len(rows), ledger.added, seconds, int(sources), left_out)
