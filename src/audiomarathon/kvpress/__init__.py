"""KV presses and what they share with pruning: audio features computed once, attention watched without eager mode."""
