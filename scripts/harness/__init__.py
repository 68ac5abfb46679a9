"""What benchmark_harness.py runs beside lmms-eval."""
