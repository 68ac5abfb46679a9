"""Similarity of replies with noise and with audio, called as the original's script (see --help)."""

from pathlib import Path

from audiomarathon.cli.experiment import similarity_door

similarity_door(Path(__file__).resolve().parent)
