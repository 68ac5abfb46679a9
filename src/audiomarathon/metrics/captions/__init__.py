"""Metrics of captions: CIDEr-D, FENSE, lengths, and the tokens that they count."""
