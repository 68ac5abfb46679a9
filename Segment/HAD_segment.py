"""HAD, half-truth audio detection -> the task `had`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("had")
