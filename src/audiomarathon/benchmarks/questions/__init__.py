"""How questions are asked and their replies are read, for tasks of the user and of several benchmarks."""
