"""Compute figures over many runs: comparisons, savings, the best setting, progress."""
