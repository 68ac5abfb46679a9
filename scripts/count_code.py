#!/usr/bin/env python3
"""Count lines of code by room: without blank lines, comments and docstrings.

Example: python scripts/count_code.py src/audiomarathon
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> int:
    """Return how many lines of a source text contain code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - docstrings)


def main() -> None:
    """Print a Markdown table with the number of files and of lines of code per room, and in all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path("src/audiomarathon"), help="[%(default)s]")
    root = parser.parse_args().root
    files, lines = Counter[str](), Counter[str]()
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        room = parts[0] if len(parts) > 1 else "(root)"
        files[room] += 1
        lines[room] += lines_of_code(file.read_text(encoding="utf-8"))
    print("| room | files | lines of code |\n|---|---:|---:|")
    for room, count in lines.most_common():
        print(f"| {room} | {files[room]} | {count:,} |")
    print(f"| **all** | **{files.total()}** | **{lines.total():,}** |")


if __name__ == "__main__":
    main()
