"""From raw corpora and downloads to a verified data root, and what is in it."""
