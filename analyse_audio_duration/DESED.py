"""Measure how long the clips of DESED are: a table, and JSON, CSV and a picture in `durations/` (see --help)."""

from audiomarathon.cli.app import durations_script

durations_script("desed")
