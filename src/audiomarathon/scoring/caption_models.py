"""The models of FENSE, which scores captions: a sentence encoder and a fluency checker. Both are small BERTs.

A missing model raises :class:`ModelError`, which callers turn into "not computed: …".
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import ModelError
from audiomarathon.files import json_object, open_plain, read_plain
from audiomarathon.metrics.captions.lengths import CHECKER_WINDOW, ENCODER_WINDOW
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint
from audiomarathon.settings import cache_folder

ENCODER = "sentence-transformers/paraphrase-TinyBERT-L6-v2"
CHECKER_URL = "https://github.com/blmoistawinde/fense/releases/download/V0.1/echecker_clotho_audiocaps_base.ckpt"
CHECKER_SHA256 = "1a719f090af70614bbdb9f9437530b7e133c48cfa4a58d964de0d47fc974a2fa"

#: Env var with the folder or hub id of a sentence encoder, for scores that need one.
ENCODER_VARIABLE = "TEXT_ENCODER"
_NAMED_POOLINGS = {"mean": "", "cls": "-cls"}  # suffix of the encoder's hash, by pooling
_USUAL_WINDOW = 512


def text_encoder(default: str = "") -> SentenceEncoder | None:
    """Return the sentence encoder that the env var `TEXT_ENCODER` names, or the default if it is in the hub's cache.

    The default is used only if the variable is not set. None if there is neither. Scoring works offline: nothing is
    downloaded.

    Raises
    ------
    ModelError
        The named encoder does not exist.
    """
    if named := os.environ.get(ENCODER_VARIABLE, "").strip():
        return _encoder(named)
    return _encoder(default) if default and _is_cached(default) else None


def fluency_checker() -> Echecker | None:
    """Return FENSE's fluency checker; None unless `audiomarathon models download fense` has downloaded it."""
    return _checker(file) if (file := checker_file()).is_file() else None


def checker_file() -> Path:
    """Return the path of the fluency checker's checkpoint; the file may not exist yet."""
    return cache_folder() / "fense" / CHECKER_URL.rpartition("/")[2]


def _files(source: str, *, download: bool) -> Checkpoint:
    """Return the checkpoint (its files) of a sentence encoder, given as a hub id or a folder."""
    named = f"set {ENCODER_VARIABLE} or --encoder to a folder that holds the checkpoint"
    return find_checkpoint(source, download=download, named=named)


@lru_cache(1)
def _encoder(source: str) -> SentenceEncoder:
    _files(source, download=False)
    return SentenceEncoder(source, download=False)


@lru_cache(1)
def _is_cached(source: str) -> bool:
    try:
        return bool(find_checkpoint(source, download=False))
    except ModelError:
        return False


@lru_cache(1)
def _checker(file: Path) -> Echecker:
    return Echecker(file, download=False)


@dataclass
class SentenceEncoder:
    """A sentence-transformers model, which turns texts into vectors of length 1.

    A text's vector is the mean of the model's last hidden states, or the first of these states, divided by its length.
    The file `1_Pooling/config.json` says which of the two; without this file it is the mean.

    Attributes
    ----------
    source
        Hub id or folder of the model.
    window
        Number of word pieces that the model reads, special tokens included; longer texts are cut. None takes the number
        from `sentence_bert_config.json`, or 512.
    download
        Whether the model may be downloaded from the hub.
    """

    source: str = ENCODER
    window: int | None = ENCODER_WINDOW
    batch_size: int = 64
    download: bool = True
    _known: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def name(self) -> str:
        """Name in tables: the folder's name, or the hub id's last part."""
        return _files(self.source, download=self.download).name

    @cached_property
    def hash(self) -> str:
        """Fingerprint of the model's files; a suffix marks another pooling than the mean."""
        return _files(self.source, download=self.download).fingerprint() + _NAMED_POOLINGS[self._pooling]

    @cached_property
    def _pooling(self) -> str:
        told = self._config("1_Pooling/config.json")
        modes = [name for name, on in told.items() if name.startswith("pooling_mode_") and on is True]
        pooling = " and ".join(modes) or str(told.get("pooling_mode", "mean"))
        pooling = pooling.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        if pooling not in _NAMED_POOLINGS:
            raise ModelError(f"{self.source}: pooling in 1_Pooling is {pooling}; allowed: {', '.join(_NAMED_POOLINGS)}")
        return pooling

    def _config(self, name: str) -> dict[str, Any]:
        """Read one of sentence-transformers' config files; {} if it is missing."""
        file = _files(self.source, download=self.download).path / name
        return (json_object(read_plain(file)) or {}) if file.is_file() else {}

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from transformers import AutoModel, AutoTokenizer

        from audiomarathon.models.loading import check_finite, loading, pretrained

        path = _files(self.source, download=self.download).path
        with loading(path, "a sentence encoder"):
            tokenizer = AutoTokenizer.from_pretrained(path)
            model, info = pretrained(AutoModel, path, dtype="float32", attn_implementation="sdpa", device_map="")
        # The pooler and position ids are unused, so a checkpoint may have or lack them.
        absent = [name for name in info["missing_keys"] if not name.startswith("pooler.")]
        if absent or info["mismatched_keys"]:
            lacking = ", ".join(map(str, absent[:5])) or "none, but shapes differ"
            raise ModelError(f"{path}: the weights do not fit config.json; missing weights: {lacking}")
        check_finite(path, model)
        return model.eval(), tokenizer

    def encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """Return the texts' vectors of length 1, shape (texts, dimensions). Each text is encoded once and cached."""
        import torch

        model, tokenizer = self._loaded
        window = self.window or self._config("sentence_bert_config.json").get("max_seq_length") or _USUAL_WINDOW
        new = sorted(set(texts) - self._known.keys(), key=_by_length)
        for batch in _batches(new, self.batch_size):
            inputs = tokenizer(batch, padding=True, truncation=True, max_length=window, return_tensors="pt")
            with torch.inference_mode():
                hidden = model(**inputs).last_hidden_state
                mask = inputs["attention_mask"][..., None]
                pooled = hidden[:, 0] if self._pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
                vectors = torch.nn.functional.normalize(pooled, dim=-1)
            self._known.update(zip(batch, vectors.numpy(), strict=True))
        return np.array([self._known[text] for text in texts], np.float32).reshape(len(texts), -1)

    def count_pieces(self, texts: list[str]) -> list[int]:
        """Return the number of word pieces of each text before any is cut, special tokens included."""
        return [len(ids) for ids in self._loaded[1](texts, verbose=False)["input_ids"]] if texts else []


@dataclass
class Echecker:
    """FENSE's fluency checker, a BERT with six outputs; the last output is the probability that a text has any error.

    Attributes
    ----------
    checkpoint
        `echecker_clotho_audiocaps_base.ckpt`. It is a pickle: its hash is checked before it is opened, and only tensors
        and plain values are loaded.
    bert
        Folder or hub id of the base BERT (its config and tokenizer); "" takes the name in the checkpoint.
    """

    checkpoint: Path
    bert: str = ""
    sha256: str = CHECKER_SHA256
    batch_size: int = 64
    download: bool = True
    _known: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _loaded(self) -> tuple[Any, Any, Any]:
        import torch
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        from audiomarathon.models.loading import loading

        if not self.checkpoint.is_file():
            raise ModelError(f"{self.checkpoint}: no such file; fetch it from {CHECKER_URL}")
        with loading(self.checkpoint, "FENSE's fluency checker"), open_plain(self.checkpoint) as stream:
            digest = hashlib.sha256()
            while block := stream.read(1 << 22):
                digest.update(block)
            if (hashed := digest.hexdigest()) != self.sha256:
                raise ModelError(
                    f"{self.checkpoint}: SHA-256 is {hashed}, not {self.sha256}: another file, or a broken download; "
                    f"fetch it from {CHECKER_URL}"
                )
            stream.seek(0)
            content = torch.load(stream, map_location="cpu", weights_only=True)
            state = {name: tensor for name, tensor in content["state_dict"].items() if "position_ids" not in name}
            path = find_checkpoint(self.bert or content["model_type"], download=self.download).path
            tokenizer = AutoTokenizer.from_pretrained(path)
            config = AutoConfig.from_pretrained(path)
            parts = {"encoder": AutoModel.from_config(config)}
            parts["clf"] = torch.nn.Linear(config.hidden_size, content["num_classes"])
            model = torch.nn.ModuleDict(parts)
            model.load_state_dict(state)
        return model["encoder"].eval(), model["clf"].eval(), tokenizer

    def error(self, texts: list[str]) -> npt.NDArray[np.float64]:
        """Return the probability that each text has an error of fluency; only the first 64 word pieces count.

        Each text is read once and cached.
        """
        import torch

        encoder, head, tokenizer = self._loaded
        plain = [re.sub(r"[^\w\s]", "", text).lower() for text in texts]
        new = sorted(set(plain) - self._known.keys(), key=_by_length)
        for batch in _batches(new, self.batch_size):
            inputs = tokenizer(batch, padding=True, truncation=True, max_length=CHECKER_WINDOW, return_tensors="pt")
            with torch.inference_mode():
                errors = head(encoder(**inputs).last_hidden_state[:, 0]).sigmoid()[:, -1].tolist()
            self._known.update(zip(batch, errors, strict=True))
        return np.array([self._known[text] for text in plain], np.float64)


def _batches(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(texts), size):
        yield list(texts[start : start + size])


def _by_length(text: str) -> tuple[int, str]:
    """Return a key to sort texts by length, then by text, so that texts of similar length share a batch."""
    return len(text), text
