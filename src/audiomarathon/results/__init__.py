"""What many runs say together: comparisons, savings, the best setting, status."""
