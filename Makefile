# Two commands for newcomers: `make demo` and `make test`. Both need a Python >= 3.11 and nothing else.
#
# PYTHON=... names another interpreter; VENV=... another folder for it.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: demo test lint test-slow test-kernel verify-all studies fit bench pool-numbers docs bundled clean

demo: $(STAMP)
	@$(BIN)/firsttouch demo

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-kernel: $(STAMP)
	$(BIN)/python -m pytest -m kernel

# The programs of the manifest under five settings of this kernel; as root, on a quiet machine, about ten minutes.
verify-all: $(STAMP)
	@mkdir -p docs/measured
	$(BIN)/firsttouch verify --programs all --runs 7 --recordings 3 --extra-seconds 30 -o docs/measured/verify.json --force --plain || \
	  test $$? -eq 1
	$(BIN)/python -m firsttouch.report.accuracy docs/measured/verify.json docs/accuracy.md

# Published tables against the model: their pages, plots, and their part of the accuracy page; a few minutes.
studies: $(STAMP)
	$(BIN)/python -m pip install -q -e '.[docs]'
	@mkdir -p docs/measured
	$(BIN)/firsttouch study --all --json --docs docs/studies --force > docs/measured/study.json
	$(BIN)/python -m firsttouch.report.accuracy docs/measured/study.json docs/accuracy.md

# Fit the machines of the published tables anew, and store the residuals beside them: about an hour.
fit: $(STAMP)
	$(BIN)/firsttouch study --all --fit -o src/firsttouch/machine/presets --force

bench: $(STAMP)
	$(BIN)/python -m pytest benchmarks/bench_*.py --benchmark-only

# What docs/pool.md and README.md say of the pool's speed: on a quiet machine, about half an hour.
pool-numbers: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[bench]'
	@mkdir -p docs/measured
	$(BIN)/python benchmarks/bench_pool.py --idle --json docs/measured/pool.json
	$(BIN)/python benchmarks/pool_page.py docs/measured/pool.json docs/pool.md README.md

docs: $(STAMP)
	$(BIN)/python -m pip install -q -e '.[docs]'
	$(BIN)/sphinx-build -W -b html docs docs/_build/html

# The traces that ship in src/firsttouch/bundled, recorded anew (needs root: level full).
bundled: $(STAMP)
	$(BIN)/python examples/record_bundled.py

clean:
	rm -rf $(VENV) docs/_build build dist .pytest_cache .mypy_cache .ruff_cache

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: $(PYTHON) is not a Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "make: $(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing firsttouch into $(VENV) (once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@
