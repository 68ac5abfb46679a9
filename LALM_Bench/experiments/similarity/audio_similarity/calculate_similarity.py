"""Measure how similar replies with noise are to replies with audio, called like the original's script (see --help)."""

from pathlib import Path

from audiomarathon.wings.lalm.experiments import similarity_door

similarity_door(Path(__file__).resolve().parent)
