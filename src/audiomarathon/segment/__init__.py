"""Build the data folders of AudioMarathon's tasks from raw public corpora."""
