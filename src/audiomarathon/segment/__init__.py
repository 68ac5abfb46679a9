"""From raw public corpora to the tasks' folders."""
