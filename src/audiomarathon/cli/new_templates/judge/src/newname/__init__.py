"""A judge that answers by a table."""
