"""Judge replies to JASCO, called like the original's script: python eval.py JUDGE INPUT.csv OUTPUT.csv (see --help)."""

from audiomarathon.cli.command import run_script
from audiomarathon.wings.jasco.commands import evaluate

run_script(evaluate)
