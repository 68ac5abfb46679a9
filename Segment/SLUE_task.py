"""SLUE-VoxPopuli -> the task `slue`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("slue")
