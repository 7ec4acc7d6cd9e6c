"""The kernels compiled, not run, for compute capability 9.0: what the interpreter cannot see.

Nothing here measures a GPU. That fp32 is IEEE fp32, that a tile fits and that no register is spilled are properties of the
machine code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_MEMORY = 99 * 1024  # what a block may have on the smallest of the GPUs in use, compute capability 8.6 and 8.9

pytestmark = pytest.mark.skipif(not (BINARIES / "cuobjdump").exists(), reason="this Triton has no NVIDIA tools")


def compiled(dtype: str, d_head: int, cache: Path) -> dict[str, dict]:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    variables |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), dtype, str(d_head)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("dtype", "d_head"), [("fp32", 64), ("bf16", 80)])
def test_kernels_compile_without_spilling_and_without_tf32_and_once_for_all_counts(dtype, d_head, tmp_path):
    kernels = compiled(dtype, d_head, tmp_path)
    assert len(kernels) == 4
    for name, built in kernels.items():
        assert built["stack"] == 0, (name, built)
        assert built["registers"] <= 255 and built["shared"] <= SHARED_MEMORY, (name, built)
        assert not built["tf32"], name
        assert not built["specialised"], (name, built)
        assert built["tensor_core"] == (dtype != "fp32" and name != "logit_difference"), (name, built)
