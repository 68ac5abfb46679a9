"""Criteria for Clotho's clips, written and merged by a model: python run.py --with MODEL (see --help)."""

from audiomarathon.cli.experiment import write
from audiomarathon.cli.options import run_script

run_script(write)
