"""Combine runs: comparisons, savings, the best setting, status."""
