"""Hashes of source files that do not change with comments, docstrings, empty lines, or moves of our own modules.

Such a hash is made by rule 2 and begins with `2:`. Older versions hashed the bytes of files (rule 1), so moving a file
invalidated the results that depend on it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

#: Hashes by rule 1 of code whose hash by rule 2 is known, so that embeddings and verdicts of older versions stay valid:
#: first encoders, then scorers. An entry counts only while the code is the same.
FORMER = {
    # DashengEncoder, Wav2vec2Encoder, WhisperEncoder, Data2VecEncoder
    "2:8800897cba00a2963f394e3eca41b7bc": "674a3a096c9d308f1f85d151e1ce3fd40ef3206c0b21f1ce83913d3092134bd3",
    # LogMelEncoder, RandomEncoder, LengthLoudnessEncoder, NoiseEncoder
    "2:0d21a6747abbf90477b67a09a3239003": "94a45ae921ecc140e3d4f4bd7c85e94aeccab2919a9abd24911e76b01e77eec8",
    # hf.WaveformEncoder, hf.SpectrogramEncoder
    "2:9cbc1a527c8116d8f418fdd2ac5029af": "c7860e11fa2f6a03d2e5f49d78f59cf70f307e1a408a806c08e0ceadf7460a20",
    # tower:Qwen2_5Omni
    "2:a6f822a2ba3dd0743dd464defc88fbac": "002828657c8a86fc0123ad6471d28564b6ba69b3dc138a98a4eab81b9dcab298",
    # tower:Phi4MM
    "2:0a2444df33495c31c741ff4b6b096ff6": "9a02969091501b97a3fa3c0204b705725c0f54951149bd8a1a322115853f3ab8",
    # tower:Voxtral
    "2:75630f6bf5ebdc4d3943d0b4fa2355b1": "1b5379fd4fb2f399887fb11517819abd2e38d8d87b63c83829211410812ec2d9",
    # tower:Aero
    "2:b29d9120a2acc4edcbb6b8ce1fe84077": "1d1a0f32f3d18455cd678ea7ba9988980c4bf1bf6fa57b0e199cf701aacee0f8",
    # tower:Qwen2Audio, tower:Qwen2AudioFirst30
    "2:cbd8a8675e4384916a97147c4ea6de6d": "1f5336326be286134812aa8c0abb13296e3520d4cd38b3cf1dea6db017304ea4",
    # tower:Qwen3Omni
    "2:574aeed2be3880dd0a2417e697f8d224": "2523536f16f120abb845e142d9292ff4ef7da3f6733a68f365036e94a8a04539",
    # tower:Gemma3n
    "2:0265b38cd610077ed653f08948ace786": "6efae89d87e13f48214cfbf51255770c6ce7aaabe7a4cf3691b8be2099365392",
    # tower:AudioFlamingo3
    "2:f6a5fcf62595475d8eaae956b44cc99f": "56f0e76428de02f51e1b086ae84627d20c46f6ff245bac0c5761ef3d0005cbdd",
    # tower:Whisper
    "2:d2be1ef20956efccaab73158c30fa169": "d78d7fea4c897058f299d342a62d23b64fe017d0b28d2c747ba0148e143ab3d0",
    "8e8e009c23fc": "f58571b8329e",  # Transcript, Characters
    "2f5f7237f9be": "79de78b82621",  # Choice
    "725c249de1ea": "2c937fe9b605",  # CoReasoning
    "f93fc5a7e205": "2d016c2cf1bc",  # Caption
    "28e0190731a1": "936d6917efe3",  # QuestionTypes
    "b4dd49e93e2f": "1f52929583eb",  # Questions
    "a7f79c13044d": "752241563891",  # Classified
    "0c770df1a776": "8069cb0401f1",  # Retrieved
    "148ad867f569": "41f47db4aaf9",  # Segmented
    "50e328a62a0f": "0daa7e85081b",  # Tagged
    "99e25e96a82e": "8f6f44ddc0f8",  # Recognised
    "97e4a5fb193c": "fee1a4717bc3",  # Graded
    "882d40e4e4ea": "65151f19684f",  # RubricScore
}  # fmt: skip
_OURS = __name__.partition(".")[0]
_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Span = tuple[int, int, int, int]
"""A range of source: first line (from 0), first byte in it, last line, and end byte in the last line (exclusive).
"""


def code_hash(files: Iterable[Path]) -> str:
    """Return one hash of the code in all given files, with the prefix `2:`.

    File names and their order do not change it.
    """
    each = sorted(_hash_of(file.read_bytes()) for file in files)
    return f"2:{hashlib.sha256(''.join(each).encode()).hexdigest()[:32]}"


@functools.lru_cache(maxsize=500)  # an encoder's files are hashed whenever one is loaded; all of ours take 3 MB
def _hash_of(source: bytes) -> str:
    return hashlib.sha256(code_of(source)).hexdigest()


def code_of(source: bytes) -> bytes:
    """Return a Python file's code without comments, docstrings, and empty lines outside string literals.

    Import statements for modules of this package are replaced by the imported names alone, since our modules move. In a
    file that reads `__doc__`, docstrings stay. A file that is not Python is returned unchanged.
    """
    try:
        tree, text = ast.parse(source), source.decode()
        spans = list(_comments(text))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return source
    names, whole = set[str](), set[int]()  # lines inside string literals stay as they are
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == _OURS:
            names |= {f"{alias.name} as {alias.asname or alias.name}" for alias in node.names}
            spans.append(_span(node))
        elif "__doc__" not in text and isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False):
            spans.append(_span(node.body[0]))
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            whole.update(range(node.lineno - 1, (node.end_lineno or node.lineno) - 1))
    lines = [line if number in whole else line.rstrip() for number, line in enumerate(source.splitlines())]
    kept = [number in whole for number in range(len(lines))]
    for first, begin, last, end in sorted(spans, reverse=True):
        lines[first : last + 1] = [(lines[first][:begin] + lines[last][end:]).rstrip()]
        kept[first : last + 1] = [False]
    code = [line for line, inside in zip(lines, kept, strict=True) if line or inside]
    return b"\n".join([*code, *(name.encode() for name in sorted(names))])


def _span(node: ast.stmt) -> Span:
    return node.lineno - 1, node.col_offset, (node.end_lineno or node.lineno) - 1, node.end_col_offset or 0


def _comments(text: str) -> Iterator[Span]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            begin = len(token.line[:column].encode())
            yield line - 1, begin, line - 1, begin + len(token.string.encode())
