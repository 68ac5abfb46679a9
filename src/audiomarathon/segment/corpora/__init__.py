"""The public corpora that the ten tasks are built of: one file a corpus says how to read it."""
