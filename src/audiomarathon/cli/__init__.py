"""The `audiomarathon` command: one file for each subcommand."""
