"""Scorers of probes' predictions."""
