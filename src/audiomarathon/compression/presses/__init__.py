"""KV presses, one file a press."""
