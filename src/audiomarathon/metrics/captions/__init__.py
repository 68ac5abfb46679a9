"""Metrics of captions: tokens, CIDEr-D, FENSE, lengths."""
