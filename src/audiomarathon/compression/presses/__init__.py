"""KV presses, one file for each press."""
