"""Measure how long the clips of RACE are: a table, and JSON, CSV and a picture in `durations/` (see --help)."""

from audiomarathon.cli.app import durations_script

durations_script("race")
