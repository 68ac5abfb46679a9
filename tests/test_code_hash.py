"""Hashes of code: which edits change them; data cached before code moved stays valid."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from audiomarathon.code_hash import code_hash, code_of
from audiomarathon.encoders import load_encoder
from audiomarathon.wings.encoders.probing.store import Store

CODE = '''"""Doc."""
import numpy as np
from audiomarathon.files import (  # why
    b,
    c as d,
)


def f(x: int) -> str:
    """Doc."""
    text = """a

    b"""
    return "# ä" + text + b(x)  # ö
'''
IMPORTS = CODE[CODE.index("from") : CODE.index("\n\n\ndef")]
SAME = {
    "no docstrings": CODE.replace('    """Doc."""\n', "").replace('"""Doc."""\n', ""),
    "no comments": CODE.replace("  # ö", "").replace("  # why", ""),
    "our module moved": CODE.replace("audiomarathon.files", "audiomarathon.wings.files"),
    "two imports": CODE.replace(IMPORTS, "from audiomarathon.a import b\nfrom audiomarathon.z import c as d"),
    "empty lines": CODE.replace("\n\n\n", "\n"),
    "a comment alone": f"# first\n{CODE}",
}
OTHER = {
    "a text": CODE.replace("# ä", "# a"),
    "an empty line in a text": CODE.replace('"""a\n\n', '"""a\n'),
    "a space in a text": CODE.replace('"""a\n', '"""a \n'),
    "a name": CODE.replace("b(x)", "d(x)"),
    "an imported name": CODE.replace("    b,\n", "    b,\n    g,\n"),
    "what a name stands for": CODE.replace("c as d", "g as d"),
    "a library": CODE.replace("numpy", "cupy"),
    "a module of others": CODE.replace("audiomarathon.files", "other.files"),
    "an indent": CODE.replace("    return", "        return"),
}


def test_a_docstring_that_the_code_reads_at_run_time_changes_the_code_hash() -> None:
    first, second = (f'"""{text}"""\nPROMPT = __doc__\n'.encode() for text in ("one", "two"))
    assert code_of(first) != code_of(second)


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_docstrings_comments_and_module_locations_do_not_change_the_code_hash(text: str) -> None:
    assert code_of(text.encode()) == code_of(CODE.encode())


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_changed_strings_names_libraries_or_indentation_change_the_code_hash(text: str) -> None:
    assert code_of(text.encode()) != code_of(CODE.encode())


def test_source_that_is_not_valid_python_is_hashed_byte_for_byte() -> None:
    assert code_of(b"def (") == b"def ("
    assert code_of(b"\xff") == b"\xff"


def test_file_names_and_their_order_do_not_change_the_code_hash(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for file, text in zip(files, ("x = 1", "y = 2", "x = 1"), strict=True):
        file.write_text(text)
    assert code_hash(files[:2]) == code_hash([files[1], files[2]]) != code_hash(files[:1])
    assert code_hash(files).startswith("2:")


#: Cache folders and pooled embeddings (first dimensions) of a chirp, as commit 28b0e18 made them with hash rule 1.
MADE = {
    "logmel": ("10b0c81206dd", [-12.4433, -11.8125, -10.8985]),
    "random": ("0abdc9527030", [0.0549, 0.1162, 0.0757]),
    "length-loudness": ("50a30dbd7e90", [0.0, 0.0, 0.0]),
    "noise": ("df3ae1beabe3", [-0.1, -0.1073, 0.3472]),
}


@pytest.mark.parametrize("name", MADE)
def test_control_encoders_give_the_same_hash_and_embeddings_as_earlier_package_versions(name: str) -> None:
    folder, embedding = MADE[name]
    encoder = load_encoder(f"control:{name}")
    assert Store(Path("cache"), encoder.identity).folder.name == folder
    chirp = torch.sin(torch.arange(16000) / 7.0)[None] * torch.linspace(0, 1, 16000)
    mean = encoder.encode(chirp)[0].mean(0)[:3]
    assert mean.tolist() == pytest.approx(embedding, abs=1e-3)
