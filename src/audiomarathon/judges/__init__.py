"""Judges: models that rate replies of the model under test."""
