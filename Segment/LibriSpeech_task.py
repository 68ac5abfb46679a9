"""Build the task `librispeech` from LibriSpeech. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("librispeech")
