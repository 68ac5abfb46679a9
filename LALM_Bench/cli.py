"""Run Clotho and MMAU-Pro, called like the original: python cli.py run|inference|eval clotho|mmau-pro (see --help)."""

from pathlib import Path

from audiomarathon.wings.lalm.commands import door

door(Path(__file__).resolve().parent)
