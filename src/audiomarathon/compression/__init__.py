"""Methods that reduce the cost of long audio: token pruners and KV presses, in one registry."""
