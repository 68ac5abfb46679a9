"""Judges: language models that rate the replies of the model under test."""
