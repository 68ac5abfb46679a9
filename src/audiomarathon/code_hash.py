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

#: Hashes by rule 1 of code whose hash by rule 2 is known, so that embeddings and verdicts of older versions stay valid:
#: first encoders, then scorers. An entry counts only while the code is the same.
FORMER = {
    # DashengEncoder, Wav2vec2Encoder, WhisperEncoder, Data2VecEncoder
    "2:b0454a1e23bfdc3895e2bf3c99ce2719": "674a3a096c9d308f1f85d151e1ce3fd40ef3206c0b21f1ce83913d3092134bd3",
    # LogMelEncoder, RandomEncoder, LengthLoudnessEncoder, NoiseEncoder
    "2:12622d711a0b7e0711a24f0cb05ae064": "94a45ae921ecc140e3d4f4bd7c85e94aeccab2919a9abd24911e76b01e77eec8",
    # hf.WaveformEncoder, hf.SpectrogramEncoder
    "2:eb9dd5525c1f6a377569a59bd166cf04": "c7860e11fa2f6a03d2e5f49d78f59cf70f307e1a408a806c08e0ceadf7460a20",
    # tower:Qwen2_5Omni
    "2:3440ba7a6d11afa30d893cd5e7851021": "002828657c8a86fc0123ad6471d28564b6ba69b3dc138a98a4eab81b9dcab298",
    # tower:Phi4MM
    "2:1c19e410985383ab37e569c3b521aa7e": "9a02969091501b97a3fa3c0204b705725c0f54951149bd8a1a322115853f3ab8",
    # tower:Voxtral
    "2:d3ac0c04799d3bf50c5a5f1ef17e4e5b": "1b5379fd4fb2f399887fb11517819abd2e38d8d87b63c83829211410812ec2d9",
    # tower:Aero
    "2:e79eeea7c71b47a50cfc6c41c5ac532f": "1d1a0f32f3d18455cd678ea7ba9988980c4bf1bf6fa57b0e199cf701aacee0f8",
    # tower:Qwen2Audio, tower:Qwen2AudioFirst30
    "2:f5b94e7dd50d873e804a2f660be34614": "1f5336326be286134812aa8c0abb13296e3520d4cd38b3cf1dea6db017304ea4",
    # tower:Qwen3Omni
    "2:51c0612e1e40fd93d9621bc98d9e242c": "2523536f16f120abb845e142d9292ff4ef7da3f6733a68f365036e94a8a04539",
    # tower:Gemma3n
    "2:3ff3b1ecaddaa1edeed4a88ce39069c9": "6efae89d87e13f48214cfbf51255770c6ce7aaabe7a4cf3691b8be2099365392",
    # tower:AudioFlamingo3
    "2:b56ce21daeaadcde85998cb98c34cdb2": "56f0e76428de02f51e1b086ae84627d20c46f6ff245bac0c5761ef3d0005cbdd",
    # tower:Whisper
    "2:57d7562d2bff4a26372769989e4d5250": "d78d7fea4c897058f299d342a62d23b64fe017d0b28d2c747ba0148e143ab3d0",
    "4a7a4d0610ef": "f58571b8329e",  # Transcript, Characters
    "05434aa66191": "79de78b82621",  # Choice
    "9d22dd8d38cf": "2c937fe9b605",  # CoReasoning
    "032a1cab248b": "2d016c2cf1bc",  # Caption
    "883f320965fa": "936d6917efe3",  # QuestionTypes
    "d375d3d6f5fa": "1f52929583eb",  # Questions
    "066c6e122a41": "752241563891",  # Classified
    "589920c11f26": "8069cb0401f1",  # Retrieved
    "2ae73a5393f6": "41f47db4aaf9",  # Segmented
    "b903b39e0993": "0daa7e85081b",  # Tagged
    "a024548c37c8": "8f6f44ddc0f8",  # Recognised
    "c363fb710724": "fee1a4717bc3",  # Graded
    "e89da035ba4a": "65151f19684f",  # RubricScore
}  # fmt: skip
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
