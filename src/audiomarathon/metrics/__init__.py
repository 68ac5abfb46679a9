"""Scores and their intervals, over clusters, and paired tests."""
