"""The `audiomarathon` command: one file for each subcommand. Rooms below this one print nothing."""
