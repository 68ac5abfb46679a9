"""Metrics that only the scoring of probes needs."""
