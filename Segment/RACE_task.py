"""RACE and a speech synthesiser -> the task `race`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("race")
