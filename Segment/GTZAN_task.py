"""Build the task `gtzan` from GTZAN. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("gtzan")
