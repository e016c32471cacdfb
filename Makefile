# Every target makes the virtual environment by itself when it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests and benchmarks read MNIST and the others from here when the folder exists.
export ROOKERY_DATA ?= $(wildcard ../shared/data)

.PHONY: demo test test-optimized test-all test-federation test-processes fuzz soak kills lint audit bench docs clean

$(VENV)/ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(VENV)/ready-bench: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	touch $@

demo: $(VENV)/ready  ## on scikit-learn's digits: tables, a report, and a picture of wrong labels that were found
	$(BIN)/rookery demo

test: $(VENV)/ready  ## the tests, at most 8 minutes on 2 cores
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-optimized: $(VENV)/ready  ## what must be exact once more, compiled with XLA's optimizations as it ships: about 4 minutes
	ROOKERY_TESTS_OPTIMIZED=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "optimized and (transcription or not slow)"

test-all: $(VENV)/ready  ## all there is, federations of processes too: about three quarters of an hour
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-federation: $(VENV)/ready  ## parity, security and faults with real Flower processes alone: 6 to 10 minutes
	$(BIN)/python -m pytest -m federation

test-processes: $(VENV)/ready  ## runs of several processes alone: parity, resuming, kills, refusals: under 6 minutes
	$(BIN)/python -m pytest -m "processes and slow"

fuzz: $(VENV)/ready  ## what comes from outside, made up or damaged, in large numbers
	ROOKERY_FUZZ=long $(BIN)/python -m pytest -n 2 -m fuzz

soak: $(VENV)/ready  ## rounds on Flower while nodes are killed and answers lost or damaged; with secure sums and privacy too
	$(BIN)/python -m benchmarks.soak

kills: $(VENV)/ready  ## 100 runs killed at random moments and gone on with, and 20 stopped
	$(BIN)/python -m benchmarks.kills --simulator 70 --flower 30 --stops 15 --flower-stops 5

lint: $(VENV)/ready  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: $(VENV)/ready  ## known vulnerabilities of what is installed; asks the package index, and fails where it tells nothing of a package
	test -x $(VENV)/audit/bin/pip-audit || ($(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/python -m pip install --quiet pip-audit)
	$(BIN)/python -m pip freeze --exclude-editable > $(VENV)/installed.txt
	$(VENV)/audit/bin/pip-audit --requirement $(VENV)/installed.txt --no-deps --disable-pip --strict

bench: $(VENV)/ready-bench  ## speed, as ratios in one interleaved run; BEFORE=REVISION compares with that as well
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.devices $(if $(BEFORE),--before $(BEFORE))

docs: $(VENV)/ready  ## the documentation as a site, in site/
	$(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf site $(VENV) .pytest_cache .mypy_cache .ruff_cache
