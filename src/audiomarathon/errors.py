"""The errors a user can meet.

Every message is one line that says what was found, where, and what is allowed or what to do; the command line prints it
without a traceback and exits with the class's code.
"""

from __future__ import annotations

from pathlib import Path


class AudioMarathonError(Exception):
    """Base of every error that is the user's to mend (bad input, missing data, a full disk)."""

    exit_code: int = 2


class SettingsError(AudioMarathonError):
    """A flag or an env var holds a value that is not allowed, or two of them contradict each other."""


class DataError(AudioMarathonError):
    """A task's data is missing or malformed. The message names the file and, where there is one, the row."""


class MissingDataError(DataError):
    """A task's data is nowhere under the data root."""


class AudioError(AudioMarathonError):
    """A clip cannot be decoded to usable samples.

    Attributes
    ----------
    path
        The clip.
    reason
        What is wrong with it, in a few words.
    """

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason


class ModelError(AudioMarathonError):
    """A checkpoint cannot be loaded as the family it is meant to be, or its internals moved."""


class MethodError(AudioMarathonError):
    """A pruning method or press cannot do what was asked of it on this model."""


class ExecutorError(AudioMarathonError):
    """Workers cannot be had, differ from each other, or are all lost."""


class RecordError(AudioMarathonError):
    """A run folder cannot be used: locked by another process, another run's identity, or not writable."""
