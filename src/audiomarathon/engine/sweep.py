"""Run many tasks under a grid of methods and ratios. Each task under each setting gets a run folder.

The model is loaded once. If a task fails, the reason is kept, and the other tasks still run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import Task
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.registry import all_methods, get_method, split_ratio
from audiomarathon.engine.identity import check_edited
from audiomarathon.engine.ray_options import Ray
from audiomarathon.engine.run import (
    Result,
    check_batch_size,
    is_finished,
    known_as_finished,
    load_task,
    opened,
    run_task,
)
from audiomarathon.engine.sessions import now
from audiomarathon.engine.setup import Setup
from audiomarathon.engine.source import source_hash
from audiomarathon.engine.stopping import stop_margin
from audiomarathon.errors import ANY_ERROR, AudioMarathonError, RecordError, SettingsError, warn
from audiomarathon.files import writing
from audiomarathon.models.registry import get_model
from audiomarathon.runs.folder import what_failed
from audiomarathon.settings import RunSettings, schedule_of
from audiomarathon.text import Say
from audiomarathon.tracking.tracker import Tracker


@dataclass
class Swept:
    """The results of a sweep so far.

    `failures` has the tasks that failed, as {task key: reason}.
    """

    results: list[Result] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every task ran and no sample failed."""
        return not self.failures and all(result.summary["complete"] for result in self.results)


_ALLOWED = "ratios from 0 to below 1: one (0.5), a list (0.1,0.5), a range first:last:step (0.1:0.9:0.1)"


#: Ratios of a sweep that names none, and has no schedule.
DEFAULT_RATIOS = "0.1:0.9:0.1"


def parse_ratios(text: str | None, schedule: str = "", default: str = DEFAULT_RATIOS) -> list[float]:
    """Return the ratios that a text names: a list, a range `first:last:step` (both ends included) or a single number.

    Steps are decimal, so 0.1:0.9:0.1 contains 0.3 and not 0.30000000000000004. Ratios are sorted and unique. If the
    text is None, take the ratio at which `schedule` ends or, without a schedule, read `default`.

    Raises
    ------
    SettingsError
        The text is none of these, or a ratio lies outside [0, 1).
    """
    if text is None and schedule:
        return [schedule_of(schedule)[-1][1]]
    text = default if text is None else text
    try:
        ratios = [ratio for part in text.split(",") for ratio in _range([Decimal(word) for word in part.split(":")])]
        if not all(ratio.is_finite() and 0 <= ratio < 1 for ratio in ratios):
            raise ValueError
    except (InvalidOperation, ValueError):
        raise SettingsError(f"--ratios={text}: not allowed; allowed: {_ALLOWED}") from None
    return sorted({float(ratio) for ratio in ratios})


def _range(words: list[Decimal]) -> list[Decimal]:
    if len(words) == 1:
        return words
    first, last, step = words  # ValueError for two or four
    if step <= 0 or last < first or not all(word.is_finite() for word in words) or (last - first) / step > 1000:
        raise ValueError
    return [first + step * n for n in range(int((last - first) / step) + 1)]


def grid(names: Sequence[str], ratios: Sequence[float], *, base: bool = True, **places: Any) -> list[Method]:
    """Return the settings of a sweep: every named method at every ratio.

    Parameters
    ----------
    names
        `all` means every method but base that takes the arguments `places`; methods whose package is not installed are
        left out, with a warning. `fast_v` gets every ratio of `ratios`; `fast_v:0.5` and `fast_v:0.5+snapkv:0.3`
        include their ratio. A method with ratio 0 is replaced by base (no compression), which comes first, once.
    base
        Whether to add base even if no name asks for it.
    places
        Arguments `layer`, `scope`, `at`, `tower_layer` and `schedule` of :func:`get_method`.

    Raises
    ------
    SettingsError
        A method is unknown, or a part of a joined method has no ratio.
    """
    methods: list[Method] = [get_method("base")] if base else []
    every = _every(places) if "all" in names else []
    for name in dict.fromkeys(method_name for given in names for method_name in (every if given == "all" else [given])):
        parts = name.split("+")
        if len(parts) > 1 and not all(split_ratio(part)[1] for part in parts):
            raise SettingsError(f"method {name}: each part of a joined method needs its own ratio (a:0.5+b:0.3)")
        if len(parts) > 1 or split_ratio(name)[1]:
            named = get_method(name, **places)
            methods.append(named if named.ratio or len(parts) > 1 else get_method("base"))
        else:
            methods += [_at(name, ratio, places) for ratio in ratios]
    if not methods:
        raise SettingsError("no settings to run: name a method, or leave out --no-base")
    once: dict[str, Method] = {}
    for method in methods:
        if _code(once.setdefault(method.label, method)) != _code(method):
            raise SettingsError(f"two different methods are called {method.label}; rename one of the classes")
    return sorted(once.values(), key=lambda method: not isinstance(method, Base))


def _every(places: Mapping[str, Any]) -> list[str]:
    """Return the keys of all methods but base that accept the arguments `places` (layer, scope, …).

    A method whose package is not installed is left out, with a warning. If no method accepts the arguments, raise the
    last method's error.
    """
    keys, at = list[str](), places.get("at", "layer")
    refused: SettingsError | None = None
    for method in all_methods():
        package, install = method.package
        if isinstance(method, Base) or at not in getattr(method, "places", ("layer",)):
            continue
        if at != "layer" and getattr(method, "scored", False):  # needs attention, which only the LLM's layers have
            continue
        try:
            _at(method.key, 0.0, places)
        except SettingsError as error:
            refused = error
            continue
        if package and find_spec(package) is None:
            warn(f"all: left out {method.key}, whose package is not installed: {install}")
        else:
            keys.append(method.key)
    if refused and not keys:
        raise refused
    return keys


def _code(method: Method) -> list[str | None]:
    return [source_hash(part) for part in method.parts().values()]


def _at(name: str, ratio: float, places: Mapping[str, Any]) -> Method:
    is_base = name.strip().lower() == Base.key
    # At ratio 0 too, an unknown name or a bad schedule is refused.
    tried = ratio or (None if places.get("schedule") else 0.5)
    method = get_method(name, 0.0 if is_base else tried, **places)
    return method if ratio else get_method("base")


def sweep(
    tasks: Sequence[Task],
    model: str,
    settings: RunSettings,
    methods: Sequence[Method],
    *,
    ray: Ray | None = None,
    say: Say = lambda _line: None,
    logs: Path | None = None,
    progress: bool | None = None,
    finished: Callable[[Swept], None] = lambda _swept: None,
    trackers: Sequence[Tracker] = (),
    margins: Mapping[str, float] | None = None,
) -> Swept:
    """Run every task under every setting. Return :class:`Swept`: the results, and the reasons of failed tasks.

    A failed task does not stop the others.

    Parameters
    ----------
    ray
        Options for Ray's workers; None runs the samples in this process.
    logs
        Folder for the logs, one for each task.
    finished
        Called after each task with the results so far, so that a summary exists even if a later task is killed.
    trackers
        Trackers that show each run, such as MLflow; see :mod:`audiomarathon.tracking`.
    margins
        {task key: largest loss of score against base}; the key "" is for all other tasks. A setting stops when it is
        decided whether it loses more. None runs all samples.

    Raises
    ------
    AudioMarathonError
        An error that stops all tasks, such as an unknown model, or a method that does not apply to the model. It is
        written to each log, and `finished` is called before it is raised.
    """
    check_batch_size(settings, methods)
    margin = stop_margin(margins, tasks, methods, settings) if margins else None
    swept, ready, remaining = Swept(), [], list(trackers)
    for task in tasks:
        _note(logs, task, f"=== {now()} {task.key}")
        with _log(logs, task, say, swept) as tell:
            check_edited([task], get_model(model), settings, methods)
            ready.append((task, load_task(task, settings, tell)))

    def anything_left(setup: Setup) -> bool:
        left = []
        for task, data in ready:
            with _log(logs, task, say, swept):
                left.append(not is_finished(setup, task, data, margin))
        return any(left)

    if not ready:
        return swept
    with ExitStack() as stack:
        try:
            known = known_as_finished(ready, model, settings, methods, margin) if ray is None else None
            opening = opened(model, settings, methods, ray, needed=anything_left, known=known, say=say)
            setup, engine = stack.enter_context(opening)
        except AudioMarathonError as error:
            for task, _data in ready:
                with _log(logs, task, lambda _line: None, swept):  # the caller reports the error once
                    raise error
            _write(finished, swept, say)
            raise
        for task, data in ready:
            if task.key in swept.failures:
                continue
            with _log(logs, task, say, swept) as tell:
                results = list(run_task(setup, engine, task, data, tell, progress, remaining, margin))
                swept.results += results
                for result in results:
                    tell(f"{task.key} {result.method}: {_in_a_line(result.summary)}; records in {result.folder}")
                    if result.summary["errors"]:
                        tell(f"error: {result.folder}: {what_failed(result.folder, result.summary['errors'])}")
            _write(finished, swept, say)
    return swept


def _write(finished: Callable[[Swept], None], swept: Swept, say: Say) -> None:
    """Call `finished` with the results so far.

    If it cannot write them, report the error, and let the sweep continue.
    """
    try:
        finished(swept)
    except (AudioMarathonError, OSError) as error:
        say(f"error: cannot write the summary so far: {error}")


def _in_a_line(summary: dict[str, Any]) -> str:
    score = "no score" if summary["score"] is None else f"score {summary['score']:.3f}"
    prefill = summary["timing"].get("llm_prefill_s")
    return f"{score}, n {summary['n']}" + (f", LLM prefill {prefill['p50']:.4g} s" if prefill else "")


@contextmanager
def _log(logs: Path | None, task: Task, say: Say, swept: Swept) -> Iterator[Say]:
    """Yield a function that prints a line and appends it to the task's log file in the folder `logs`.

    An error in the `with` block is stored in `swept.failures` and not raised, so that the other tasks still run.
    """

    def tell(line: str) -> None:
        say(line)
        with suppress(RecordError):  # a full disk must not end the sweep
            _note(logs, task, line)

    try:
        yield tell
    except AudioMarathonError as error:
        swept.failures[task.key] = str(error)
        tell(f"error: {error}" if task.key in str(error) else f"error: {task.key}: {error}")
    except ANY_ERROR as error:  # one task's failure must not stop the others
        swept.failures[task.key] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        with suppress(RecordError):
            _note(logs, task, traceback.format_exc())
        tell(f"error: {task.key}: {swept.failures[task.key]}")


def _note(logs: Path | None, task: Task, text: str) -> None:
    """Append a text to a task's log."""
    if logs is not None:
        file = logs / f"{task.key}.log"
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as stream:
                print(text, file=stream)
