"""HAD, half-truth audio detection -> the task `had`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("had")
