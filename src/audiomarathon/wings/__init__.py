"""Further benchmarks on the core: each wing is a folder with its tasks, scorers, tables, pictures and commands."""
