"""The ruler, a benchmark: words and bells at known seconds in up to an hour of audio, and questions about them."""
