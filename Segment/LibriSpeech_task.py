"""LibriSpeech -> the task `librispeech`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("librispeech")
