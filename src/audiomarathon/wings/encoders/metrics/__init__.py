"""Metrics used only to score probes: average precision, correlation, F1 of sound events, and retrieval."""
