"""DESED -> the task `desed`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("desed")
