"""Score answers to MMAU-Pro, called like the original's script: python evaluation.py FILE (see --help)."""

from pathlib import Path

from audiomarathon.wings.lalm.commands import door

door(Path(__file__).resolve().parents[2], "eval", "mmau-pro")
