# make ioi    the main job on the embedded model, from an empty checkout to a certificate
# make test   the tests
# make docs   the documentation site, in site/
# make bench  the benchmark on this machine, and the README's performance tables
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: ioi test docs bench lint install clean
.DEFAULT_GOAL := ioi

ioi: $(STAMP)
	$(BIN)/python run.py task=ioi calibration=all

# one torch thread per process: two processes share the cores better than two threads
test: $(STAMP)
	$(THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile

docs: $(STAMP)
	$(BIN)/python -m scripts.docs --out site

bench: $(STAMP)
	$(BIN)/python scripts/benchmark.py
	$(BIN)/python scripts/benchmark.py --update-readme

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

install: $(STAMP)

# torch first and pinned, so that no other package chooses its version
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
