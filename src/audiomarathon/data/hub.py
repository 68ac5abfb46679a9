"""Read a data set on the Hugging Face hub as a source of files with hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audiomarathon.benchmarks.locate import HUB_DATASET
from audiomarathon.data.archive_rules import Entry
from audiomarathon.errors import DataError
from audiomarathon.hub import hub_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_AT_ONCE = 4
_BLOCK = 8 << 20  # bytes per request when parts of a file are read


class HubSource:
    """A data set on the Hugging Face hub as a source. :meth:`entries` picks the newest revision for all later reads.

    Parameters
    ----------
    api
        Client of the hub; None creates a client.
    """

    def __init__(self, repository: str = HUB_DATASET, api: HfApi | None = None) -> None:
        self.repository = repository
        if api is None:
            from huggingface_hub import HfApi
            from huggingface_hub.utils.tqdm import disable_progress_bars

            api = HfApi()
            disable_progress_bars()  # otherwise the hub's client would draw a bar for each file below our bar
        self._api = api
        self._revision: str | None = None

    @property
    def name(self) -> str:
        """Name of the repository, with the revision once it is known."""
        return f"{self.repository}@{self._revision}" if self._revision else self.repository

    def entries(self) -> list[Entry]:
        """Return the data set's files, each with the hash that the hub states."""
        from huggingface_hub.hf_api import RepoFile

        with _errors(self.repository):
            self._revision = self._api.dataset_info(self.repository).sha
            list_tree = partial(self._api.list_repo_tree, repo_type="dataset", revision=self._revision)
            entries = [
                Entry(file.path, file.size, f"sha256:{file.lfs.sha256}" if file.lfs else f"git:{file.blob_id}")
                for file in list_tree(self.repository, recursive=True)
                if isinstance(file, RepoFile)
            ]
        for entry in entries:
            if entry.path.startswith("/") or ".." in entry.path.split("/") or "\\" in entry.path:
                raise DataError(f"{self.name}: {entry.path!r} would leave the data root")
        return entries

    def fetch(self, wanted: Sequence[Entry], stage: Path) -> Iterator[tuple[Entry, Path]]:
        """Download the wanted files into `stage`, several at a time; yield each entry with the path of its copy.

        An interrupted download is resumed.
        """

        download = partial(self._api.hf_hub_download, repo_type="dataset", revision=self._revision)

        def fetch_entry(entry: Entry) -> Path:
            return Path(download(self.repository, entry.path, local_dir=stage / "hub"))

        with _errors(self.repository), ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                # In groups, so that few files wait on disk for the caller.
                for start in range(0, len(wanted), _AT_ONCE):
                    group = wanted[start : start + _AT_ONCE]
                    yield from zip(group, pool.map(fetch_entry, group), strict=True)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        """Open a file of the data set as a seekable stream; only the parts that are read are downloaded."""
        from huggingface_hub import HfFileSystem

        name = f"datasets/{self.repository}/{path}"
        with (
            _errors(self.repository),
            HfFileSystem().open(name, revision=self._revision, block_size=_BLOCK) as file,
        ):
            yield file


def _errors(name: str) -> AbstractContextManager[None]:
    return hub_errors(
        name,
        DataError,
        what="data set",
        fetch="run the same command again",
        instead="take a copy on disk: --from FOLDER or ARCHIVE",
    )
