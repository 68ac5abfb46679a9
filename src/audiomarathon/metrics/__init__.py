"""Compute scores, their intervals over clusters of samples, and paired tests."""
