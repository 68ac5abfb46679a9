"""The errors a user can meet.

Every message is one line that says what was found, where, and what is allowed or what to do; the command line prints it
without a traceback and exits with the class's code.
"""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path


def told(error: BaseException) -> str:
    """Return an exception as one line of at most 500 characters: its kind and its message."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # a stranger's exception may not even have a message
        text = "its message cannot be shown"
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


def warn(message: str) -> None:
    """Warn the user, at the line that called this package: a notebook shows no line of ours."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


class AudioMarathonError(Exception):
    """Base of every error that is the user's to mend (bad input, missing data, a full disk)."""

    exit_code: int = 2


class SettingsError(AudioMarathonError):
    """A flag or an env var holds a value that is not allowed, or two of them contradict each other."""


class DataError(AudioMarathonError):
    """A task's data is missing or malformed. The message names the file and, where there is one, the row."""


class MissingDataError(DataError):
    """A task's data is nowhere under the data root."""


class PluginError(DataError):
    """A third party's task or method raised an error of its own. The message names the plug-in."""


class AudioError(AudioMarathonError):
    """A clip cannot be decoded to usable samples.

    Attributes
    ----------
    path
        The clip.
    reason
        What is wrong with it, in a few words.
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(str(path))
        self.reason = reason


class ModelError(AudioMarathonError):
    """A checkpoint cannot be loaded as the family it is meant to be, or its internals moved."""


class ConfigError(ModelError):
    """A file that describes a checkpoint is no plain file, or holds what no model has. The message names the file."""


class LogitsError(ModelError):
    """A model's logits are not finite numbers: its reply means nothing."""


class TemplateError(ModelError):
    """A chat template cannot word a prompt. The message names its file."""


class WeightsError(ModelError):
    """A checkpoint's weights are not plain safetensors files of its folder, or not finite numbers."""


class EncoderError(AudioMarathonError):
    """An audio encoder cannot be loaded, or its output is not what it declares. The message names it."""


class MethodError(AudioMarathonError):
    """A pruning method or press cannot do what was asked of it on this model."""


class ExecutorError(AudioMarathonError):
    """Workers cannot be had, differ from each other, or are all lost."""


class OutputError(AudioMarathonError):
    """Standard output cannot be written; without a message where its reader has left, as `| head` does."""


class RecordError(AudioMarathonError):
    """A run folder cannot be used: locked by another process, another run's identity, or not writable."""
