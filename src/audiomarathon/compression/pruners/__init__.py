"""Token pruners, one file for each method."""
