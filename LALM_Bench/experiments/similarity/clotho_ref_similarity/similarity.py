"""Find captions of Clotho that differ most from their clip's other captions: python similarity.py (see --help)."""

from audiomarathon.cli.command import run_script
from audiomarathon.wings.lalm.experiments import references

run_script(references)
