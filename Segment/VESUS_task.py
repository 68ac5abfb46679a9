"""VESUS -> the task `vesus`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("vesus")
