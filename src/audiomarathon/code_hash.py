"""Hashes of source files that do not change with comments, docstrings, empty lines, or where imported names come from.

Rule 2. Older versions hashed the bytes of files (rule 1), so that every move of a file made results anew.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Span = tuple[int, int, int, int]
"""First line (from 0) and first byte in it, last line and the byte after the last one."""


def code_hash(files: Iterable[Path]) -> str:
    """Return `2:` and a hash of the code in some files, whatever their names and order."""
    each = sorted(hashlib.sha256(code_of(file.read_bytes())).hexdigest() for file in files)
    return f"2:{hashlib.sha256(''.join(each).encode()).hexdigest()[:32]}"


def code_of(source: bytes) -> bytes:
    """Return the code of a Python file: without comments, docstrings and empty lines, and with its imports as names.

    Of an import only the names count that it binds. A file that is not Python is returned as it is.
    """
    try:
        tree, text = ast.parse(source), source.decode()
        comments = list(_comments(text))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return source
    names, spans = set[str](), comments
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(one.asname or one.name).rpartition(".")[2] for one in node.names}
            spans.append(_span(node))
        elif isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            spans.append(_span(node.body[0]))
    lines = source.splitlines()
    for first, begin, last, end in sorted(spans, reverse=True):
        lines[first : last + 1] = [lines[first][:begin] + lines[last][end:]]
    return b"\n".join([*filter(None, map(bytes.rstrip, lines)), *(name.encode() for name in sorted(names))])


def _span(node: ast.stmt) -> Span:
    return node.lineno - 1, node.col_offset, (node.end_lineno or node.lineno) - 1, node.end_col_offset or 0


def _comments(text: str) -> Iterator[Span]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            begin = len(token.line[:column].encode())
            yield line - 1, begin, line - 1, begin + len(token.string.encode())
