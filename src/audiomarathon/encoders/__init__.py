"""Frozen audio encoders in the interface of X-ARES."""

from audiomarathon.wings.encoders.check import check_audio_encoder, check_encoder
from audiomarathon.wings.encoders.encoder import Encoder, from_module
from audiomarathon.wings.encoders.registry import EncoderSpec, load_encoder

__all__ = ["Encoder", "EncoderSpec", "check_audio_encoder", "check_encoder", "from_module", "load_encoder"]
