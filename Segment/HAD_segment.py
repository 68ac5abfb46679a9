"""HAD, half-truth audio detection -> the task `had`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("had")
