"""Ask questions, read the replies and check them, for users' tasks and several benchmarks."""
