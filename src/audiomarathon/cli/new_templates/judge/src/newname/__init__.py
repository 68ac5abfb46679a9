"""A judge that takes its answers from a table."""
