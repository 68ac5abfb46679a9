"""The errors a user can meet.

Every message is one line: what was found, where, and what is allowed or what to do. The command line prints it without
a traceback and exits with the class's code.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from audiomarathon.text import plain

#: Everything that third-party code may raise except Ctrl-C. `sys.exit` is included, since it would end a command
#: silently.
ANY_ERROR = (Exception, SystemExit)


def told(error: BaseException) -> str:
    """Format an exception as one line of at most 500 characters: its class and its message."""
    try:
        text = " ".join(str(error).split())
    except BaseException:  # str() of a plug-in's exception may fail too
        text = "its message cannot be shown"
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


class BusyMachineWarning(UserWarning):
    """Warn that measured times are too long because other programs use the machine.

    A command shows the warning only once, also if the number of busy programs changes later.
    """


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the user's line that called this package, since notebooks show that line."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class AudioMarathonError(Exception):
    """Base of the errors that the user can fix (bad input, missing data, a full disk)."""

    exit_code: int = 2


class SettingsError(AudioMarathonError):
    """A flag or an env var holds a value that is not allowed, or two of them contradict each other."""


class DataError(AudioMarathonError):
    """A task's data is missing or malformed. The message names the file and, if known, the row."""


class MissingDataError(DataError):
    """A task's data is not under the data root."""


class PluginError(DataError):
    """A third party's task or method raised an error. The message names the plug-in."""


class AudioError(AudioMarathonError):
    """A clip cannot be decoded to usable audio.

    Attributes
    ----------
    path
        File of the clip.
    reason
        What is wrong with it, in a few words.
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(path, reason)  # what pickle makes the error from again
        self.path = Path(str(path))
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.reason}"


class ModelError(AudioMarathonError):
    """A checkpoint cannot be loaded as a model of its family, or transformers changed its internals."""


class ConfigError(ModelError):
    """A checkpoint's config file has impossible values, or is not a plain file. The message names the file."""


class LogitsError(ModelError):
    """A model's logits hold NaN or infinite numbers, so its reply is meaningless."""


class TemplateError(ModelError):
    """A chat template cannot render a prompt. The message names its file."""


class WeightsError(ModelError):
    """A checkpoint's weights are not plain safetensors files in its folder, or hold NaN or infinite numbers."""


class EncoderError(AudioMarathonError):
    """An audio encoder cannot be loaded, or its output contradicts its declaration. The message names the encoder."""


class MethodError(AudioMarathonError):
    """A compression method cannot work with this model, or not with these settings."""


class ExecutorError(AudioMarathonError):
    """Ray workers cannot be started, differ from each other, or have all died."""


class OutputError(AudioMarathonError):
    """Standard output cannot be written. There is no message if the reading program has ended, as with `| head`."""


class RecordError(AudioMarathonError):
    """A run folder cannot be used: another process locks it, it belongs to another run, or it is not writable."""


@contextmanager
def blaming(what: str, kind: type[AudioMarathonError] = PluginError) -> Iterator[None]:
    """Inside the block, re-raise any error of third-party code as a one-line error of class `kind`.

    The line starts with `what`, then quotes the original error. Errors of this package and Ctrl-C pass unchanged.
    A `sys.exit` in that code becomes such an error too, since it would end a command silently.
    """
    try:
        yield
    except (AudioMarathonError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise kind(f"{what} {plain(told(error))}") from error
