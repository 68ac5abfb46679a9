"""The ruler: words and bells at known seconds in up to an hour of audio, and questions with exact answers."""
