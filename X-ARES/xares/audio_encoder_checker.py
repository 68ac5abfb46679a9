"""X-ARES' check of an encoder's interface; `audiomarathon encoder check` finds more."""

from audiomarathon import check_audio_encoder

__all__ = ["check_audio_encoder"]
