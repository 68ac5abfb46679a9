"""GTZAN -> the task `gtzan`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("gtzan")
