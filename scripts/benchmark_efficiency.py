"""Run measure/benchmark_efficiency.py, which used to be at this path."""

import runpy
import sys
from pathlib import Path

MEASURE = Path(__file__).parent / "measure"
sys.path.insert(0, str(MEASURE))
runpy.run_path(str(MEASURE / "benchmark_efficiency.py"), run_name="__main__")
