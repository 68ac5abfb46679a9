"""Find an audio encoder by name and load it.

An encoder can be built in, or come from a plug-in, a Python file or the hub, or be the audio tower of an audio LLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from audiomarathon.errors import EncoderError, SettingsError
from audiomarathon.object_reference import FILE, importing_from, is_reference, object_at, run_file
from audiomarathon.plugins import look_up, plugins
from audiomarathon.wings.encoders.encoder import Encoder, from_module, loading

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class EncoderSpec:
    """The name of an encoder, and the function that makes it.

    Plug-ins add encoders by entry points in the group `audiomarathon.encoders`.

    `make` takes the arguments of `--encoder-arg` as keywords and returns the `nn.Module`.
    """

    key: str
    make: Callable[..., torch.nn.Module]
    aliases: tuple[str, ...] = ()


def _make(module: str, name: str, **arguments: Any) -> torch.nn.Module:
    kind = getattr(import_module(f"{__package__}.{module}"), name)
    made: torch.nn.Module = kind(**arguments).eval()
    return made


BUILT_IN = (
    EncoderSpec("baseline:dasheng", partial(_make, "baselines", "DashengEncoder")),
    EncoderSpec("baseline:wav2vec2", partial(_make, "baselines", "Wav2vec2Encoder")),
    EncoderSpec("baseline:whisper", partial(_make, "baselines", "WhisperEncoder")),
    EncoderSpec("baseline:data2vec", partial(_make, "baselines", "Data2VecEncoder")),
    EncoderSpec("control:logmel", partial(_make, "controls", "LogMelEncoder")),
    EncoderSpec("control:random", partial(_make, "controls", "RandomEncoder")),
    EncoderSpec("control:length-loudness", partial(_make, "controls", "LengthLoudnessEncoder")),
    EncoderSpec("control:noise", partial(_make, "controls", "NoiseEncoder")),
)


def all_encoders() -> tuple[EncoderSpec, ...]:
    """Return the named encoders: the built-in ones, then those of plug-ins."""
    return (*BUILT_IN, *plugins("audiomarathon.encoders", EncoderSpec, BUILT_IN))


def load_encoder(name: str, arguments: Mapping[str, str] | None = None, device: str = "cpu") -> Encoder:
    """Load an audio encoder by its name.

    Parameters
    ----------
    name
        `FILE.py[:CLASS]`, `PACKAGE.MODULE:CLASS`, `hf:ID_OR_FOLDER`, `tower:MODEL[@point]`, or the key of a built-in
        encoder (`baseline:whisper`, `control:logmel`) or of an encoder from a plug-in.
    arguments
        Keyword arguments of the encoder's constructor; texts that spell an int, a float or a bool are converted.

    Raises
    ------
    SettingsError, EncoderError, ModelError
        For an unknown name, a file with no encoder or several, or any error while loading; the message has one line.
    """
    typed = {key: _value(text) for key, text in (arguments or {}).items()}
    if file := FILE.fullmatch(name):
        path = Path(file[1]).expanduser().resolve()
        with loading(name), importing_from(path.parent) as beside:
            kind = _class_in(path, file[2])
            module = kind(**typed)
        files = [Path(imported.__file__) for imported in beside if imported.__file__]
        return from_module(module, kind.__name__, typed, device, files=[path, *files])
    if is_reference(name, {"hf", "tower", *(spec.key.partition(":")[0] for spec in all_encoders())}):
        _, kind = object_at(name, "encoder", _is_module, "a torch.nn.Module")
        with loading(name):
            module = kind(**typed)
        return from_module(module, kind.__name__, typed, device)
    if name.startswith("tower:"):
        from audiomarathon.wings.encoders.tower import load_tower

        with loading(name):
            return load_tower(name, typed, device)
    if name.startswith("hf:"):
        spec = EncoderSpec(
            name.partition("@")[0].rstrip("/"), partial(_make, "hf", "hugging_face_encoder", model=name[3:])
        )
    else:
        try:
            spec = look_up(name, all_encoders(), kind="encoder")
        except SettingsError as error:
            more = "hf:ID_OR_FOLDER, FILE.py[:CLASS], PACKAGE.MODULE:CLASS, tower:MODEL[@point]"
            raise SettingsError(f"{error}, {more}") from None
    with loading(name):
        module = spec.make(**typed)
    facts = {} if ":" in spec.key else typed  # these take only a checkpoint's location, and its content is hashed
    return from_module(module, re.split("[:/]", spec.key)[-1], facts, device)


def _class_in(path: Path, wanted: str | None) -> type[torch.nn.Module]:
    """Return the class called `wanted` in a Python file; if `wanted` is None, the file's only class named …Encoder.

    Imported classes do not count.
    """
    module = run_file(path)
    kinds = [value for value in vars(module).values() if _is_module(value)]
    classes = {kind.__name__: kind for kind in kinds if kind.__module__ == module.__name__}
    chosen = [key for key in classes if (key == wanted if wanted else key.endswith("Encoder"))]
    if len(chosen) != 1:
        problem = f"no nn.Module class named {wanted or '…Encoder'}"
        if chosen:
            problem = f"several encoders (…Encoder); name one, as {path.name}:{chosen[0]}"
        raise EncoderError(f"{path}: defines {problem}; it defines: {', '.join(classes) or 'none'}")
    return classes[chosen[0]]


def _is_module(value: Any) -> TypeGuard[type[torch.nn.Module]]:
    import torch

    return isinstance(value, type) and issubclass(value, torch.nn.Module)


def _value(text: str) -> Any:
    try:
        value = json.loads(text.lower())
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, int | float) else text
