# make ioi        the main job on the embedded model, from an empty checkout to a certificate
# make test       the tests
# make test-slow  the tests that are marked slow, an hour and more; TESTS=tests/suites: those of a folder
# make lint       ruff
# make types      pyright
# make docs       the documentation site, in site/
# make bench      the benchmark on this machine, and the tables of docs/performance.md
# make lock       constraints.txt: the newest version of every package that pyproject.toml allows, with hashes
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
TESTS ?= tests
BIN := $(VENV)/bin
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
INSTALL := -W ignore -m pip install --quiet --no-compile
PIP := $(BIN)/python $(INSTALL)
# one section of the lock: all of it has hashes and all that it needs stands in it, so pip has nothing to resolve
LOCKED = sed -n '/^\# --- what $(1)/,/^\# ---/p' constraints.txt > $(VENV)/locked.txt \
	&& $(PIP) --require-hashes --no-deps --no-build-isolation -r $(VENV)/locked.txt
EDITABLE := $(PIP) --no-deps --no-build-isolation -e
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
	$(PYTEST) -m slow --timeout 3600 --no-loadscope-reorder $(TESTS)

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

# What `make ioi` needs, in two steps: all that has hashes, then torch, which finds what it needs and brings what its build needs.
# Python compiles a module when it is first imported, so pip need not compile them all; a new pip reads an index faster.
$(RUN): pyproject.toml constraints.txt constraints-torch.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call LOCKED,installs)
	$(call LOCKED,a run needs)
	$(PIP) -r constraints-torch.txt
	$(EDITABLE) .
	touch $@

# What tests, lint, types, docs and the benchmark need besides.
$(DEV): $(RUN)
	$(call LOCKED,.\[dev\] brings)
	touch $@

# Torch stays at the version that constraints-torch.txt pins; uv knows the hashes of all files of a release, and pip only of its own.
lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python $(INSTALL) uv
	.venv-lock/bin/python -m scripts.pin_versions
	rm -r .venv-lock

clean:
	rm -rf $(VENV)
