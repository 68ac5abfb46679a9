"""Other suites' results in, ours out."""
