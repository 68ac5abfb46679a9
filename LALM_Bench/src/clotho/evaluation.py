"""Score captions, called like the original's script: python evaluation.py --input_json_path FILE (see --help)."""

from pathlib import Path

from audiomarathon.wings.lalm.commands import door

door(Path(__file__).resolve().parents[2], "eval", "clotho")
