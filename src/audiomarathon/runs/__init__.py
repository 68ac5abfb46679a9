"""The folder of one run: its records, its summary, and how it survives anything."""
