"""Readers of the raw public corpora from which AudioMarathon's ten tasks are built, one file per corpus."""
