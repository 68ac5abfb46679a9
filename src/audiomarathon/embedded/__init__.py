"""What ships with the package for trials without downloads: the mini benchmark (synthetic audio) and a tiny model.

Importing this package imports neither torch nor transformers, so the command line stays quick.
"""

from pathlib import Path

__all__ = ["CHECKPOINT"]

#: Folder of the shipped `Qwen2_5OmniThinkerForConditionalGeneration`, with its tokenizer and feature extractor.
CHECKPOINT = Path(__file__).parent / "checkpoint"
