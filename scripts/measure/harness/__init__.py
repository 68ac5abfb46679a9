"""Parts of benchmark_harness.py and benchmark_xares.py."""
