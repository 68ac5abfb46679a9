"""Compute scores, their intervals over clusters, and paired tests."""
