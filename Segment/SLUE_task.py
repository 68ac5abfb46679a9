"""SLUE-VoxPopuli -> the task `slue`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("slue")
