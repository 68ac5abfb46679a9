"""Where a checkpoint's files come from, and what identifies them.

A checkpoint is a local folder, a hub id (downloaded once into the hub's cache), or the one that ships with the package.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from audiomarathon.errors import ModelError
from audiomarathon.models.registry import EMBEDDED

_SAMPLE_BYTES = 65536
_SAMPLES = 64
_TENSOR_BYTES = 4096
_MISTAKEN = {"Aero-1/Aero-1-7B": "lmms-lab/Aero-1-Audio"}  # named in the first release's README
_IGNORED = (
    "*.gguf",
    "*.onnx",
    "*.msgpack",
    "*.h5",
    "original/*",
    "*.pth",
    "consolidated*",
    "params.json",
    "vision-lora/*",
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes
    ----------
    name
        What people call it: the hub id, or the folder's name.
    path
        The folder that holds `config.json`.
    variant
        How a model departs from what is usual with its checkpoint ("30s"): its runs are not the usual ones.
    """

    name: str
    path: Path
    variant: str = ""

    @property
    def folder_name(self) -> str:
        """The name as a folder in a results tree: no separators, colons or spaces."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.name.rsplit("/", 1)[-1])
        return f"{name}-{self.variant}" if self.variant else name

    def fingerprint(self) -> str:
        """Return a hash of the checkpoint's content that is quick even for 60 GB.

        Small files count whole. Of safetensors files the header counts, and of each tensor its first and last bytes and
        a block in its middle, so that any fine-tune differs, whichever part it touched. An adapter in a folder of its
        own counts; files that are not downloaded do not.
        """
        digest = hashlib.sha256(self.variant.encode())
        kinds = (".json", ".safetensors", ".jinja", ".txt", ".bin")
        found = [*self.path.iterdir(), *self.path.glob("*/adapter_*")]
        files = {file.relative_to(self.path).as_posix(): file for file in found if file.suffix in kinds}
        for name, file in sorted(files.items()):
            if is_ignored(name):
                continue
            size = file.stat().st_size
            digest.update(f"{name}:{size}\n".encode())
            with file.open("rb") as stream:
                spans = _tensor_spans(stream, size) if file.suffix == ".safetensors" else _blocks(size)
                for start, end in spans:
                    stream.seek(start)
                    digest.update(stream.read(end - start))
        return digest.hexdigest()[:16]


def is_ignored(name: str) -> bool:
    """Tell whether a file of a checkpoint is left on the hub: weights that are never loaded."""
    return any(fnmatch(name, pattern) for pattern in _IGNORED)


def _tensor_spans(stream: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of a safetensors file that stand for it: its header, and parts of every tensor."""
    header = min(size, 8 + int.from_bytes(stream.read(8), "little"))
    yield 0, header
    try:
        tensors = json.loads(stream.read(header - 8))
        offsets = sorted(facts["data_offsets"] for name, facts in tensors.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError):
        yield from _blocks(size)  # a damaged file is the loader's to refuse
        return
    for first, last in offsets:
        middle = (first + last) // 2
        for start in (first, middle, max(first, last - _TENSOR_BYTES)):
            yield header + start, header + min(last, start + _TENSOR_BYTES)


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """Yield evenly spaced blocks of a file, all of it when it is small."""
    if size <= _SAMPLE_BYTES * _SAMPLES:
        yield 0, size
        return
    for index in range(_SAMPLES):
        start = (size - _SAMPLE_BYTES) * index // (_SAMPLES - 1)
        yield start, start + _SAMPLE_BYTES


def embedded_checkpoint() -> Path:
    """Return the folder of the checkpoint that ships with the package."""
    return Path(__file__).parent.parent / "embedded" / "checkpoint"


def find_checkpoint(source: str, *, download: bool = True) -> Checkpoint:
    """Find a checkpoint's files, fetching them from the hub when they are not in its cache.

    Parameters
    ----------
    source
        A folder, a hub id (`org/name`, optionally `org/name@revision`, which may be `refs/pr/N`), or `"embedded"`.
    download
        Whether the hub may be asked; False looks in the cache only.

    Raises
    ------
    ModelError
        When there is no such folder or repository, the hub refuses, or cannot be reached; it says what to do.
    """
    if source in _MISTAKEN:
        raise ModelError(f"{source}: there is no such model on the hub; did you mean {_MISTAKEN[source]}?")
    if source == EMBEDDED:
        return Checkpoint("embedded", embedded_checkpoint())
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: no config.json, so this folder is not a checkpoint")
        return Checkpoint(folder.resolve().name, folder.resolve())
    if folder.is_absolute() or source.startswith((".", "~")) or _name_of(source).count("/") != 1:
        raise ModelError(f"{source}: no such folder, and not a hub id of the form 'organisation/name'")
    return _from_hub(source, download=download)


def _name_of(source: str) -> str:
    """Return a hub id without its revision, which may hold slashes: `org/name@refs/pr/70`."""
    return source.partition("@")[0]


def _from_hub(source: str, *, download: bool) -> Checkpoint:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, revision = _name_of(source), source.partition("@")[2]
    fetch = f"audiomarathon models download {source}"
    try:
        path = snapshot_download(
            name, revision=revision or None, ignore_patterns=list(_IGNORED), local_files_only=not download
        )
    except HFValidationError as error:
        raise ModelError(f"{source}: not a hub id of the form 'organisation/name' ({error})") from None
    except GatedRepoError:
        raise ModelError(
            f"{name} is gated: accept its terms at https://huggingface.co/{name}, make a token at "
            f"https://huggingface.co/settings/tokens, then `export HF_TOKEN=…` and run `{fetch}`"
        ) from None
    except RevisionNotFoundError:
        raise ModelError(f"{name}: the hub has no revision {revision!r}") from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"{name}: the hub knows no such model; if it is private, `export HF_TOKEN=…` with a token that may read it"
        ) from None
    except LocalEntryNotFoundError:
        raise ModelError(
            f"{name} is not in the hub's cache, and the hub cannot be reached (no network, a proxy, HF_ENDPOINT or "
            f"HF_HUB_OFFLINE?); run `{fetch}` where it can, and copy the cache or set "
            f"MODEL_PATH to a folder that holds it"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status == 429:
            raise ModelError(
                f"{name}: the hub limits the rate of anonymous downloads (429); `export HF_TOKEN=…` raises the limit, "
                f"then run `{fetch}` again: it continues where it stopped"
            ) from None
        raise ModelError(f"{name}: the hub answered {status}: {error}; run `{fetch}` again to continue") from None
    except (_http_error(), OSError) as error:
        raise ModelError(f"{name}: download failed ({error}); run `{fetch}` again, it continues there") from None
    return Checkpoint(name, Path(path))


def _http_error() -> type[Exception]:
    """Return the base of all errors of the hub's HTTP library, which is another one from version to version."""
    from huggingface_hub.errors import HfHubHTTPError

    base: type[Exception] = HfHubHTTPError.__mro__[1]
    return base


def hub_cache() -> Path:
    """Return the folder in which the hub's downloads are kept (`HF_HUB_CACHE`, `HF_HOME`)."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
