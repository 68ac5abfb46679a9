"""LibriSpeech -> the task `librispeech`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("librispeech")
