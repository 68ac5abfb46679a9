"""How long the clips of all tasks that are there are: tables, JSON, CSV, pictures in `durations/`. Options: --help."""

from audiomarathon.cli.app import durations_script

durations_script()
