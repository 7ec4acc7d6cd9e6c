"""Benchmark: many interventions, one logit difference each, on all engines.

    python scripts/benchmark.py                 # both models, all works; results/benchmarks/cpu.csv or the GPU's
    python scripts/benchmark.py --quick         # a test of a few seconds; rows go to a temporary folder
    python scripts/benchmark.py --predict h200  # predicted times of sweeps on a GPU that is not here, and why
    python scripts/benchmark.py --targets       # what a GPU should reach, and what this one does
    python scripts/benchmark.py --draws         # the cost of a normal number with each generator
    python scripts/benchmark.py --tables        # the tables of docs/performance.md, from the CSVs
    python scripts/benchmark.py --update-page   # write them into docs/performance.md

Rows are written as they are measured. A second run measures only what is missing, with all engines of a work together.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from results_io import UserError
from scripts.benchmarks import command

if __name__ == "__main__":
    try:
        command.main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"benchmark: {error}")
