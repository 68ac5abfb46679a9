"""Scorers of probes' predictions, which are stored as the replies in records."""
