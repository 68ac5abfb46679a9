"""Downloads of X-ARES' data from Zenodo (a local server here), from a folder, and from a zip."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from archive_makers import packed
from conftest import call
from xares_tars import clips, write_tar

from audiomarathon.data import archive
from audiomarathon.errors import DataError, MissingDataError
from audiomarathon.lock import hold
from audiomarathon.wings.encoders import zenodo
from audiomarathon.wings.encoders.xares.tasks import named

TASK = named(["cremad"])[0]
NAMES = [f"wds-audio-{part}-0.tar" for part in ("train", "valid", "test")]


@dataclass
class Server:
    """Serves one record.

    Attributes
    ----------
    asked
        (file, Range) of each request.
    refusals
        How many requests to answer with 429 first.
    cut
        Bytes of a file to send before closing the connection, by name, once each.
    """

    files: dict[str, bytes]
    ranges: bool = True
    refusals: int = 0
    retry_after: str = "7"
    cut: dict[str, int] = field(default_factory=dict)
    md5s: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    base: str = ""

    def record(self) -> dict[str, Any]:
        """Return the record as Zenodo's API does."""
        files = []
        for name, content in self.files.items():
            md5 = self.md5s.get(name, hashlib.md5(content).hexdigest())
            link = f"{self.base}/api/records/14646870/files/{name}/content"
            files.append({"key": name, "size": len(content), "checksum": f"md5:{md5}", "links": {"self": link}})
        return {"metadata": {"license": {"id": "cc-by-4.0"}}, "files": files}

    def reply(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        if self.refusals:
            self.refusals -= 1
            request.send_response(429)
            request.send_header("Retry-After", self.retry_after)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        part = request.path.removeprefix("/api/records/14646870").split("/")
        name, wanted = part[2] if len(part) > 2 else "", request.headers.get("Range")
        self.asked.append((name, wanted))
        content = self.files[name] if name else json.dumps(self.record()).encode()
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        request.wfile.write(content[start : start + self.cut.pop(name, len(content))])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    tars = [write_tar(tmp_path / "made" / name, clips([(name, {"label": "H"})])) for name in NAMES]
    made = Server({tar.name: tar.read_bytes() for tar in tars})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.reply(self)

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.base = f"http://127.0.0.1:{http.server_port}"
    monkeypatch.setenv(zenodo.BASE, made.base)
    thread = threading.Thread(target=partial(http.serve_forever, poll_interval=0.01))
    thread.start()
    yield made
    http.shutdown()
    http.server_close()
    thread.join()


def there(root: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (root / "cremad").iterdir() if file.name not in (".lock",)}


def test_files_of_an_encoder_task_are_downloaded_once_and_again_only_if_missing(server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    zenodo.fetch(TASK, tmp_path / "env", said.append)
    assert there(tmp_path / "env") == server.files | {zenodo.READY: b""}
    assert len(server.asked) == 4
    zenodo.fetch(TASK, tmp_path / "env", said.append)
    assert len(server.asked) == 4
    assert "nothing to download" in said[-1]
    (tmp_path / "env/cremad" / NAMES[0]).unlink()
    zenodo.fetch(TASK, tmp_path / "env")
    assert server.asked[4:] == [("", None), (NAMES[0], None)]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_partial_download_is_continued_or_restarted_if_ranges_are_ignored(
    ranges: bool, server: Server, tmp_path: Path
) -> None:
    server.ranges = ranges
    (tmp_path / "env/cremad").mkdir(parents=True)
    first, second, third = server.files.values()
    for name, content in zip(NAMES, (first[:3000], second, third + b"more"), strict=True):
        (tmp_path / f"env/cremad/.{name}.partial").write_bytes(content)
    zenodo.fetch(TASK, tmp_path / "env")
    assert there(tmp_path / "env") == server.files | {zenodo.READY: b""}
    assert {*server.asked} == {("", None), (NAMES[0], "bytes=3000-"), (NAMES[2], None)}


def test_a_download_whose_connection_ends_early_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cut = {NAMES[0]: 4096}
    zenodo.fetch(TASK, tmp_path / "env")
    assert there(tmp_path / "env") == server.files | {zenodo.READY: b""}
    assert (NAMES[0], "bytes=4096-") in server.asked


def test_a_wrong_md5_is_a_one_line_error_and_the_next_call_downloads_again(server: Server, tmp_path: Path) -> None:
    server.md5s = {NAMES[2]: "0" * 32}
    with pytest.raises(DataError, match=r"wds-audio-test-0.tar arrived damaged \(.*, expected .*md5:0+"):
        zenodo.fetch(TASK, tmp_path / "env")
    assert set(there(tmp_path / "env")) == set(NAMES[:2])
    server.md5s = {}
    zenodo.fetch(TASK, tmp_path / "env")
    assert there(tmp_path / "env") == server.files | {zenodo.READY: b""}


def test_a_busy_server_is_retried_after_the_stated_wait_and_finally_given_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()
    monkeypatch.setattr(time, "sleep", waits.append)
    server.refusals = 3
    assert zenodo.plan(TASK).size == sum(map(len, server.files.values()))
    assert waits == [7, 7, 7]
    server.refusals, server.retry_after = 1, "Wed, 21 Oct 2026 07:28:00 GMT"
    assert zenodo.plan(TASK).licence == "cc-by-4.0"
    assert waits[3:] == [60]
    server.refusals, server.retry_after = 99, "9999"
    with pytest.raises(DataError, match=r"429.*--from FOLDER"):
        zenodo.fetch(TASK, tmp_path / "env")
    assert waits[4:] == [300] * 4


@pytest.mark.parametrize("name", ["../x.tar", ".lock", "a/b.tar"])
def test_a_downloaded_file_name_that_leaves_the_folder_is_refused(name: str, server: Server, tmp_path: Path) -> None:
    server.files[name] = b"x"
    with pytest.raises(DataError, match="is not allowed as a file's name"):
        zenodo.fetch(TASK, tmp_path / "env")


def test_an_invalid_zenodo_record_or_an_unreachable_server_is_a_one_line_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "record", lambda: {"message": "gone"})
    (private,) = named(["liveenv"])
    for task, url, told in (
        (TASK, server.base, "is not a Zenodo record"), (TASK, "http://127.0.0.1:1", "ConnectError"),
        (private, server.base, "liveenv cannot be downloaded: .*private"),
        (replace(TASK, zenodo="", private=False), server.base, "cremad cannot be downloaded: it has no zenodo_id"),
    ):  # fmt: skip
        monkeypatch.setenv(zenodo.BASE, url)
        with pytest.raises(DataError, match=told):
            zenodo.plan(task)


def test_a_download_is_refused_if_the_disk_is_too_small_or_another_download_runs(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold(tmp_path / "env/cremad/.lock"), pytest.raises(DataError, match="another download"):
        zenodo.fetch(TASK, tmp_path / "env")
    record = server.record()
    for file in record["files"]:
        file["size"] -= 1
    monkeypatch.setattr(server, "record", lambda: record)
    with pytest.raises(DataError, match=r"sends more than the [0-9,]+ bytes that Zenodo states"):
        zenodo.fetch(TASK, tmp_path / "env")
    monkeypatch.setattr(archive, "SPARE_BYTES", 10**18)
    server.asked.clear()
    with pytest.raises(DataError, match="GB needed"):
        zenodo.fetch(TASK, tmp_path / "env")
    assert server.asked == [("", None)]  # no file was requested


def test_a_zip_in_the_zenodo_record_is_unpacked(server: Server, tmp_path: Path) -> None:
    tars, server.files = server.files, {"all.zip": packed(tmp_path / "made", tmp_path / "all.zip").read_bytes()}
    zenodo.fetch(TASK, tmp_path / "env")
    assert there(tmp_path / "env") == tars | {zenodo.READY: b""}


@pytest.mark.parametrize("place", ["folder", "env", "zip", "zip in folder"])
def test_data_downloaded_by_hand_is_used_from_a_folder_or_zip(place: str, server: Server, tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "readme.md").write_text("other")
    if place == "env":
        (made.rename(tmp_path / "cremad"), write_tar(tmp_path / "wds-audio-train-9.tar", []))
        made = tmp_path
    elif place != "folder":
        (hand := tmp_path / "hand").mkdir()
        zipped = packed(tmp_path, hand / "14646870.zip")
        made = zipped if place == "zip" else hand
    zenodo.from_folder(TASK, made, tmp_path / "env")
    assert there(tmp_path / "env") == server.files | {zenodo.READY: b""}
    assert server.asked == []


def test_the_download_command_puts_data_into_the_given_folder(server: Server, tmp_path: Path) -> None:
    zipped = packed(tmp_path / "made", tmp_path / "hand.zip")
    assert call("encoder", "download", "cremad", "--from", zipped, "--data", tmp_path / "env")[0] == 0
    assert there(tmp_path / "env") == server.files | {zenodo.READY: b""}


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "md5sum"))), reason="needs curl and md5sum")
def test_the_curl_script_downloads_the_same_files(server: Server, tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "X-ARES" / "tools" / "download_manually.sh"
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    server.md5s = {NAMES[1]: "0" * 32}
    done = run(["bash", script, "cremad"])
    assert done.returncode == 1
    assert "wds-audio-valid-0.tar: arrived damaged" in done.stderr
    server.md5s = {}
    assert run(["bash", script, "cremad"]).returncode == 0
    assert there(tmp_path / "env") == server.files | {zenodo.READY: b""}
    asked = len(server.asked)
    assert run(["bash", script, "cremad"]).returncode == 0
    assert len(server.asked) == asked
    assert "nothing: no such task" in run(["bash", script, "nothing"]).stderr


def test_a_download_source_that_lacks_tars_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "made" / NAMES[0], [])
    with pytest.raises(MissingDataError, match=r"has no wds-audio-valid\*.tar, wds-audio-test\*.tar of cremad"):
        zenodo.from_folder(TASK, tmp_path / "made", tmp_path / "env")
    assert not (tmp_path / "env/cremad" / zenodo.READY).exists()
    with pytest.raises(DataError, match="no such folder or archive"):
        zenodo.from_folder(TASK, tmp_path / "nowhere", tmp_path / "env")
