"""VESUS -> the task `vesus`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("vesus")
