"""Methods that spend less on long audio: token pruners and KV presses under one registry."""
