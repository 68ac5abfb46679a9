"""RACE and a speech synthesiser -> the task `race`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("race")
