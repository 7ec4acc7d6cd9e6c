"""What every test shares: no network, one thread, the repository's packages, small random models."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
if os.environ.get("MERIDIAN_GPU_TESTS") != "1":
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sys
from pathlib import Path

from jaxtyping import install_import_hook

sys.path.insert(0, str(Path(__file__).parents[1]))

# annotated types and shapes are checked at every call
CHECKED = (
    "circuit",
    "difference",
    "edges",
    "engine",
    "estimators",
    "hypothesis",
    "interventions",
    "measurements",
    "models",
    "prompts",
    "study",
)
install_import_hook([f"circuits.{name}" for name in CHECKED], "beartype.beartype")
