"""The `audiomarathon` command: one file a command. Nothing below prints."""
