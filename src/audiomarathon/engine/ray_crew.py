"""Ray's workers: started, taken in when their model is loaded, replaced when they die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from audiomarathon.engine.ray_worker import Opened
from audiomarathon.errors import AudioMarathonError, ExecutorError

_FAILED_STARTS = 3  # in a row, after which no worker is replaced any more
_PATIENCE_S = 60  # for a worker to start, before it is looked whether there is room for one
_PING_S = 10
_LOOK_S = 5  # between two looks whether the head is there, while nothing comes back
_QUIET_S = 60  # without an answer, after which it is said who is waited for; then after twice as long, and so on


@dataclass
class Crew:
    """The workers: those that load, and those that are free; one with a handful is in neither.

    Attributes
    ----------
    has_room
        Whether any machine is large enough for a worker.
    check_cluster
        Raises ExecutorError when the cluster is lost.
    """

    start: Callable[[], Any]
    say: Callable[[str], None]
    has_room: Callable[[], bool]
    check_cluster: Callable[[], None]
    starting: dict[Any, Any] = field(default_factory=dict)
    idle: list[Any] = field(default_factory=list)
    known: dict[Any, Opened] = field(default_factory=dict)
    first: Opened | None = None
    failed_starts: int = 0

    def hire(self) -> None:
        """Start a worker; it is free once its model is loaded."""
        self.check_cluster()
        worker, opening = self.start()
        self.starting[opening] = worker

    def wait(self, busy: Mapping[Any, tuple[Any, Any]] | None = None) -> list[Any]:
        """Return a call or a start that has ended.

        Parameters
        ----------
        busy
            Calls, each with its worker first.

        Raises
        ------
        ExecutorError
            When there is no worker left and no machine for another, or the cluster's head is lost.
        """
        busy = busy or {}
        if not (self.known or self.starting):  # lost in an earlier task
            self.hire()
        waiting, quiet, told = [*busy, *self.starting], 0, _QUIET_S
        while not (ended := ray.wait(waiting, timeout=_LOOK_S)[0]):
            self.check_cluster()
            quiet += _LOOK_S
            if not self.known and quiet % _PATIENCE_S == 0:
                if not self.has_room():
                    raise _none_left("no machine is left that has room for one")
                self.say(
                    "Ray: still waiting for a worker, which loads the model or has to wait for others' work to end"
                )
            elif busy and quiet >= told:
                told *= 2
                who = ", ".join(f"{self.known[one].host} (process {self.known[one].pid})" for one, *_ in busy.values())
                self.say(f"Ray: no answer for {quiet} s; waiting for the workers on {who}")
        return list(ended)

    def welcome(self, opening: Any, *, timing: bool) -> None:
        """Take in a worker whose start has ended, well or not."""
        worker = self.starting.pop(opening)
        try:
            opened: Opened = ray.get(opening)
            if self.first and (differing := differences(self.first, opened, timing=timing)):
                raise ExecutorError(f"worker on {opened.host} differs from the one on {self.first.host}: {differing}")
        except RayError as error:
            self._not_started(cause_of(error), worker)
        except ExecutorError as error:
            self._not_started(error, worker)
        else:
            if self.first is None:
                self.first = opened
                for line in opened.said:
                    self.say(line)
            self.failed_starts, self.known[worker] = 0, opened
            self.idle.append(worker)

    def _not_started(self, error: BaseException, worker: Any) -> None:
        ray.kill(worker)
        self.failed_starts += 1
        if self.first is None and isinstance(error, AudioMarathonError):
            raise error  # the user's to mend, and the same for every worker
        self.say(f"warning: a worker could not be started: {_in_a_line(error)}")
        if isinstance(error, AudioMarathonError) or self.failed_starts >= _FAILED_STARTS:
            if not (self.starting or self.known):
                raise _none_left(_in_a_line(error))
        else:
            self.hire()

    def mourn(self, worker: Any) -> None:
        """Put a dead worker aside, and free ones that died with it, and start others in their place."""
        for lost in (worker, *self._dead_among_idle()):
            opened = self.known.pop(lost)
            ray.kill(lost)  # it may be just out of reach, and would hold its GPU
            self.say(f"warning: the worker on {opened.host} (process {opened.pid}) is lost; its samples are done again")
            self.hire()

    def _dead_among_idle(self) -> list[Any]:
        """Return the free workers that do not live any more, and count on them no longer."""
        pings = {one.__ray_ready__.remote(): one for one in self.idle}
        answered = ray.wait([*pings], num_returns=len(pings), timeout=_PING_S)[0] if pings else []
        dead = [pings[ping] for ping in answered if not _is_well(ping)]
        self.idle = [one for one in self.idle if one not in dead]
        return dead


def differences(first: Opened, other: Opened, *, timing: bool) -> str:
    """Say in what two workers differ that makes a run one run; "" where in nothing."""
    pairs = {
        "checkpoint": (first.checkpoint_hash, other.checkpoint_hash),
        "dtype": (first.hardware.dtype, other.hardware.dtype),
        "device": (first.hardware.name, other.hardware.name) if timing else ("", ""),
    }
    return ", ".join(f"{name} {theirs}, not {ours}" for name, (ours, theirs) in pairs.items() if ours != theirs)


def cause_of(error: RayError) -> BaseException:
    """Return what was raised in the worker, where that is what went wrong."""
    cause: BaseException | None = error.cause if isinstance(error, RayTaskError) else None
    return cause or error


def _is_well(ping: Any) -> bool:
    try:
        ray.get(ping)
    except RayError:
        return False
    return True


def _none_left(why: str) -> ExecutorError:
    return ExecutorError(f"no worker is left ({why}); what is recorded is safe, run again to go on")


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
