"""Metrics that only probes need."""
