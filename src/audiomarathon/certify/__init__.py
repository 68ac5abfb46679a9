"""Proving, on the user's machine and weights, that what is measured there is what it is said to be."""
