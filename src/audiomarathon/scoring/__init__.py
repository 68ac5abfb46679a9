"""Scorers: they turn stored replies into verdicts and scores, and never use the model under test."""
