"""The kernels compiled, not run, for GPUs that are not there: what the interpreter cannot see.

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

from kernels import launch  # noqa: E402

ROOT = Path(__file__).parents[2]
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}  # bytes a block may have
REGISTERS = {"sm_80": 255, "sm_86": 255, "sm_90": 255, "gfx942": 512}
HEADS = (24, 64, 80, 96, 128, 256)
OPERATIONS = ("select_project", "suffix_attention", "packed_attention", "logit_difference")
FLOAT32_ALONE = ("split_product", "philox_normal")

pytestmark = pytest.mark.skipif(not (BINARIES / "cuobjdump").exists(), reason="this Triton has no NVIDIA tools")


def compiled(targets: str, dtypes: str, heads: tuple[int, ...], cache: Path) -> list[dict]:
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    variables |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    script = str(Path(__file__).with_name("compile_kernels.py"))
    command = [sys.executable, "-W", "ignore", script, targets, dtypes, ",".join(map(str, heads))]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(row: dict) -> None:
    """What holds for every kernel on every part."""
    assert row["stack"] == 0 and row["spilled"] == 0, row
    assert row["registers"] <= REGISTERS[row["target"]] and row["shared"] <= SHARED[row["target"]], row
    split, half = row["kernel"] == "split_product", row["dtype"] != "fp32"
    assert row["tf32"] == split, row
    if row["target"].startswith("sm_"):
        assert row["tensor_core"] == (split or (half and row["kernel"] != "logit_difference")), row
        assert row["fetched_ahead"] > 0 or row["kernel"] in ("logit_difference", "philox_normal"), row


@pytest.mark.slow
@pytest.mark.parametrize(("target", "dtype", "d_head"), [("sm_80", "fp32", 80), ("sm_90", "bf16", 96)])
def test_kernels_compile_without_spilling_and_without_tf32(target, dtype, d_head, tmp_path):
    rows = compiled(target, dtype, (d_head,), tmp_path)
    assert [row["kernel"] for row in rows] == [*OPERATIONS, *(FLOAT32_ALONE if dtype == "fp32" else ())]
    for row in rows:
        check(row)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_every_kernel_on_every_part(target, dtype, tmp_path):
    rows = compiled(target, dtype, HEADS, tmp_path)
    alone = len(FLOAT32_ALONE) - (target == "gfx942") if dtype == "fp32" else 0  # TF32 is NVIDIA's
    assert len(rows) == len(HEADS) * (len(OPERATIONS) + alone)
    for row in rows:
        check(row)


@pytest.mark.slow
def test_counts_are_not_specialised():
    """A count that becomes 1 or a multiple of 16 must not compile a kernel anew in the middle of a run."""
    code = (
        "from kernels import logit_difference, packed_attention, philox_normal, select_project, split_product\n"
        "from kernels import suffix_attention\n"
        "modules = logit_difference, packed_attention, philox_normal, select_project, split_product, suffix_attention\n"
        "for m in modules:\n"
        "    for p in m._kernel.params:\n"
        "        assert p.is_constexpr or p.name.endswith('_ptr') or p.do_not_specialize, (m, p.name)\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize(
    ("length", "parts"),
    [(1, (16, 0)), (16, (16, 0)), (17, (32, 0)), (24, (32, 0)), (40, (32, 16)), (64, (64, 0)), (80, (64, 16)),
     (96, (64, 32)), (97, (128, 0)), (128, (128, 0)), (129, (128, 16)), (192, (128, 64)), (200, (256, 0)), (256, (256, 0))],
)  # fmt: skip
def test_heads_are_cut_in_two_parts_with_least_padding(length, parts):
    assert launch.two_parts(length) == parts


@pytest.mark.parametrize(
    ("name", "family"),
    [("sm_75", "sm_80"), ("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_89", "sm_80"), ("sm_90", "sm_90"), ("sm_100", "sm_90"),
     ("sm_120", "sm_80"), ("gfx942", "gfx942"), ("gfx90a", "gfx942")],
)  # fmt: skip
def test_every_part_has_tiles(name, family):
    assert launch.family(name) == family
    for d_head in range(1, launch.LARGEST_HEAD + 1):
        for dtype in launch.DTYPES:
            settings = launch.attention_settings(1280, 1280, d_head, dtype, name)
            assert settings["BLOCK_D"] + settings["BLOCK_REST"] >= d_head
