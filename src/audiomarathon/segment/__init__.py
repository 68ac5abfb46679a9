"""Build the tasks' folders from raw public corpora."""
