# make ioi        the main job on the embedded model, from an empty checkout to a certificate
# make test       the tests
# make test-slow  the tests that are marked slow
# make lint       ruff
# make types      pyright
# make docs       the documentation site, in site/
# make bench      the benchmark on this machine, and the tables of docs/performance.md
# make lock       constraints.txt: the newest version of every package that pyproject.toml allows
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
INSTALL := -W ignore -m pip install --quiet --no-compile
PIP := $(BIN)/python $(INSTALL) -c constraints.txt
PYTEST := $(THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile

# compiled modules are kept below .venv, also where the environment says that none are written: processes start in half the time
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.PHONY: ioi test test-slow lint types docs bench install lock clean
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
	$(BIN)/python scripts/benchmark.py --update-page

install: $(DEV)

# What `make ioi` needs. Torch comes first and pinned, so that no other package chooses its version.
# Python compiles a module when it is first imported, so pip need not compile them all; a new pip reads an index faster.
$(RUN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) pip
	$(PIP) torch
	$(PIP) -e .
	touch $@

# What tests, lint, types, docs and the benchmark need besides.
$(DEV): $(RUN)
	$(PIP) -e '.[dev]'
	touch $@

# In an environment of its own; torch stays at the version that constraints.txt pins.
lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python $(INSTALL) --upgrade pip
	.venv-lock/bin/python $(INSTALL) $$(grep '^torch==' constraints.txt)
	.venv-lock/bin/python $(INSTALL) -e '.[dev]'
	.venv-lock/bin/python -m pip freeze --all --exclude-editable > .venv-lock/all
	{ head -n 2 constraints.txt; sed '/^\(triton\|nvidia-\|cuda-\)/d; s/+.*//' .venv-lock/all; } > .venv-lock/pins
	mv .venv-lock/pins constraints.txt
	rm -r .venv-lock

clean:
	rm -rf $(VENV)
