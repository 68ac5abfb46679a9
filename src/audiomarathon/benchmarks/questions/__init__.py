"""Questions as several benchmarks and users' tasks ask them: make them, read the replies, and check them."""
