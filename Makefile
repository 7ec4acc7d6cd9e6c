# make ioi        the main job on the embedded model, from an empty checkout to a certificate
# make test       the tests
# make test-slow  the tests that are marked slow
# make lint       ruff
# make types      pyright
# make docs       the documentation site, in site/
# make bench      the benchmark on this machine, and the README's performance tables
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
PYTEST := $(THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: ioi test test-slow lint types docs bench install clean
.DEFAULT_GOAL := ioi

ioi: $(RUN)
	$(BIN)/python run.py task=ioi calibration=all

# one torch thread per process: two processes share the cores better than two threads
test: $(DEV)
	$(PYTEST) -m "not slow"

test-slow: $(DEV)
	$(PYTEST) -m slow

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(DEV)
	$(BIN)/python -m scripts.docs --out site

bench: $(DEV)
	$(BIN)/python scripts/benchmark.py
	$(BIN)/python scripts/benchmark.py --update-readme

install: $(DEV)

# what `make ioi` needs; torch first and pinned, so that no other package chooses its version
$(RUN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	touch $@

# what tests, lint, types, docs and the benchmark need besides
$(DEV): $(RUN)
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
