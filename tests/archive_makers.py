"""Makes archives of data sets: valid archives of every kind, and archives with a member that no data set has."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from audiomarathon.benchmarks import get_task
from audiomarathon.data import download
from audiomarathon.data.archive import open_source

METHODS = {"stored.zip": zipfile.ZIP_STORED, "deflated.zip": zipfile.ZIP_DEFLATED}
METHODS |= {"bzip2.zip": zipfile.ZIP_BZIP2, "lzma.zip": zipfile.ZIP_LZMA}
PACKERS: dict[str, Callable[[bytes], bytes]] = {"a.tar": bytes, "a.tar.gz": gzip.compress}
PACKERS |= {"a.tar.bz2": bz2.compress, "a.tar.xz": lzma.compress}


def packed(source: Path, target: Path) -> Path:
    """Pack all files of a folder, by the suffix of the target."""
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
            for path in files:
                zipped.write(path, path.relative_to(source).as_posix())
    else:
        with tarfile.open(target, "w:gz" if target.suffix == ".gz" else "w") as tar:
            tar.add(source, arcname=".")
    return target


def archive_of(source: Path, name: str, target: Path) -> Path:
    """Pack all files of a folder in a format of METHODS or PACKERS."""
    if name in METHODS:
        with zipfile.ZipFile(target, "w", METHODS[name]) as zipped:
            for path in sorted(source.rglob("*.*")):
                zipped.write(path, path.relative_to(source).as_posix())
    else:
        target.write_bytes(PACKERS[name](packed(source, target.with_name("plain.tar")).read_bytes()))
    return target


def fetch_vesus(source: Path, root: Path) -> None:
    """Download VESUS from an archive or folder."""
    download.download([get_task("vesus")], open_source(source), root)


def tar_with(member: tarfile.TarInfo, content: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        member.size = member.size or len(content)
        tar.addfile(member, io.BytesIO(content) if content else None)
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def zip_with(name: str, mode: int = stat.S_IFREG) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        info = zipfile.ZipInfo(name)
        info.external_attr = (mode | 0o644) << 16
        zipped.writestr(info, b"content")
    return stream.getvalue()


def npy(array: np.ndarray) -> bytes:
    """Return an array as the bytes of a .npy file."""
    np.save(stream := io.BytesIO(), array)
    return stream.getvalue()


def npy_header(shape: object, dtype: str = "<f4") -> bytes:
    """Return the beginning of a .npy file, without the numbers that it promises."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text
