"""Token pruners, one file a method."""
