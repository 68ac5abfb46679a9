"""Untrusted archives: damaged archives, bombs, and members that lead out of the folder."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from archive_makers import METHODS, PACKERS, archive_of, fetch_vesus, member, tar_with, zip_with
from task_folders import build_vesus, tree

from audiomarathon import untrusted
from audiomarathon.data import archive_rules
from audiomarathon.errors import DataError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("vesus")
    build_vesus(top / "VESUS")
    return top


@pytest.mark.parametrize("name", [*METHODS, *PACKERS])
def test_each_archive_format_is_unpacked_unless_the_archive_is_damaged_or_truncated(
    name: str, source: Path, tmp_path: Path
) -> None:
    taken = archive_of(source, name, tmp_path / "archive")
    fetch_vesus(taken, tmp_path / "root")
    assert tree(tmp_path / "root", manifest=False) == tree(source)
    content = taken.read_bytes()
    middle = len(content) // 2
    damaged = [content[: -len(content) // 4]]
    if name != "a.tar":  # a plain tar has no checksum of its content
        damaged.append(content[:middle] + b"\xff" * 4000 + content[middle + 4000 :])
    for spoilt in damaged:
        taken.write_bytes(spoilt)
        with pytest.raises(DataError, match=r"damaged|not an archive") as caught:
            fetch_vesus(taken, tmp_path / "other")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", [-8, -1])  # CRC-32 and length, RFC 1952, section 2.3
def test_the_gzip_trailer_is_checked_before_any_file_is_unpacked(place: int, source: Path, tmp_path: Path) -> None:
    taken = archive_of(source, "a.tar.gz", tmp_path / "archive")
    content = bytearray(taken.read_bytes())
    content[place] ^= 1
    taken.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        fetch_vesus(taken, tmp_path / "root")
    assert tree(tmp_path / "root").keys() <= {".download/lock"}


# Endless archives: each is stopped by one limit alone; what follows the bomb is not read -------------


def test_a_zip_whose_directory_names_a_file_differently_than_the_file_header_is_refused(
    source: Path, tmp_path: Path
) -> None:
    """No checksum covers the directory's names: a renamed clip would be left out in silence."""
    archive = archive_of(source, "stored.zip", tmp_path / "archive")
    content = archive.read_bytes()
    place = content.rindex(b"_sad.wav", content.rindex(b"PK\x01\x02", 0, content.rindex(b"_sad.wav")))
    archive.write_bytes(content[:place] + b"_bad.wav" + content[place + 8 :])
    with pytest.raises(DataError, match=r"damaged, or not an archive"):
        fetch_vesus(archive, tmp_path / "root")


def folders() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for number in range(30):
            tar.addfile(member(f"folder-{number}", tarfile.DIRTYPE))
    return stream.getvalue()[:-2048] + b"no header" * 1000


def long_name(kind: bytes) -> bytes:
    return member("bomb", kind, size=10**9).tobuf(tarfile.GNU_FORMAT) + b"x" * 20_000


def pax(count: int, comment: str, *, shared: bool = False) -> bytes:
    stream = io.BytesIO()
    common = {"comment": comment} if shared else {}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, pax_headers=common) as tar:
        for number in range(count):
            header = member(f"{number}.wav")
            header.pax_headers = {} if shared else {"comment": comment}
            tar.addfile(header)
    return stream.getvalue()


def sparse() -> bytes:
    header = bytearray(member("s.wav", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # the sparse map continues in the next block, without end
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    return bytes(header) + b"\1" * 512 * 50


def zip_folders(count: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        for number in range(count):
            zipped.writestr(zipfile.ZipInfo(f"folder-{number}/"), b"")
    return stream.getvalue()


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "tar of folders": (folders, "more than 20 files"),
    "deep path": (lambda: tar_with(member("a/" * 25 + "b.wav"), b"x"), "more than 20 files"),
    "long path": (lambda: tar_with(member("a" * 300 + ".wav"), b"x"), "more than 200 characters"),
    "long name": (lambda: long_name(tarfile.GNUTYPE_LONGNAME), "more than 500 bytes .*header"),
    "long link": (lambda: long_name(tarfile.GNUTYPE_LONGLINK), "more than 500 bytes .*header"),
    "pax header": (lambda: long_name(tarfile.XHDTYPE), "more than 500 bytes .*header"),
    "global pax header": (lambda: long_name(tarfile.XGLTYPE), "more than 500 bytes .*header"),
    "pax headers": (lambda: pax(15, "x" * 100), "more than 1,000 bytes of headers"),
    "global pax header for each": (lambda: pax(15, "x" * 100, shared=True), "more than 1,000 bytes of headers"),
    "sparse": (sparse, "sparse file"),
    "zip of folders": (lambda: zip_folders(30), "more than 1,000 bytes of headers"),
    "zip with a deep path": (lambda: zip_with("a/" * 25 + "b.wav"), "more than 20 files"),
    "negative size": (lambda: member("a.wav", size=-512).tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024, "negative size"),
    "no end": (lambda: tar_with(member("a.wav"), b"x") + b"\0" * 5000, "more than 1,000 bytes after"),
    "dots": (lambda: tar_with(member("a/../../b.wav"), b"x"), "would leave"),
    "absolute": (lambda: tar_with(member("/etc/passwd"), b"x"), "would leave"),
    "link": (lambda: tar_with(member("b", tarfile.SYMTYPE, "/etc")), "is a link"),
    "hard link": (lambda: tar_with(member("b", tarfile.LNKTYPE, "/etc/passwd")), "is a link"),
    "device": (lambda: tar_with(member("b", tarfile.CHRTYPE)), "is a link or a device"),
    "bomb": (lambda: tar_with(member("b.wav", size=10**12)), "more than 200,000,000,000 bytes"),
    "zip dots": (lambda: zip_with("../b.wav"), "would leave"),
    "zip backslash": (lambda: zip_with("..\\b.wav"), "would leave"),
    "zip drive": (lambda: zip_with("C:/b.wav"), "would leave"),
    "zip link": (lambda: zip_with("b", stat.S_IFLNK), "is a link"),
    "not an archive": (lambda: b"hello", "not an archive .*allowed: .zip"),
    "torn zip": (lambda: zip_with("b.wav")[:-30], "not an archive"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_before_any_file_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound, allowed in {"MAX_MEMBERS": 20, "MAX_HEADER": 500, "MAX_HEADERS": 1000, "MAX_PATH": 200}.items():
        monkeypatch.setattr(archive_rules if hasattr(archive_rules, bound) else untrusted, bound, allowed)
    monkeypatch.setattr("audiomarathon.data.archive._CHUNK", 4096)
    make, message = HOSTILE[name]
    (tmp_path / "archive").write_bytes(make())
    with pytest.raises(DataError, match=message) as caught:
        fetch_vesus(tmp_path / "archive", tmp_path / "root")
    assert "\n" not in str(caught.value)
    assert tree(tmp_path / "root").keys() <= {".download/lock"}
