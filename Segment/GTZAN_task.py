"""GTZAN -> the task `gtzan`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("gtzan")
