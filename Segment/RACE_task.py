"""RACE and a speech synthesiser -> the task `race`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("race")
