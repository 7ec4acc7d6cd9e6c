"""Compile every kernel for GPUs that need not be there; one JSON line each. Run in a process of its own.

    python compile_kernels.py sm_80,sm_90 fp32,bf16 24,64

Triton carries its own ptxas, so a machine without a GPU can see what the interpreter cannot: type errors of the compiler,
shared memory, spilled registers, and which multiplication an fp32 `tl.dot` became. The launchers run on tensors without
memory (the meta device), so that tiles, warps and what Triton specialises are those of a launch.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels import (
    launch,
    logit_difference,
    packed_attention,
    philox_normal,
    select_project,
    split_product,
    suffix_attention,
)

BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TENSOR_CORE = re.compile(r"\b(?:HMMA|HGMMA|IMMA|QGMMA)\b|v_mfma")


class Recorder:
    """Takes the place of a jitted kernel: compiles each launch for `target` and runs nothing."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.built, self.seconds = kernel, [], 0.0

    def __getitem__(self, grid: Any) -> Any:
        def compile_launch(*arguments: Any, **constants: Any) -> None:
            started = time.perf_counter()
            self.built.append(self.kernel.warmup(*arguments, grid=grid, **constants))
            self.seconds += time.perf_counter() - started

        return compile_launch


def compiled(module: Any, target: str, launch_it: Any) -> dict[str, Any]:
    """What the one launch of `module` that `launch_it` makes becomes on `target`."""
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: TARGETS[target],
        )
    )
    launch.part = lambda device: target
    real = module._kernel
    real.device_caches.clear()
    module._kernel = recorder = Recorder(real)
    try:
        launch_it()
    finally:
        module._kernel = real
    (built,) = recorder.built
    return {
        **(_of_amd(built) if target.startswith("gfx") else _of_nvidia(built)),
        "shared": built.metadata.shared,
        "warps": built.metadata.num_warps,
        "seconds": round(recorder.seconds, 2),
    }


def _of_nvidia(built: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(built.asm["cubin"])
        usage = _run("cuobjdump", "-res-usage", path)
        code = _run("nvdisasm", "-c", path)
    registers, stack = (int(re.search(rf"{label}:(\d+)", usage)[1]) for label in ("REG", "STACK"))
    return {
        "registers": registers,
        "stack": stack,
        "spilled": len(re.findall(r"\b(?:STL|LDL)\b", code)),
        "tf32": "tf32" in built.asm["ptx"],
        "tensor_core": bool(TENSOR_CORE.search(code)),
        "fetched_ahead": len(re.findall(r"\bLDGSTS", code)),
    }


def _run(tool: str, *arguments: object) -> str:
    command = [str(BINARIES / tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _of_amd(built: Any) -> dict[str, Any]:
    text = built.asm["amdgcn"]

    def most(key: str) -> int:
        return max((int(found) for found in re.findall(rf"\.{key}:\s*(\d+)", text)), default=0)

    return {
        "registers": most("vgpr_count"),
        "stack": most("private_segment_fixed_size"),
        "spilled": most("vgpr_spill_count"),
        "tf32": "xf32" in text,
        "tensor_core": bool(TENSOR_CORE.search(text)),
    }


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def launches(dtype: torch.dtype, d_head: int, sizes: tuple[int, int, int, int] = (145, 64, 20, 10)) -> dict[str, Any]:
    """{operation: (module, a function that launches it)} at a model's shape; sizes: states, prompts, positions, prefix."""
    states, prompts, positions, prefix = sizes
    heads = 8 if d_head == 24 else 12
    groups = heads if d_head < 128 else 4
    d_model, rows = heads * d_head, prompts * positions

    def floats(*shape: int) -> Tensor:
        return empty(*shape, dtype=dtype)

    def whole(*shape: int) -> Tensor:
        return empty(*shape, dtype=torch.int32)

    def words(*shape: int) -> Tensor:
        return empty(*shape, dtype=torch.int64)

    own = floats(states, prompts, groups, positions, d_head)
    shared = floats(prompts, groups, prefix, d_head)
    sequences = floats(states * prompts, groups, positions, d_head)
    return {
        "select_project": (select_project, lambda: select_project._launch(
            floats(states, rows, d_model), floats(states, rows, heads, d_head), floats(2, rows, heads, d_head),
            whole(states, heads), whole(states), floats(heads, d_head, d_model), floats(d_model),
            floats(states, rows, d_model))),
        "suffix_attention": (suffix_attention, lambda: suffix_attention._launch(
            floats(states, prompts, positions, heads, d_head), floats(states, prompts, heads, positions, d_head),
            own, own, shared, shared, d_head**-0.5)),
        "packed_attention": (packed_attention, lambda: packed_attention._launch(
            floats(states * prompts, positions, heads, d_head), floats(states * prompts, heads, positions, d_head),
            sequences, sequences, d_head**-0.5)),
        "logit_difference": (logit_difference, lambda: logit_difference._launch(
            empty(states, prompts), floats(states, prompts, d_model), empty(prompts, d_model), empty(prompts),
            whole(states), 1e-5, True)),
    } | ({} if dtype != torch.float32 else {
        "split_product": (split_product, lambda: split_product._launch(
            empty(states * rows, 4 * d_model), empty(states * rows, d_model), empty(4 * d_model, d_model),
            empty(4 * d_model))),
        "philox_normal": (philox_normal, lambda: philox_normal._launch(
            empty(2, prompts, positions * d_model), words(2, prompts), words(2, 3))),
    })  # fmt: skip


def report(targets: list[str], dtypes: list[str], heads: list[int]) -> Iterator[dict[str, Any]]:
    for target in targets:
        for dtype in dtypes:
            for d_head in heads:
                for name, (module, launch_it) in launches(DTYPES[dtype], d_head).items():
                    if name == "split_product" and target.startswith("gfx"):
                        continue  # TF32 is NVIDIA's
                    yield {"kernel": name, "target": target, "dtype": dtype, "d_head": d_head} | compiled(
                        module, target, launch_it
                    )


if __name__ == "__main__":
    asked = [argument.split(",") for argument in sys.argv[1:]]
    for row in report(asked[0], asked[1], [int(width) for width in asked[2]]):
        print(json.dumps(row), flush=True)
