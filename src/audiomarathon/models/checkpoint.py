"""Find a checkpoint's files, and compute a fingerprint of their content.

A checkpoint is a local folder, a hub id (downloaded once into the hub's cache), or the tiny one in this package.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from audiomarathon.errors import ModelError, WeightsError
from audiomarathon.files import json_object, open_plain
from audiomarathon.fingerprint import blocks, feed, join_rules
from audiomarathon.hub import hub_errors
from audiomarathon.models.checkpoint_files import check_files, is_loaded
from audiomarathon.models.registry import EMBEDDED

_SAMPLE_BYTES = 65536
_SAMPLES = 64
_SMALL_BYTES = _SAMPLE_BYTES * _SAMPLES
_GAP_BYTES = 1 << 20  # bytes between the starts of the hashed blocks of a large tensor
_MOST_HEADER_BYTES = 100_000_000  # limit of the safetensors format
_NAMED = 5  # absent files shown in a message
_MISTAKEN = {"Aero-1/Aero-1-7B": "lmms-lab/Aero-1-Audio"}  # wrong name in the first release's README: right name
_IGNORED = (
    "*.gguf", "*.onnx", "*.msgpack", "*.h5", "original/*", "*.pth", "consolidated*", "params.json",
    "vision-lora/*",
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes
    ----------
    name
        The hub id, or the folder's name.
    path
        The folder that holds `config.json`.
    variant
        Variant label, such as "30s" for a shortened audio window; part of the run's identity.
    """

    name: str
    path: Path
    variant: str = ""

    @property
    def folder_name(self) -> str:
        """The checkpoint's name, without separators, colons or spaces, as the name of its folder among the results."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.name.rsplit("/", 1)[-1])
        return f"{name}-{self.variant}" if self.variant else name

    def fingerprint(self) -> str:
        """Return a fingerprint of the checkpoint's content; quick even for 60 GB (see audiomarathon/fingerprint.py).

        Small files are hashed whole. In a large safetensors file, the header is hashed, and in each tensor both ends,
        the middle and a block per megabyte, so that fine-tuned weights give another hash. Adapters in subfolders are
        included. Files that are never downloaded are left out.
        """
        rule_1, rule_2 = (hashlib.sha256(self.variant.encode()) for _ in range(2))
        kinds = (".json", ".safetensors", ".jinja", ".txt", ".bin")
        paths = [*self.path.iterdir(), *self.path.glob("*/adapter_*")]
        files = {file.relative_to(self.path).as_posix(): file for file in paths if file.suffix in kinds}
        for name, file in sorted(files.items()):
            if is_ignored(name):
                continue
            size = file.stat().st_size
            with file.open("rb") as stream:
                # The length of the header, with the 8 bytes that state it.
                stated = 8 + int.from_bytes(stream.read(8), "little") if file.suffix == ".safetensors" else 0
                header = min(size, stated)
                # Rule 1 keeps its bug, to match older hashes: evenly spaced blocks instead of blocks of each tensor.
                read_1 = [(0, header), *_even_blocks(size)]
                read_2 = (size > _SMALL_BYTES and _tensor_blocks(stream, size, header)) or _even_blocks(size)
                for digest, spans in ((rule_1, read_1), (rule_2, read_2)):
                    digest.update(f"{name}:{size}\n".encode())
                    feed(digest, stream, spans)
        return join_rules(rule_1, rule_2)


def header_of(file: Path) -> dict[str, Any]:
    """Return the header of a safetensors file, as {tensor name: its type, shape and place in the file}.

    Raises
    ------
    WeightsError
        The file is not a safetensors file, or its header is larger than the format allows.
    """
    try:
        with open_plain(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json_object(stream.read(length)) if length <= _MOST_HEADER_BYTES else None
    except OSError as error:
        raise WeightsError(f"{file}: cannot be read ({error.strerror or error})") from error
    if header is None or not all(isinstance(tensor, dict) for tensor in header.values()):
        raise WeightsError(f"{file}: not a safetensors file, or cut short; download it again")
    return header


def is_ignored(name: str) -> bool:
    """Tell whether a file of a hub checkpoint is never downloaded, such as weights in a format that is not used."""
    return any(fnmatch(name, pattern) for pattern in _IGNORED)


def _tensor_blocks(stream: BinaryIO, size: int, header: int) -> list[tuple[int, int]]:
    """Return the byte ranges of a safetensors file to hash, as (start, end): the header, and blocks of every tensor.

    The list is empty for any other file, and for a damaged file (which cannot be loaded later).
    """
    if not 8 <= header <= _MOST_HEADER_BYTES:
        return []
    stream.seek(8)
    try:
        facts = json.loads(stream.read(header - 8))
        offsets = sorted(tensor["data_offsets"] for name, tensor in facts.items() if name != "__metadata__")
        if any(not 0 <= first <= last <= size - header for first, last in offsets):
            return []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    parts = (blocks(header + first, header + last, _GAP_BYTES) for first, last in offsets)
    return [(0, header), *itertools.chain.from_iterable(parts)]


def _even_blocks(size: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges (start, end) of evenly spaced blocks of a file; for a small file, its whole range."""
    if size <= _SMALL_BYTES:
        yield 0, size
        return
    for index in range(_SAMPLES):
        start = (size - _SAMPLE_BYTES) * index // (_SAMPLES - 1)
        yield start, start + _SAMPLE_BYTES


def embedded_checkpoint() -> Path:
    """Return the folder of the checkpoint that ships with the package."""
    return Path(__file__).parent.parent / "embedded" / "checkpoint"


def find_checkpoint(
    source: str, *, download: bool = True, named: str = "set MODEL_PATH to a folder that holds the checkpoint"
) -> Checkpoint:
    """Return a checkpoint with the folder of its files; download them if they are not in the hub's cache.

    Parameters
    ----------
    source
        A folder, a hub id (`org/name` or `org/name@revision`; a revision may be `refs/pr/N`), or `"embedded"`.
    download
        False looks only in the hub's cache.
    named
        Advice for the error message: how the user names a folder instead.

    Raises
    ------
    ModelError
        The folder or repository does not exist, or the hub refuses or cannot be reached; the message says what to
        do. Files that cannot be loaded safely raise its subclasses :class:`ConfigError` and :class:`WeightsError`.
    """
    if source in _MISTAKEN:
        raise ModelError(f"{source}: there is no such model on the hub; did you mean {_MISTAKEN[source]}?")
    if source == EMBEDDED:
        return Checkpoint("embedded", embedded_checkpoint())
    folder = Path(source).expanduser()
    name, _, revision = source.partition("@")  # a revision may contain slashes
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: no config.json, so this folder is not a checkpoint")
        path = folder.resolve()
        name = path.name
    elif folder.is_absolute() or source.startswith((".", "~")) or name.count("/") != 1:
        raise ModelError(f"{source}: no such folder, and not a hub id of the form 'organisation/name'")
    else:
        fetch = f"run `audiomarathon models download {source}`"
        copied = f"copy the cache, or {named}"
        with hub_errors(source, ModelError, what="model", fetch=fetch, instead=copied):
            path, absent = _snapshot(name, revision, download=download)
        if absent:
            more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
            lacks = f"its copy in the hub's cache lacks {', '.join(absent[:_NAMED])}{more}"
            where = "on a machine with access" if download else "to complete it"
            raise ModelError(f"{source}: {lacks}; {fetch} {where}, or {copied}")
    check_files(path, [file for file in path.glob("*.safetensors") if not is_ignored(file.name)])
    return Checkpoint(name, path)


def stated_layers(source: str) -> int | None:
    """Return the LLM's number of layers from a checkpoint's config.json; None if the file or the field is missing.

    None also for an encoder-decoder. Neither PyTorch nor transformers is imported, and nothing is downloaded.
    """
    folder = embedded_checkpoint() if source == EMBEDDED else Path(source).expanduser()
    file: Any = folder / "config.json"
    if not folder.is_dir() and source.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache

        name, _, revision = source.partition("@")
        file = try_to_load_from_cache(name, "config.json", revision=revision or None)
    try:
        config: Any = json_object(Path(file).read_bytes()) if isinstance(file, str | Path) else None
    except OSError:
        return None
    config = config or {}
    config = config.get("thinker_config") or config
    count = (config.get("text_config") or config).get("num_hidden_layers")
    return count if type(count) is int and not config.get("is_encoder_decoder") else None


def _snapshot(name: str, revision: str, *, download: bool) -> tuple[Path, list[str]]:
    """Return (folder of a hub checkpoint, downloaded if needed; files that it lacks and that must be loaded).

    If the hub cannot be reached, files that are never loaded may be absent, such as README.md after vLLM's download.
    """
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    snapshot = ""
    for local in dict.fromkeys((not download, True)):  # only the second call returns the folder of a commit
        try:
            folder = snapshot_download(
                name, revision=revision or None, ignore_patterns=list(_IGNORED), local_files_only=local
            )
        except LocalEntryNotFoundError as error:
            if not (snapshot := getattr(error, "snapshot_path", "")) and local:
                raise
        else:
            return Path(folder), []
        if snapshot:
            break
    listed = [file.path for file in get_cached_repo_tree(name, revision=revision or None)]
    pickled = (".bin",) if any(file.endswith(".safetensors") for file in listed) else ()
    needed = [file for file in listed if is_loaded(file) and not is_ignored(file) and not file.endswith(pickled)]
    return Path(snapshot), [file for file in needed if not (Path(snapshot) / file).is_file()]


def hub_cache() -> Path:
    """Return the folder for downloads from the hub, as set by the env vars `HF_HUB_CACHE` and `HF_HOME`."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
