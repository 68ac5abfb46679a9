"""DESED -> the task `desed`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("desed")
