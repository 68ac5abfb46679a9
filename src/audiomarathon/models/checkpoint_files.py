"""Check a checkpoint folder before any library opens it.

Otherwise a library might wait forever for a file that is a pipe, build 10⁸ layers, or run code inside pickled weights.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from audiomarathon.errors import ConfigError, ModelError, WeightsError

_KINDS = (".json", ".jinja", ".txt", ".model", ".safetensors", ".bin")
_TEXTS = re.compile(r"(?i)\.|licen[cs]e|notice|readme|copying|requirements|.*policy")
_WEIGHTS = (".safetensors", ".bin")
_OBJECTS = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer_config.json", "tokenizer.json", "chat_template.json", "special_tokens_map.json",
    "adapter_config.json",
)  # fmt: skip
_MOST_BYTES = 200_000_000  # the largest published tokenizer.json has 33 MB
_MOST_DEPTH = 50
_LAYERS = ("num_hidden_layers", "encoder_layers", "num_layers", "depth", "num_blocks", "conf_num_hidden_layers")
_WIDTHS = ("hidden_size", "d_model")
_FEED_FORWARD = ("intermediate_size", "encoder_ffn_dim")
_HEADS = ("num_attention_heads", "num_key_value_heads", "num_heads", "encoder_attention_heads")
_OTHERS = ("head_dim", "num_mel_bins", "output_dim", "n_window")
_LONG = ("vocab_size", "max_position_embeddings")
_PARTS = ("text_config", "audio_config", "thinker_config")
#: Highest allowed sizes in a config, a hundred times those of published models.
_MOST = (
    dict.fromkeys((*_LAYERS, *_HEADS), 10_000)
    | dict.fromkeys((*_WIDTHS, *_FEED_FORWARD, *_OTHERS), 1_000_000)
    | dict.fromkeys(_LONG, 100_000_000)
)


def is_loaded(name: str) -> bool:
    """Tell whether libraries read the checkpoint's file with this path: licences and pictures, for example, are not
    read.
    """
    folder, _, file = name.rpartition("/")
    if folder:
        return "/" not in folder and (file == "config.json" or file.startswith("adapter_"))
    return file.endswith(_KINDS) and not _TEXTS.match(file)


def check_files(folder: Path, weights: list[Path]) -> None:
    """Raise an error if a checkpoint folder cannot be loaded safely.

    Parameters
    ----------
    weights
        The weight files to load.

    Raises
    ------
    ConfigError, WeightsError
        A file cannot be loaded safely; the message names the file, its fault, and what is allowed.
    """
    for file in sorted([*folder.iterdir(), *folder.glob("*/adapter_*")]):
        if file.suffix in _KINDS:
            _check_plain(file)
    for file in sorted(folder.glob("*.bin")):
        if file.name != "training_args.bin" and not weights:
            raise WeightsError(f"{file}: pickled weights, which may run code when loaded; allowed: *.safetensors")
    for name in _OBJECTS:
        if (folder / name).exists():
            content = _read_object(folder / name)
            if name == "config.json":
                _check_sizes(folder / name, content, sum(file.stat().st_size for file in weights))
    for file in sorted(folder.glob("*.index.json")):
        _check_index(file)


def _check_plain(file: Path) -> None:
    kind: type[ModelError] = WeightsError if file.suffix in _WEIGHTS else ConfigError
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise kind(f"{file}: a broken link ({error.strerror}); allowed: plain files") from None
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a pipe or device"
        raise kind(f"{file}: is {what}; allowed: a plain file")


def _read_object(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"{file}: {file.stat().st_size:,} bytes; allowed: up to {_MOST_BYTES:,}")
    try:
        content = json.loads(file.read_bytes())
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply; allowed: {_MOST_DEPTH} levels") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds a {type(content).__name__}; allowed: an object")
    return content


def _check_sizes(file: Path, config: dict[str, Any], weight_bytes: int) -> None:
    """Raise ConfigError for sizes in a config that are impossible, or too large for the weight files.

    A model of such a size would fill the memory.
    """
    for part in _objects(file, config):
        for name in _PARTS:
            if not isinstance(part.get(name, {}), dict):
                raise ConfigError(f"{file}: {name} is a {type(part[name]).__name__}; allowed: an object")
        sizes = {name: part[name] for name in _MOST if part.get(name) is not None}
        for name, value in sizes.items():
            numbers = value if name in _FEED_FORWARD and isinstance(value, list) and value else [value]
            if any(type(number) is not int or not 1 <= number <= _MOST[name] for number in numbers):
                raise ConfigError(
                    f"{file}: {name} is {str(value)[:50]}; allowed: whole numbers from 1 to {_MOST[name]:,}"
                )

        def first(names: tuple[str, ...], sizes: dict[str, Any] = sizes) -> int:
            return next((max(v) if isinstance(v, list) else int(v) for n in names if (v := sizes.get(n))), 0)

        layer = first(_HEADS) * first(("head_dim",)) + (0 if part.get("num_experts") else first(_FEED_FORWARD))
        rows = first(("vocab_size",)) + first(_LAYERS) * layer
        parameters = first(_WIDTHS) * rows
        if weight_bytes and parameters > 4 * weight_bytes:
            raise ConfigError(
                f"{file}: describes at least {parameters:,} parameters, but the weights have {weight_bytes:,} bytes"
            )


def _objects(file: Path, value: Any, depth: int = 1) -> Iterator[dict[str, Any]]:
    """Yield every JSON object (dict) in a value read from JSON: the value itself, and all objects inside it."""
    if depth > _MOST_DEPTH:
        raise ConfigError(f"{file}: nested too deeply; allowed: {_MOST_DEPTH} levels")
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(file, part, depth + 1)


def _check_index(file: Path) -> None:
    shards = _read_object(file).get("weight_map")
    if not isinstance(shards, dict):
        raise WeightsError(f"{file}: no object weight_map that names the file of each tensor")
    for tensor, shard in shards.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise WeightsError(f"{file}: {tensor} is in {str(shard)[:200]!r}; allowed: files of this folder")
