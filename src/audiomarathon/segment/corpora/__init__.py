"""Readers of the public corpora from which the ten tasks are built, one file per corpus."""
