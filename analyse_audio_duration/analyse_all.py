"""Measure how long the clips of all downloaded tasks are: print tables; write files to `durations/` (see --help)."""

from audiomarathon.cli.app import durations_script

durations_script()
