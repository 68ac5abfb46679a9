"""Caption Clotho's clips, called like the original's script: python inference.py --model NAME (see --help)."""

from pathlib import Path

from audiomarathon.wings.lalm.commands import door

door(Path(__file__).resolve().parents[2], "inference", "clotho", "--split", "all")
