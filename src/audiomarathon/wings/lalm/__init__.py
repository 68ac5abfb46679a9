"""LALM Bench: captions (Clotho, AudioCaps), and questions about audio (MMAU-Pro, MMAU-mini, MMAR, MMSU)."""
