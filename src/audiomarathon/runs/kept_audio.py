"""Store which audio tokens a pruner kept: one bit per token, in base64 (7,500 tokens take 1.25 kB)."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import RecordError

if TYPE_CHECKING:
    import torch


def pack(kept_positions: torch.Tensor, audio_mask: torch.Tensor) -> str:
    """Return the bits of one sample.

    Parameters
    ----------
    kept_positions
        Kept prompt positions, on the CPU.
    audio_mask
        Boolean, shape (S,): which prompt positions are audio tokens.
    """
    import torch

    audio = audio_mask.cpu().nonzero().flatten()
    kept = torch.isin(audio, kept_positions).numpy()
    return base64.b64encode(np.packbits(kept).tobytes()).decode()


def unpack(text: str, audio_tokens: int) -> npt.NDArray[np.bool_]:
    """Return a boolean per audio token: True if it was kept.

    Raises
    ------
    RecordError
        The text has another number of bits.
    """
    try:
        packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except (binascii.Error, ValueError) as error:
        raise RecordError(f"kept_audio_bits of a record cannot be read: {error}") from None
    if len(packed) != -(-audio_tokens // 8):
        raise RecordError(f"kept_audio_bits of a record holds {8 * len(packed)} bits, expected {audio_tokens}")
    return np.unpackbits(packed, count=audio_tokens).astype(bool)
