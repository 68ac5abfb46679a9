"""The ruler: words and bells planted at a known second of 1 to 60 minutes of audio, and questions with exact answers."""
