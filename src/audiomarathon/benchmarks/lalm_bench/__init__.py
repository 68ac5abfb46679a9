"""LALM Bench: captions of Clotho and AudioCaps, and MMAU-Pro's choices, open questions and spoken instructions."""
