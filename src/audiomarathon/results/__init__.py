"""Compute results over many runs: comparisons, savings, the best setting, progress."""
