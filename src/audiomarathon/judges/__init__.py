"""Judges: models that read replies of the model under test and say what they are worth."""
