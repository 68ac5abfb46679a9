"""Methods that reduce the cost of long audio: token pruners drop audio tokens, KV presses shrink the KV cache."""
