"""Further benchmarks and tools, each in a folder of its own (a "wing") with its tasks, scorers, tables and commands."""
