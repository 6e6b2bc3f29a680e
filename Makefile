# `make test` sets everything up on a fresh machine and runs the tests; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
JOBS ?= 2
FUZZ_SECONDS ?= 1200
# Another seed every time; a finding is repeated with `make fuzz FUZZ_SEED=…`.
FUZZ_SEED := $(or $(FUZZ_SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
FRAME_RUNS ?= 10000000
DEMO := .venv-demo
# Flower says nothing to anyone.
export FLWR_TELEMETRY_ENABLED := 0
SOURCES := $(shell find src/smidgen -type f ! -name '*.so' ! -name '*.part' ! -name '*.pyc')

.PHONY: frames long needs bits boards fit generated targets kill help setup test lint unit quick parity bench demo fuzz fuzz-a-minute clean zoo

help:
	@echo "make test     set up, lint, type-check, run all tests, fuzz for a minute"
	@echo "make long     the tests that make test runs a sample of, on all their cases (about ten minutes)"
	@echo "make quick    tests that take no torch, emulator, browser or long builds (below a minute on two cores)"
	@echo "make demo     a network learns in 64 KB of RAM: own light environment, no PyTorch"
	@echo "make setup    virtual environment, dependencies, C runtime"
	@echo "make unit     tests only"
	@echo "make parity   every network x optimizer x batch x method x batch-norm mode against PyTorch (about 25 minutes on two cores)"
	@echo "make bench    time and memory of a training step against other libraries (4 GB of them, then two hours; goes on if interrupted)"
	@echo "make fit      extra time of every technique within a budget, for six networks (about an hour; goes on if interrupted)"
	@echo "make targets  the runner for every kind of Linux machine, under emulation (its C libraries are built once)"
	@echo "make boards   100 training steps on each emulated microcontroller board, compared bit for bit (about 15 minutes)"
	@echo "make fuzz     hostile programs against the loader and every kernel, under sanitizers (FUZZ_SECONDS=1200, FUZZ_SEED=a fresh one)"
	@echo "make frames   ten million hostile requests to a board of a fleet, under sanitizers (FRAME_RUNS=10000000, FUZZ_SEED=a fresh one)"
	@echo "make lint     ruff, clang-format and mypy"
	@echo "make generated  300 random networks train as the interpreter says, 500 x every technique within random budgets learn the same bits (about 22 minutes)"
	@echo "make bits     thirteen large networks at reduced size x budgets x every technique learn the same bits (about half an hour; goes on if interrupted)"
	@echo "make needs    200 random cases: the stated need is enough, and less is refused (goes on if interrupted)"
	@echo "make zoo      233 models of timm, transformers and other packages: one training step each against PyTorch (1 GB of packages, two hours; goes on if interrupted)"
	@echo "make kill     a training run killed at 200 random moments: every resume ends with the same bits"

# System tools: a C compiler is required; clang and tcc are used to prove that all compilers give the same bits.
$(TOOLS):
	@sh tools/system_packages.sh
	@mkdir -p $(VENV) && touch $@

$(STAMP): pyproject.toml setup.py constraints.txt | $(TOOLS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[compile,fleet,dev]'
	@touch $@

# Compiled modules, also where the environment forbids to write them on import: a process starts in half the time.
setup: $(STAMP)
	@$(BIN)/python -m tools.make_inplace
	@$(BIN)/python -m smidgen.runtime
	@$(BIN)/python -m compileall -q src/smidgen

# Type checks and the fuzzer take one core each.
test: setup
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint fuzz-a-minute FUZZ_SEED=$(FUZZ_SEED)
	@$(MAKE) --no-print-directory unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests benchmarks
	@git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not long"

# More cases of what `make test` has a sample of: tests/support/long_proofs.py.
long: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m long

# Torch cannot be imported here, which saves seconds in every process.
quick: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not torch and not arm and not browser and not slow and not long"

parity: setup
	rm -f docs/results/parity.json
	$(BIN)/python -m benchmarks.parity --all --out docs/results/parity.json

bench: setup
	$(BIN)/python -m benchmarks.step --setup
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.make_tables

fit: setup
	$(BIN)/python -m benchmarks.fit --measure

boards: setup
	$(BIN)/python -m benchmarks.boards

targets: setup
	SMIDGEN_TARGETS=all $(BIN)/python -m pytest tests/deploy/test_runner.py

# Its own environment, so that nobody has to wait for PyTorch; installed again only when a source has changed.
$(DEMO)/.installed: pyproject.toml setup.py $(SOURCES)
	@sh tools/system_packages.sh demo
	@test -x $(DEMO)/bin/pip || $(PYTHON) -m venv $(DEMO)
	@echo "installing smidgen, numpy and scikit-learn into $(DEMO) ..."
	@$(DEMO)/bin/pip install --quiet --disable-pip-version-check '.[demo]'
	@touch $@

demo: $(DEMO)/.installed
	@$(DEMO)/bin/smidgen demo

# One core; ends with status 1 at the first finding. FUZZ_SEED=7 repeats a run.
fuzz: setup
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

# A part of `make test`: a minute with a seed that no run had before. Without clang there is no libFuzzer.
fuzz-a-minute: setup
	@if command -v clang > /dev/null; then \
		echo "fuzzing for a minute; again with: make fuzz FUZZ_SECONDS=60 FUZZ_SEED=$(FUZZ_SEED)" && \
		$(BIN)/python -m tests.fuzz.run --seconds 60 --seed $(FUZZ_SEED) && \
		$(BIN)/python -m tests.fuzz.frames --runs 200000 --seed $(FUZZ_SEED); \
	else echo "not fuzzed: needs clang and its libFuzzer (sh tools/system_packages.sh)"; fi

frames: setup
	$(BIN)/python -m tests.fuzz.frames --runs $(FRAME_RUNS) --seed $(FUZZ_SEED)

zoo: setup
	$(BIN)/python -m benchmarks.zoo

bits: setup
	$(BIN)/python -m benchmarks.same_bits

needs: setup
	$(BIN)/python -m benchmarks.needs

generated: setup
	rm -f docs/results/generated.json
	SMIDGEN_NETWORKS=300 $(BIN)/python -m pytest -n $(JOBS) tests/acceptance/test_generated.py
	$(BIN)/python -m tests.support.generated_budget

kill: setup
	SMIDGEN_KILLS=200 $(BIN)/python -m pytest -s tests/train/test_kill.py

clean:
	rm -rf $(VENV) $(DEMO) build dist src/*.egg-info src/smidgen/runtime/libsmidgen.so
