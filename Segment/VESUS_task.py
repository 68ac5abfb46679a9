"""VESUS -> the task `vesus`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("vesus")
