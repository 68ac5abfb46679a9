"""Criteria for Clotho's clips, written and merged by a model: python run.py --with MODEL (see --help)."""

from audiomarathon.cli.command import run_script
from audiomarathon.cli.experiment import write

run_script(write)
