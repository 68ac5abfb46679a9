"""LALM Bench: captions (Clotho, AudioCaps), and MMAU-Pro's choices, open questions and spoken instructions."""
