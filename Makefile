# `make test` sets everything up on a fresh machine and runs the tests; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
JOBS ?= 2

.PHONY: help setup test lint unit parity clean

help:
	@echo "make test     set up, lint, type-check, run all tests"
	@echo "make setup    virtual environment, dependencies, C runtime"
	@echo "make unit     tests only"
	@echo "make parity   every network x optimizer x batch x method x batch-norm mode against PyTorch (about 25 minutes on two cores)"
	@echo "make lint     ruff and mypy"

# System tools: a C compiler is required; clang and tcc are used to prove that all compilers give the same bits.
$(TOOLS):
	@sh tools/system_packages.sh
	@mkdir -p $(VENV) && touch $@

$(STAMP): pyproject.toml setup.py constraints.txt | $(TOOLS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[compile,dev]'
	@touch $@

setup: $(STAMP)
	@$(BIN)/python -m smidgen.runtime

test: setup lint unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

parity: setup
	rm -f docs/results/parity.json
	$(BIN)/python -m benchmarks.parity --all --out docs/results/parity.json

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/smidgen/runtime/libsmidgen.so
