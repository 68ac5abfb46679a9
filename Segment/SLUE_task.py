"""SLUE-VoxPopuli -> the task `slue`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("slue")
