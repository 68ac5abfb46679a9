"""LibriSpeech -> the task `librispeech`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("librispeech")
