"""Scorers: they judge stored replies, and never see the model under test."""
