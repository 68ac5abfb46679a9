"""Captions of Clotho that stand apart from their clip's others: python similarity.py (see --help)."""

from audiomarathon.cli.experiment import references
from audiomarathon.cli.options import run_script

run_script(references)
