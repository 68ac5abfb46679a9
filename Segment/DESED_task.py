"""DESED -> the task `desed`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("desed")
