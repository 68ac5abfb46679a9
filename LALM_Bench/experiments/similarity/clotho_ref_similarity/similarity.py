"""Captions of Clotho that stand apart from their clip's others: python similarity.py (see --help)."""

from audiomarathon.cli.command import run_script
from audiomarathon.cli.experiment import references

run_script(references)
