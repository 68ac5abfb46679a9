"""Let a model write and merge criteria for Clotho's clips: python run.py --with MODEL (see --help)."""

from audiomarathon.cli.command import run_script
from audiomarathon.wings.lalm.experiments import write

run_script(write)
