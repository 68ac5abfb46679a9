"""Store each sample's attention in `attention/<sample>.npz`, with a line in `attention/index.jsonl`.

Whole attention maps of L layers and S tokens take 4·L·S² bytes (6.5 GB for 300 s of audio). So only summary statistics
of the maps are stored, the "reduced" attention; it takes 1 MB.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import RecordError
from audiomarathon.files import MAX_OBJECT_BYTES, file_name, json_object, read_plain, write_bytes, write_text
from audiomarathon.fingerprint import same
from audiomarathon.runs.folder import RunFolder
from audiomarathon.runs.record_line import unpack
from audiomarathon.settings import RunSettings
from audiomarathon.untrusted import arrays_of

FOLDER = "attention"
INDEX = "index.jsonl"
WHOLE = ".whole"  # suffix of the folder with a sample's whole maps

#: Kinds of attending tokens: the prompt's last token, the question (mean over its tokens), the generated tokens (mean).
ROWS = ("last", "question", "generated")
BLOCKS = 64
TOP = 16

Array = npt.NDArray[Any]
_TYPES = {"id": str, "bytes": int, "layers": list, "all": bool, "full": bool}  # fields of an index line
_MOST_LAYERS = 1_000  # limit of layers: each is a panel of a picture; published models have up to 126
_ARRAYS = ("mass", "profile", "top_index", "top_mass", "entropy", "blocks", "edges")


@dataclass(frozen=True)
class Attention:
    """Statistics of a sample's attention maps.

    Their shapes use R kinds of attending tokens (:data:`ROWS`), L layers, H heads and A audio tokens. A kind without
    attending tokens is NaN: a reply of one token has no row "generated", and dropped tokens attend to nothing.

    Attributes
    ----------
    mass
        How much attention each of G groups of positions gets, shape (R, L, H, G), float32; the sum over groups is 1.
        `meta["groups"]` names the groups: first token, template before the audio, each clip, question, rest of the
        template, generated.
    profile
        Attention to each audio token, mean over heads, times A, shape (R, L, A), float16. A value of 1 means 1 / A of
        all attention.
    top_index, top_mass
        The 16 audio tokens with the most attention (all, if there are fewer), and their attention; shape (R, L, H, 16
        or A), int32 and float16.
    entropy
        Entropy of the attention among the audio tokens, in nats, shape (R, L, H), float32.
    blocks, edges
        The whole map, mean over heads, in at most 64 × 64 blocks: summed over a block's columns, averaged over its
        rows, shape (L, 64, 64), float16. Block i covers positions edges[i] to edges[i + 1].
    tokens
        The prompt's tokens as text.
    meta
        `layers` (captured layers), `model_layers` (number of the model's layers), `groups`, `clips` (number of audio
        tokens of each clip), `parts` (a list of group, first position and position after the last), `kept_audio_bits`
        (see :func:`.unpack`; None if nothing was dropped), `reply`, and the fields of LALM Bench's `meta.json`.
    """

    mass: Array
    profile: Array
    top_index: Array
    top_mass: Array
    entropy: Array
    blocks: Array
    edges: Array
    tokens: tuple[str, ...]
    meta: Mapping[str, Any]

    def save(self, file: Path) -> int:
        """Write the attention to a file atomically; return the file's size in bytes."""
        texts = {"tokens": list(self.tokens), "meta": dict(self.meta)}
        coded = {name: np.frombuffer(json.dumps(content).encode(), np.uint8) for name, content in texts.items()}
        stream = io.BytesIO()
        np.savez_compressed(stream, **{name: getattr(self, name) for name in _ARRAYS}, **coded)  # type: ignore[arg-type]
        write_bytes(file, content := stream.getvalue())
        return len(content)

    def write_texts(self, folder: Path) -> None:
        """Write `tokens.json` and `meta.json` into a folder, in LALM Bench's format."""
        write_text(folder / "tokens.json", json.dumps(list(self.tokens), ensure_ascii=False, indent=2))
        write_text(folder / "meta.json", json.dumps(dict(self.meta), ensure_ascii=False, indent=2))

    @classmethod
    def read(cls, file: Path) -> Attention:
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        RecordError
            The file cannot be read, or is damaged.
        """
        try:
            arrays = arrays_of(file, (*_ARRAYS, "tokens", "meta"))
            tokens, meta = (_json(arrays.pop(name)) for name in ("tokens", "meta"))
            if damage := _damage_of(arrays, tokens, meta):
                raise ValueError(damage)
        except (OSError, ValueError, RecordError) as error:
            why = getattr(error, "strerror", None) or error
            raise RecordError(
                f"{file}: not a valid attention file ({why}); delete it and run `audiomarathon attention capture`"
            ) from error
        return cls(**arrays, tokens=tuple(tokens), meta=meta)


def _json(text: Array) -> Any:
    if text.nbytes > MAX_OBJECT_BYTES:
        raise ValueError(f"texts of {text.nbytes:,} bytes; allowed: up to {MAX_OBJECT_BYTES:,}")
    try:
        return json.loads(text.tobytes())
    except RecursionError:
        raise ValueError("its texts are nested too deeply") from None


def _damage_of(arrays: Mapping[str, Array], tokens: Any, meta: Any) -> str:
    """Return the first fault in the content of an attention file, as text; "" if it holds a valid :class:`Attention`.

    Raises
    ------
    RecordError
        The field that tells which audio tokens were kept cannot be read.
    """
    mass, profile, blocks = arrays["mass"], arrays["profile"], arrays["blocks"]
    if (mass.ndim, profile.ndim, blocks.ndim) != (4, 3, 3) or not mass.size:
        return "its arrays have other numbers of axes"
    (rows, layers, heads, groups), audio, size = mass.shape, profile.shape[2], blocks.shape[2]
    top = (rows, layers, heads, min(TOP, audio))
    shapes = {"mass": (len(ROWS), *mass.shape[1:]), "profile": (rows, layers, audio), "top_index": top, "top_mass": top}
    shapes |= {"entropy": (rows, layers, heads), "blocks": (layers, max(1, size), size), "edges": (size + 1,)}
    if odd := [name for name, shape in shapes.items() if arrays[name].shape != shape]:
        return f"its array {odd[0]} has the shape {arrays[odd[0]].shape}, expected {shapes[odd[0]]}"
    if not isinstance(meta, dict) or not _are(str, tokens) or not tokens:
        return "its texts are of the wrong type"
    last, bits = meta.get("model_layers"), meta.get("kept_audio_bits")
    parts = meta.get("parts")
    sound = {
        "groups": _are(str, meta.get("groups")) and len(meta["groups"]) == groups,
        "layers": _are_layers(meta.get("layers")) and len(meta["layers"]) == layers,
        "model_layers": type(last) is int and last <= _MOST_LAYERS,
        "clips": _are(int, meta.get("clips")) and min(meta["clips"], default=0) >= 0 and sum(meta["clips"]) == audio,
        "parts": isinstance(parts, list) and all(_is_part(part, len(tokens)) for part in parts),
        "kept_audio_bits": bits is None or isinstance(bits, str),
    }
    if odd := [name for name, is_sound in sound.items() if not is_sound]:
        return f"its {odd[0]!r} does not fit its arrays"
    if max(meta["layers"]) >= meta["model_layers"]:
        return "it has layers that the model lacks"
    if bits:
        unpack(bits, audio)
    return ""


def _are_layers(value: Any) -> bool:
    """Tell whether a value from JSON is a list of layer numbers: whole numbers from 0, each once, in order."""
    return _are(int, value) and bool(value) and value == sorted({*value}) and 0 <= value[0] <= value[-1] < _MOST_LAYERS


def _are(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(member) is kind for member in value)


def _is_part(value: Any, length: int) -> bool:
    kinds = [type(member) for member in value] if isinstance(value, list) else []
    return kinds == [str, int, int] and 0 <= value[1] <= value[2] <= length


def file_of(run: Path, id_: str) -> Path:
    """Return the path of the file for a sample's attention, in the folder of its run. The file need not exist.

    The name follows from the sample's id. The index names the file too, but a name in somebody's results may lead to
    any file of this machine.
    """
    return run / FOLDER / f"{file_name(id_)}.npz"


def index_of(run: Path) -> dict[str, dict[str, Any]]:
    """Return the index of a run's stored attention, as {sample's id: its last line in the index file}.

    Lines that are damaged, and lines whose file is missing or has another size than the line says, are left out.

    Raises
    ------
    RecordError
        The index cannot be read.
    """
    index = run / FOLDER / INDEX
    try:
        lines = read_plain(index).splitlines() if index.exists() else []
    except OSError as error:
        raise RecordError(f"{index}: cannot be read: {error.strerror or error}") from error
    rows = {}
    for row in filter(None, map(json_object, lines)):
        if all(isinstance(row.get(name), kind) for name, kind in _TYPES.items()) and _are_layers(row["layers"]):
            file = file_of(run, row["id"])
            if file.is_file() and file.stat().st_size == row["bytes"]:
                rows[row["id"]] = row
    return rows


def captured(folder: RunFolder, clips: Mapping[str, str], settings: RunSettings) -> set[str]:
    """Return the ids of samples whose stored attention can be kept: it has what the settings ask, from the same clips.

    `clips` has the current hash of each sample's clips.
    """
    ids = set()
    for id_, row in index_of(folder.path).items():
        layers = {*settings.attn_layers} <= {*row["layers"]} if settings.attn_layers else row["all"]
        if layers and row["full"] >= bool(settings.attn_full) and same(row.get("clips"), clips.get(id_)):
            ids.add(id_)
    return ids
