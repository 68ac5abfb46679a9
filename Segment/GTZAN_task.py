"""GTZAN -> the task `gtzan`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("gtzan")
