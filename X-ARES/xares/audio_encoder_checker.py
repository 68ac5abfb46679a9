"""Check an encoder's interface as X-ARES does; `audiomarathon encoder check` finds more faults."""

from audiomarathon import check_audio_encoder

__all__ = ["check_audio_encoder"]
